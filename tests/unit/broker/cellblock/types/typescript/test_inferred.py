"""What was observed compiles: every sample against the declaration made from all of them, by the real compiler."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cellblock.types.learning.infer import NOTHING, bounded, join, shape_of, to_schema
from cellblock.types.typescript import TypeText, schema_to_type

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
    value: Any = {"end": 1}
    for _ in range(levels):
        value = {"next": [value]}
    return value


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
