"""What is told of a value that does not fit: the problems, and an example that does; as the reference implementation
(`jsonschema`) says, too."""

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from jsonschema.validators import validator_for

from cellblock.tools.schemas.example import MAX_EXAMPLE_CHARS, minimal_example
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.schemas.violations import corrective_hint
from support.params import mostly
from support.recorded_catalogs import CATALOGS, recorded

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


@pytest.mark.parametrize(
    ("schema", "value", "hint"),
    [
        (STRICT, {"pth": "a"}, 'Did you mean "path"?'),
        (FILE, {"Path": "a"}, 'Rename "Path" to "path".'),
        (FILE, {}, "Add /path: string."),
        (FILE, {"path": "a", "mode": "raed"}, 'Did you mean "read"?'),
        (FILE, {"path": "a", "owner": {"id": 1, "email": "x"}}, 'Did you mean "e-mail"?'),
        (STRICT, {"path": "a", "zzz": 1}, "Leave /zzz out."),
        (FILE, {"path": 1}, "Change /path: it must be string."),
        (SHAPE, {"kind": "sqare", "w": 1}, 'Did you mean "square"?'),
        (FILE, [], "Change the input: it must be object."),
    ],
)
def test_the_hint_is_one_corrective_action(schema: Any, value: Any, hint: str) -> None:
    assert corrective_hint(InputValidator(schema).check(value)) == hint  # pyright: ignore


@pytest.mark.parametrize(
    ("schema", "example"),
    [
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
        (
            {"type": "array", "minItems": 2, "items": {"type": "string"}, "uniqueItems": True},
            ["text", "text2"],
        ),
        ({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 2}, [None, False]),
        ({"type": "array", "contains": {"const": 5}}, None),
        ({"minProperties": 2, "properties": {"a": {"type": "null"}}}, None),
        ({"required": ["k"], "additionalProperties": {"type": "integer"}}, {"k": 1}),
        # put together
        (
            {
                "properties": {"a": {"$ref": "#/$defs/x"}},
                "required": ["a"],
                "$defs": {"x": {"type": "integer"}},
            },
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
    ],
    ids=lambda part: ascii(part)[:60],
)
def test_the_example_is_the_schemas_own_or_a_minimal_one(schema: Any, example: Any) -> None:
    before = copy.deepcopy(schema)
    made = minimal_example(schema, InputValidator(schema))
    assert (made, type(made)) == (example, type(example))
    assert schema == before


def test_an_example_is_a_copy() -> None:
    schema = {"examples": [{"a": [1]}]}
    made: Any = minimal_example(schema, InputValidator(schema))
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
    made = minimal_example(schema, InputValidator(schema))
    if made is not None:
        assert jsonschema.Draft202012Validator(schema).is_valid(made)
        assert len(json.dumps(made)) <= MAX_EXAMPLE_CHARS


# ---- verdicts agree with the reference implementation, and nothing makes the checker raise ---------------


WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1.0,
    10**20,
    "",
    "x",
    "text" * 100,
    [],
    ["x"],
    [1],
    [{}],
    {},
    {"x": 1},
)


def mutations(value: Any, schema: dict[str, Any]) -> list[Any]:
    """The example itself and many near variants, most of them wrong."""
    made: list[Any] = [value, {}, [], None, "x", {"unknown": 1}]
    if not isinstance(value, dict):
        return made
    for name in [*value, *schema.get("properties", {})]:
        made.append({key: item for key, item in value.items() if key != name})
        made.extend({**value, name: other} for other in WRONG)
        made.append({**value, name + "s": 1})
    return made


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(tool["inputSchema"], id=f"{name}.{tool['name']}")
        for name, document in recorded(CATALOGS).items()
        for tool in document["tools"]
    ],
)
def test_verdicts_agree_with_the_reference_implementation(schema: Any) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    reference = validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    example = minimal_example(schema, validator)
    assert example is not None
    verdicts = [0, 0]
    for value in mutations(example, schema):
        violation = validator.check(value)
        assert (violation is None) == reference.is_valid(value), value
        verdicts[violation is None] += 1
        if violation is not None:
            assert any(_blames(error, violation.path) for error in reference.iter_errors(value)), (
                value,
                violation,
            )
    assert min(verdicts) > 0


def _blames(error: Any, path: str) -> bool:
    """Whether an error of the reference, or one inside it, is at the place or at its parent."""
    own = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)
    return (
        path in (own, "")
        or path.rpartition("/")[0] == own
        or any(_blames(one, path) for one in error.context)
    )


LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        {},
        True,
        False,
        {"type": "string"},
        {"type": "integer", "minimum": 0},
        {"type": ["number", "null"]},
        {"const": "a"},
        {"enum": [1, "a", None]},
        {"pattern": "^a"},
        {"minLength": 2},
        {"type": "boolean"},
        {"$ref": "#/$defs/d"},
    ]
)
NAMES = st.sampled_from(["a", "b", "c"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "minItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "propertyNames": st.just({"pattern": "^[ab]"}),
            "unevaluatedProperties": st.booleans(),
            "dependentRequired": st.just({"a": ["b"]}),
        },
    ),
    max_leaves=12,
)


ROOTS = st.builds(
    lambda schema, other: {**schema, "$defs": {"d": other}},
    SCHEMAS.filter(lambda schema: isinstance(schema, dict)),
    LEAVES.filter(lambda schema: schema != {"$ref": "#/$defs/d"}),
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, -1, 1.0, 1.5, "", "a", "b", "ab", 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(ROOTS, st.lists(VALUES, min_size=1, max_size=5))
def test_verdicts_on_random_schemas_agree_with_the_reference_implementation(
    schema: Any, values: list[Any]
) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    reference: Any = jsonschema.Draft202012Validator(schema)
    for value in values:
        before = copy.deepcopy(value)
        assert (validator.check(value) is None) == reference.is_valid(value)
        assert value == before


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["#", "#/a", "string"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    """type enum const properties required additionalProperties patternProperties propertyNames items prefixItems
    contains minItems uniqueItems anyOf oneOf allOf not if then else $ref $defs $id $anchor $schema $dynamicRef
    pattern minLength maxLength minimum multipleOf dependentRequired dependencies format examples
    default""".split()  # noqa: SIM905
)
GARBAGE = st.recursive(
    JSON,
    lambda inner: st.dictionaries(KEYWORDS, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.dictionaries(KEYWORDS, GARBAGE, max_size=4), JSON)
def test_no_schema_and_no_value_raises(schema: dict[str, Any], value: Any) -> None:
    validator = InputValidator(schema)
    violation = validator.check(value)
    if violation is not None:
        assert validator.is_checking
        assert corrective_hint(violation)
    example = minimal_example(schema, validator)
    if example is not None:
        assert validator.check(example) is None
