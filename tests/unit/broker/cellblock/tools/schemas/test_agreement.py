"""Verdicts agree with the reference implementation (`jsonschema`), and nothing makes the checker raise."""

import copy
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from cellblock.base.suggest import nearest_names
from cellblock.tools.schemas.example import minimal_example
from cellblock.tools.schemas.explain import corrective_hint
from cellblock.tools.schemas.validation import InputValidator
from support.recorded_catalogs import CATALOGS, recorded

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


def catalog_schemas() -> list[tuple[str, Any]]:
    return [
        (f"{name}.{tool['name']}", tool["inputSchema"])
        for name, document in recorded(CATALOGS).items()
        for tool in document["tools"]
    ]


def mutations(value: Any, schema: dict[str, Any]) -> list[Any]:
    """The example itself and many near variants, most of them wrong."""
    made: list[Any] = [value, {}, [], None, "x", {"unknown": 1}]
    if not isinstance(value, dict):
        return made
    value = cast("dict[str, Any]", value)
    names: list[str] = [*value, *schema.get("properties", {})]
    for name in names:
        made.append({key: item for key, item in value.items() if key != name})
        made.extend({**value, name: other} for other in WRONG)
        made.append({**value, name + "s": 1})
    return made


@pytest.mark.parametrize("name_and_schema", catalog_schemas(), ids=lambda pair: pair[0])
def test_verdicts_agree_with_the_reference_implementation(name_and_schema: tuple[str, Any]) -> None:
    _, schema = name_and_schema
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
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path]
    own = "".join("/" + part for part in parts)
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


def rooted(schema: Any, other: Any) -> dict[str, Any]:
    return {**schema, "$defs": {"d": other}}


ROOTS = st.builds(
    rooted,
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
        violation = validator.check(value)
        assert (violation is None) == reference.is_valid(value)
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
        assert corrective_hint(violation, nearest_names)
    example = minimal_example(schema, validator)
    if example is not None:
        assert validator.check(example) is None
