"""Titles go and definitions move in, and what a schema accepts stays the same."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.tools.python.pydantic_schema import MAX_INLINED, inline_definitions, prune_titles


def test_only_titles_of_schemas_are_pruned() -> None:
    data = {"title": "data", "properties": {"title": "data"}}
    schema = {
        "title": "A",
        "properties": {"title": {"title": "Title", "type": "string", "default": data}},
        "patternProperties": {"title": {"title": "B"}},
        "additionalProperties": {"title": "C", "enum": [data], "const": data},
        "items": [{"title": "D"}],
        "prefixItems": [{"title": "E"}, True],
        "anyOf": [{"title": "F", "not": {"title": "G"}}],
        "dependentSchemas": {"title": {"title": "H"}},
        "$defs": {"title": {"title": "I"}},
        "examples": [data],
        "required": ["title"],
        "x-own": {"title": "kept"},
    }
    before = copy.deepcopy(schema)
    assert prune_titles(schema) == {
        "properties": {"title": {"type": "string", "default": data}},
        "patternProperties": {"title": {}},
        "additionalProperties": {"enum": [data], "const": data},
        "items": [{}],
        "prefixItems": [{}, True],
        "anyOf": [{"not": {}}],
        "dependentSchemas": {"title": {}},
        "$defs": {"title": {}},
        "examples": [data],
        "required": ["title"],
        "x-own": {"title": "kept"},
    }
    assert schema == before


def reference(name: str, **beside: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", **beside}


NODE = {"type": "object", "properties": {"below": {"items": reference("Node")}}}


@pytest.mark.parametrize(
    ("schema", "inlined"),
    [
        pytest.param(
            {
                "properties": {
                    "a": reference("A", description="own", default={}),
                    "b": {"items": reference("B")},
                },
                "$defs": {"A": {"type": "object", "description": "A's"}, "B": {"anyOf": [reference("A")]}},
            },
            {
                "properties": {
                    "a": {"type": "object", "description": "own", "default": {}},
                    "b": {"items": {"anyOf": [{"type": "object", "description": "A's"}]}},
                }
            },
            id="with what stands beside the reference",
        ),
        pytest.param(
            {
                "properties": {"root": reference("Node"), "leaf": reference("Leaf")},
                "$defs": {
                    "Node": {
                        "properties": {"leaf": reference("Leaf"), "below": {"items": reference("Node")}}
                    },
                    "Leaf": {"type": "string"},
                    "Unused": {"properties": {"again": reference("Unused")}},
                },
            },
            {
                "properties": {"root": reference("Node"), "leaf": {"type": "string"}},
                "$defs": {
                    "Node": {
                        "properties": {"leaf": {"type": "string"}, "below": {"items": reference("Node")}}
                    }
                },
            },
            id="recursive ones stay, and others move into them",
        ),
        # MCP wants `type: object` at the root.
        pytest.param(
            {**reference("Node"), "$defs": {"Node": NODE}},
            {**NODE, "$defs": {"Node": NODE}},
            id="a recursive root is spelled out",
        ),
        pytest.param(
            {
                "properties": {
                    "a": {"$ref": "https://example.com/x"},
                    "b": reference("Missing"),
                    "c": reference("A"),
                },
                "$defs": {"A": {"type": "string"}},
            },
            {
                "properties": {
                    "a": {"$ref": "https://example.com/x"},
                    "b": reference("Missing"),
                    "c": {"type": "string"},
                },
            },
            id="other references are left alone",
        ),
    ],
)
def test_definitions_are_inlined(schema: dict[str, Any], inlined: dict[str, Any]) -> None:
    assert inline_definitions(schema) == inlined


def test_definitions_that_double_at_every_step_stay() -> None:
    steps = 64
    definitions: dict[str, Any] = {
        f"D{n}": {"properties": {"a": reference(f"D{n + 1}"), "b": reference(f"D{n + 1}")}}
        for n in range(steps)
    }
    definitions[f"D{steps}"] = {"type": "string"}
    schema = {"properties": {"root": reference("D0")}, "$defs": definitions}
    assert inline_definitions(schema) == schema
    few = {name: body for name, body in definitions.items() if int(name[1:]) > steps - 5}
    inlined = inline_definitions({"properties": {"root": reference(f"D{steps - 4}")}, "$defs": few})
    assert "$defs" not in inlined and str(inlined).count("string") == 16
    assert MAX_INLINED > 16


_NAMES = ["A", "B", "C"]
_LEAVES = st.sampled_from([{"type": "integer"}, {"type": "string"}, {"const": 1}, {}])
_BODIES = st.recursive(
    _LEAVES | st.sampled_from(_NAMES).map(lambda name: {"properties": {"p": reference(name)}}),
    lambda below: st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from(["p", "q"]), below, max_size=2)}
        ),
        st.fixed_dictionaries({"items": below}),
        st.fixed_dictionaries({"anyOf": st.lists(below, min_size=1, max_size=2)}),
    ),
    max_leaves=6,
)
_VALUES = st.recursive(
    st.sampled_from([1, 2, "x", None]),
    lambda below: (
        st.dictionaries(st.sampled_from(["p", "q"]), below, max_size=2) | st.lists(below, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(_NAMES, _BODIES)), st.sampled_from(_NAMES), _VALUES)
def test_what_is_accepted_stays_the_same(definitions: dict[str, Any], root: str, value: Any) -> None:
    schema = {**reference(root), "$defs": definitions}
    inlined = inline_definitions(schema)
    before = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert jsonschema.Draft202012Validator(inlined).is_valid(value) is before


@pytest.mark.parametrize("schema", [True, False])
def test_boolean_schemas_stay(schema: bool) -> None:
    assert prune_titles(schema) is schema
