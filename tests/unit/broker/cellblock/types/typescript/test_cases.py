"""The committed cases: schemas with instances, and what TypeScript can say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from cellblock.types.typescript import schema_to_type

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
