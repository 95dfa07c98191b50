"""Declarations from schemas, one case each."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import NOTHING, bounded, join, shape_of
from cellblock.types.typescript import TypeText, schema_to_type
from support.nesting import nested

FOLDER = Path(__file__).parents[5] / "fixtures" / "jsonschema_cases"
CASES: list[dict[str, Any]] = [
    {"file": path.stem, **case}
    for path in sorted(FOLDER.glob("*.json"))
    for case in json.loads(path.read_text("utf-8"))
]


def made(case: dict[str, Any]) -> Any:
    schema = case["schema"]
    if case.get("draft") == "draft-07" and isinstance(schema, dict):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    elif isinstance(schema, dict):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return schema_to_type(schema)


@pytest.mark.slow
def test_every_valid_value_compiles_and_the_rest_is_refused_where_typescript_can(misfits: Any) -> None:
    values = [[*case["valid"], *case["refused"], *case.get("wider", [])] for case in CASES]
    results: list[list[bool]] = misfits(
        (made(case), group) for case, group in zip(CASES, values, strict=True)
    )
    for case, group, refused in zip(CASES, values, results, strict=True):
        first, last = len(case["valid"]), len(case["valid"]) + len(case["refused"])
        expected = [first <= at < last for at in range(len(group))]
        wrong = [
            value
            for value, is_refused, should in zip(group, refused, expected, strict=True)
            if is_refused != should
        ]
        assert not wrong, f"{case['file']}: {case['about']}: {wrong} against {made(case).text}"
    assert sum(len(group) for group in values) >= 400


# `nullable` is OpenAPI's own, and a validator cannot read a malformed schema.
JUDGED = [case for case in CASES if case["file"] != "without_meaning" and "OpenAPI" not in case["about"]]


@pytest.mark.parametrize("case", JUDGED, ids=lambda case: f"{case['file']}: {case['about']}")
def test_a_validator_agrees_with_the_case(case: dict[str, Any]) -> None:
    validator = (Draft7Validator if case.get("draft") == "draft-07" else Draft202012Validator)(case["schema"])
    for value in case["valid"]:
        assert validator.is_valid(value), value
    for value in [*case["refused"], *case.get("wider", [])]:
        assert not validator.is_valid(value), value


TOOLS = 150
KEYS = (
    "id",
    "name",
    "type",
    "kind",
    "status",
    "k1",
    "k2",
    "k3",
    "k4",
    "x-1",
    "__proto__",
    "*/",
    "\u2028",
    "n" * 70,
)
TEXTS = ("", "open", "closed", "a", "b", "2026-11-01", "it's `${a}`", "\u2029*/", "2026-11-01T10:00:00Z")


def sample(random: Random, depth: int = 4) -> Any:
    """One result: often records, with hostile names and kinds that change."""
    choice = random.random()
    if depth == 0 or choice < 0.3:
        return random.choice([None, True, 0, 3, -2.5, 1e300, *TEXTS])
    if choice < 0.5:
        return [sample(random, depth - 1) for _ in range(random.randrange(4))]
    record = {key: sample(random, depth - 1) for key in random.sample(KEYS, random.randrange(6))}
    if random.random() < 0.4:
        record["type"] = random.choice(["a", "b", "c"])
    return record


def deep(levels: int) -> Any:
    """A value far deeper than what is described."""
    return nested(levels, lambda value: {"next": [value]}, {"end": 1})


@pytest.mark.slow
def test_every_sample_compiles_against_the_merged_declaration(misfits: Any) -> None:
    cases: list[tuple[TypeText, list[Any]]] = []
    seen: list[list[Any]] = []
    for number in range(TOOLS):
        random = Random(number)
        samples = [sample(random) for _ in range(random.randrange(1, 6))]
        shape = NOTHING
        for one in samples:
            shape = bounded(join(shape, shape_of([one])), random.choice([10, 1_000]))
        others = [sample(random) for _ in range(3)]
        cases.append((schema_to_type(to_schema(shape)), [*samples, *others]))
        seen.append(samples)
    hostile = [deep(40), {"n" * 100_000: 1, "ok": 1}, {f"a{i}": {"v": i} for i in range(500)}, [[]] * 1_000]
    cases += [(schema_to_type(to_schema(shape_of([value]))), [value]) for value in hostile]
    seen += [[value] for value in hostile]
    refused = misfits(cases)
    caught = 0
    for (made, values), samples, verdicts in zip(cases, seen, refused, strict=True):
        for value, is_refused in list(zip(values, verdicts, strict=True))[: len(samples)]:
            assert not is_refused, f"{str(value)[:500]} was seen, and is refused by {made.text[:2000]}"
        caught += sum(verdicts[len(samples) :])
    assert caught > TOOLS, "the types say too little"
