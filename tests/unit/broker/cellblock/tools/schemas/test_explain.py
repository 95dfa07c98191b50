"""What is told of a value that does not fit: the problems, and an example that does."""

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.base.suggest import nearest_names
from cellblock.tools.schemas.example import MAX_EXAMPLE_CHARS, minimal_example
from cellblock.tools.schemas.explain import corrective_hint
from cellblock.tools.schemas.validation import InputValidator
from support.params import mostly

FILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["read", "write"]},
        "owner": {
            "properties": {"id": {"type": "integer"}, "e-mail": {"type": "string"}},
            "additionalProperties": False,
        },
    },
    "required": ["path"],
}
STRICT = {**FILE, "additionalProperties": False}
SHAPE: dict[str, Any] = {
    "oneOf": [
        {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
        {"properties": {"kind": {"const": "square"}, "w": {"type": "number"}}, "required": ["kind", "w"]},
    ]
}

HINTS: list[tuple[Any, Any, str]] = [
    (STRICT, {"pth": "a"}, 'Did you mean "path"?'),
    (FILE, {"Path": "a"}, 'Rename "Path" to "path".'),
    (FILE, {}, "Add /path: string."),
    (FILE, {"path": "a", "mode": "raed"}, 'Did you mean "read"?'),
    (FILE, {"path": "a", "owner": {"id": 1, "email": "x"}}, 'Did you mean "e-mail"?'),
    (STRICT, {"path": "a", "zzz": 1}, "Leave /zzz out."),
    (FILE, {"path": 1}, "Change /path: it must be string."),
    (SHAPE, {"kind": "sqare", "w": 1}, 'Did you mean "square"?'),
    (FILE, [], "Change the input: it must be object."),
]


@pytest.mark.parametrize(("schema", "value", "hint"), HINTS)
def test_the_hint_is_one_corrective_action(schema: Any, value: Any, hint: str) -> None:
    violation: Any = InputValidator(schema).check(value)
    assert corrective_hint(violation, nearest_names) == hint


EXAMPLES: list[tuple[Any, Any]] = [
    (None, {}),
    (True, {}),
    ({}, {}),
    (False, None),
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
    ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "text"}),
    # the schema's own
    ({"examples": [{"a": 1}, {"a": 2}], "required": ["a"]}, {"a": 1}),
    ({"examples": [5, {"a": 2}], "type": "object", "required": ["a"]}, {"a": 2}),
    ({"properties": {"a": {"examples": ["hello"], "default": "no"}}, "required": ["a"]}, {"a": "hello"}),
    ({"properties": {"a": {"default": 7}}, "required": ["a"]}, {"a": 7}),
    ({"properties": {"a": {"const": [1]}}, "required": ["a"]}, {"a": [1]}),
    ({"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}, {"a": "x"}),
    ({"properties": {"a": {"type": "integer", "examples": ["wrong"]}}, "required": ["a"]}, {"a": 1}),
    ({"properties": {"a": {"type": "integer", "default": None}}, "required": ["a"]}, {"a": 1}),
    ({"examples": ["x"], "type": "array"}, []),
    # made up
    ({"type": "integer"}, 1),
    ({"type": "number", "minimum": 2.5}, 2.5),
    ({"type": "integer", "minimum": 2.5}, 3),
    ({"type": "integer", "exclusiveMinimum": 7}, 8),
    ({"type": "integer", "maximum": -4}, -4),
    ({"type": "integer", "multipleOf": 7, "minimum": 10}, None),
    ({"type": "boolean"}, True),
    ({"type": "null"}, None),
    ({"type": ["null", "string"]}, "text"),
    ({"type": "string", "minLength": 8}, "textaaaa"),
    ({"type": "string", "maxLength": 2}, "te"),
    ({"type": "string", "format": "date"}, "2026-01-31"),
    ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00Z"),
    ({"type": "string", "format": "uuid"}, "123e4567-e89b-42d3-a456-426614174000"),
    ({"type": "string", "format": "email"}, "user@example.com"),
    ({"type": "string", "format": "uri"}, "https://example.com/"),
    ({"type": "string", "pattern": "^[0-9a-f]{40}$"}, "0123456789abcdef0123456789abcdef01234567"),
    ({"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}, "2026-01-31"),
    ({"type": "string", "pattern": "^only this$"}, "only this"),
    ({"type": "string", "pattern": "^https?://"}, "https://example.com/"),
    ({"type": "string", "pattern": "^x{3}y[pq]z$"}, None),
    ({"type": "array"}, []),
    ({"type": "array", "minItems": 2, "items": {"type": "integer"}, "uniqueItems": True}, [1, 2]),
    ({"type": "array", "minItems": 2, "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ["a", "b"]),
    ({"type": "array", "minItems": 2, "items": {"type": "string"}, "uniqueItems": True}, ["text", "text2"]),
    ({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 2}, [None, False]),
    ({"type": "array", "contains": {"const": 5}}, None),
    ({"minProperties": 2, "properties": {"a": {"type": "null"}}}, None),
    ({"required": ["k"], "additionalProperties": {"type": "integer"}}, {"k": 1}),
    # put together
    (
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": {"type": "integer"}}},
        {"a": 1},
    ),
    ({"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]}, {"a": 1}),
    ({"required": ["a"], "allOf": [{"required": ["b"]}]}, {"a": "text", "b": "text"}),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "text"),
    ({"properties": {"a": {"anyOf": [False, {"type": "integer"}]}}, "required": ["a"]}, {"a": 1}),
    ({"oneOf": [{"required": ["a"], "maxProperties": 0}, {"required": ["b"]}]}, {"b": "text"}),
    ({"properties": {"child": {"$ref": "#"}}, "type": "object"}, {}),
    ({"properties": {"child": {"$ref": "#"}}, "required": ["child"]}, None),
    ({"required": ["ключ"], "properties": {"ключ": {"const": "значение"}}}, {"ключ": "значение"}),
    ({"required": ["__proto__"]}, {"__proto__": "text"}),
    # hopeless
    ({"not": {}}, None),
    ({"type": "string", "minLength": 5000}, None),
    ({"type": "array", "minItems": 5000}, None),
    ({"required": [f"k{index}" for index in range(500)]}, None),
    ({"type": "integer", "minimum": 5, "maximum": 4}, None),
    ({"examples": ["x" * 5000], "type": "string"}, "text"),
    ({"$ref": "http://127.0.0.1:1/x"}, None),
]


@pytest.mark.parametrize(("schema", "example"), EXAMPLES, ids=lambda part: ascii(part)[:60])
def test_the_example_is_the_schemas_own_or_a_minimal_one(schema: Any, example: Any) -> None:
    before = copy.deepcopy(schema)
    made = minimal_example(schema)
    assert (made, type(made)) == (example, type(example))
    assert schema == before


def test_an_example_is_a_copy() -> None:
    schema = {"examples": [{"a": [1]}]}
    made: Any = minimal_example(schema)
    made["a"].append(2)
    assert (made, schema) == ({"a": [1, 2]}, {"examples": [{"a": [1]}]})


PARTS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "minLength": 3},
            {"type": "string", "format": "uuid"},
            {"type": "integer", "minimum": 3, "multipleOf": 4},
            {"type": "number", "exclusiveMaximum": 0},
            {"enum": ["a", None]},
            {"const": {"x": 1}},
            {"type": "boolean", "default": "wrong"},
            {"type": "string", "examples": [5]},
            {"$ref": "#/$defs/d"},
            {"$ref": "#"},
            True,
        ]
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", ["null", "object"]]),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abcd"), unique=True, max_size=3),
            "additionalProperties": inner | st.just(False),
            "items": inner,
            "minItems": st.integers(0, 3),
            "uniqueItems": st.booleans(),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=12,
).filter(lambda part: isinstance(part, dict))


@pytest.mark.slow
@pytest.mark.parametrize("again", mostly([0], range(2)))
@settings(max_examples=150, deadline=None)
@given(PARTS)
def test_an_example_always_fits_its_schema(again: int, part: dict[str, Any]) -> None:
    schema = {**part, "$defs": {"d": {"type": "integer"}}}
    made = minimal_example(schema)
    if made is not None:
        assert jsonschema.Draft202012Validator(schema).is_valid(made)
        assert len(json.dumps(made)) <= MAX_EXAMPLE_CHARS
