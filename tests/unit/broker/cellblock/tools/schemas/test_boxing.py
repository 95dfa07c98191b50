"""Boxing: which schemas are boxed, by whose convention, and that a box opens to what was put in."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from cellblock.tools.schemas.boxing import box, box_schema, boxed_field, describes_object, unbox, unbox_schema

RECURSIVE = {
    "type": "array",
    "items": {"$ref": "#/$defs/Node"},
    "$defs": {"Node": {"type": "object", "properties": {"below": {"items": {"$ref": "#/$defs/Node"}}}}},
}


@pytest.mark.parametrize(
    ("schema", "is_object"),
    [
        ({"type": "object"}, True),
        ({"properties": {}}, True),
        ({"additionalProperties": {"type": "integer"}}, True),
        ({"anyOf": [{"type": "object"}, {"properties": {}}]}, True),
        ({"oneOf": [{"type": "object"}]}, True),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, True),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, False),
        ({"anyOf": []}, False),
        ({"type": ["object", "null"]}, False),
        ({"type": "array"}, False),
        ({"type": "string", "properties": {}}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, False),
        ({"$ref": "#/$defs/B", "$defs": {}}, False),
        ({"$ref": "https://example.com/schema"}, False),
        ({}, False),
        (True, False),
    ],
    ids=str,
)
def test_what_describes_an_object(schema: Any, is_object: bool) -> None:
    assert describes_object(schema) is is_object
    boxed = box_schema(schema)
    assert describes_object(boxed)
    assert boxed_field(boxed) == (None if is_object else "result")


def test_definitions_move_to_the_root_and_back() -> None:
    boxed = box_schema(RECURSIVE)
    assert boxed["$defs"] == RECURSIVE["$defs"] and "$defs" not in boxed["properties"]["result"]
    jsonschema.Draft202012Validator(boxed).validate({"result": [{"below": [{"below": []}]}]})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(boxed).validate({"result": [{"below": [1]}]})
    assert unbox_schema(boxed) == RECURSIVE
    assert unbox_schema({"type": "object"}) == {"type": "object"}


@pytest.mark.parametrize("value", [None, 0, "", [], {"result": 1}, [{"a": 1}]], ids=repr)
def test_a_box_opens_to_what_was_put_in(value: Any) -> None:
    boxed = box_schema({})
    assert box(boxed, value) == {"result": value}
    assert unbox(boxed, box(boxed, value)) == value
    assert box({"type": "object"}, value) is value and unbox({"type": "object"}, value) is value


ONE = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({**ONE, "x-dedalus-box": {"field": "result"}}, "result"),
        ({"properties": {"value": {}}, "x-dedalus-box": {"field": "value"}}, "value"),
        ({**ONE, "x-fastmcp-wrap-result": True}, "result"),
        ({**ONE, "title": "addOutput"}, "result"),
        (ONE, None),
        ({**ONE, "title": "Answer"}, None),
        ({**ONE, "title": "addOutput", "required": []}, None),
        ({"properties": {"result": {}, "more": {}}, "title": "addOutput", "required": ["result"]}, None),
        ({**ONE, "x-dedalus-box": {"field": "other"}}, None),
        ({**ONE, "x-dedalus-box": {}}, None),
        ({**ONE, "x-dedalus-box": True}, None),
        ({"x-dedalus-box": {"field": "result"}}, None),
        ({"properties": [], "x-dedalus-box": {"field": "result"}}, None),
        (None, None),
        (True, None),
    ],
    ids=str,
)
def test_the_conventions(schema: Any, field: str | None) -> None:
    assert boxed_field(schema) == field
    given = {"result": 1, "value": 1, "other": 2}
    assert unbox(schema, given) == (1 if field else given)


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"else": 1}], ids=repr)
def test_what_is_not_in_the_box_comes_back_as_it_is(value: Any) -> None:
    assert unbox({**ONE, "x-dedalus-box": {"field": "result"}}, value) == value


def test_the_sdks_own_box_opens() -> None:
    """A tool list as the MCP SDK for Python makes it."""
    from mcp.server.mcpserver.tools import Tool

    def add(a: int) -> int:
        return a

    schema = Tool.from_function(add).output_schema
    assert unbox(schema, {"result": 3}) == 3
