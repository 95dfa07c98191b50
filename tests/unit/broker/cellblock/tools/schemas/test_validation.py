"""Validation of inputs: boxes, references, and what a check says."""

import copy
import socket
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import jsonschema
import pytest

from cellblock.tools.schemas import validation
from cellblock.tools.schemas.boxing import box_schema, boxed_field, describes_object, unbox_schema
from cellblock.tools.schemas.example import minimal_example
from cellblock.tools.schemas.validation import Allowance, InputValidator
from cellblock.tools.schemas.violations import Violation

FILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "mode": {"enum": ["read", "write"]},
        "lines": {"type": ["integer", "null"], "minimum": 1, "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "uniqueItems": True},
        "owner": {"$ref": "#/$defs/owner"},
    },
    "required": ["path"],
    "$defs": {
        "owner": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "e-mail": {"type": "string"}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}
STRICT = {**FILE, "additionalProperties": False}
SHAPE: dict[str, Any] = {
    "oneOf": [
        {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
        {"properties": {"kind": {"const": "square"}, "w": {"type": "number"}}, "required": ["kind", "w"]},
    ]
}


def violation(schema: Any, value: Any) -> Violation:
    found = InputValidator(schema).check(value)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("schema", "value", "keyword", "path", "expected", "received"),
    [
        # schema, value, keyword, path, expected, received
        (FILE, {}, "required", "/path", "string", "undefined"),
        (FILE, [], "type", "", "object", "empty array"),
        (FILE, "x", "type", "", "object", 'string "x"'),
        (FILE, None, "type", "", "object", "null"),
        (FILE, {"path": 5}, "type", "/path", "string", "number 5"),
        (FILE, {"path": 5.5}, "type", "/path", "string", "number 5.5"),
        (FILE, {"path": True}, "type", "/path", "string", "boolean true"),
        (FILE, {"path": {"a": 1}}, "type", "/path", "string", "object with the properties a"),
        (FILE, {"path": ["a", "b"]}, "type", "/path", "string", "array of 2 items"),
        (FILE, {"path": ""}, "minLength", "/path", "a string of at least 1 character", 'string ""'),
        (FILE, {"path": "a", "mode": "raed"}, "enum", "/mode", 'one of "read" or "write"', 'string "raed"'),
        (FILE, {"path": "a", "lines": "3"}, "type", "/lines", "integer or null", 'string "3"'),
        (FILE, {"path": "a", "lines": 0}, "minimum", "/lines", "at least 1", "number 0"),
        (FILE, {"path": "a", "lines": 101}, "maximum", "/lines", "at most 100", "number 101"),
        (FILE, {"path": "a", "lines": 1.5}, "type", "/lines", "integer or null", "number 1.5"),
        (FILE, {"path": "a", "tags": ["x", 1]}, "type", "/tags/1", "string", "number 1"),
        (
            FILE,
            {"path": "a", "tags": ["x", "y", "z"]},
            "maxItems",
            "/tags",
            "an array of at most 2 items",
            "array of 3 items",
        ),
        (
            FILE,
            {"path": "a", "tags": ["x", "x"]},
            "uniqueItems",
            "/tags",
            "an array whose items all differ",
            "array of 2 items",
        ),
        (FILE, {"path": "a", "owner": {}}, "required", "/owner/id", "integer", "undefined"),
        (
            FILE,
            {"path": "a", "owner": {"id": 1, "email": "x"}},
            "additionalProperties",
            "/owner/email",
            "no property of this name",
            'string "x"',
        ),
        (
            STRICT,
            {"path": "a", "x/y~z": 1},
            "additionalProperties",
            "/x~1y~0z",
            "no property of this name",
            "number 1",
        ),
        (STRICT, {"pth": "a"}, "additionalProperties", "/pth", "no property of this name", 'string "a"'),
        ({"const": 5}, 6, "const", "", "5", "number 6"),
        ({"exclusiveMinimum": 5}, 5, "exclusiveMinimum", "", "more than 5", "number 5"),
        ({"exclusiveMaximum": 5}, 5, "exclusiveMaximum", "", "less than 5", "number 5"),
        ({"multipleOf": 5}, 6, "multipleOf", "", "a multiple of 5", "number 6"),
        ({"maxLength": 2}, "äöü", "maxLength", "", "a string of at most 2 characters", 'string "äöü"'),
        ({"maxLength": 1}, "👍🏽", "maxLength", "", "a string of at most 1 character", 'string "👍🏽"'),
        ({"pattern": "^a+$"}, "b", "pattern", "", "a string that matches the pattern ^a+$", 'string "b"'),
        ({"minItems": 1}, [], "minItems", "", "an array of at least 1 item", "empty array"),
        (
            {"minProperties": 2},
            {"a": 1},
            "minProperties",
            "",
            "an object with at least 2 properties",
            "object with the properties a",
        ),
        (
            {"maxProperties": 0},
            {"a": 1},
            "maxProperties",
            "",
            "an object with at most 0 properties",
            "object with the properties a",
        ),
        (
            {"contains": {"type": "null"}},
            [1],
            "contains",
            "",
            "an array with items that fit `contains`",
            "array of 1 item",
        ),
        ({"not": {"type": "string"}}, "a", "not", "", "other than what the schema excludes", 'string "a"'),
        (False, {}, "falseSchema", "", "left out", "empty object"),
        ({"properties": {"a": False}}, {"a": 1}, "falseSchema", "/a", "left out", "number 1"),
        (
            {"propertyNames": {"maxLength": 2}},
            {"abc": 1},
            "propertyNames",
            "/abc",
            "a string of at most 2 characters",
            'string "abc"',
        ),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "required", "/b", "any value", "undefined"),
        (
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"b": 1},
            "unevaluatedProperties",
            "/b",
            "no property of this name",
            "number 1",
        ),
        ({"prefixItems": [{}], "items": False}, [1, 2], "falseSchema", "/1", "left out", "number 2"),
        (
            {"if": {"type": "string"}, "then": {"minLength": 3}},
            "a",
            "minLength",
            "",
            "a string of at least 3 characters",
            'string "a"',
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, "anyOf", "", "string or null", "number 5"),
        ({"anyOf": [{"const": "a"}, {"const": "b"}]}, "c", "anyOf", "", '"a" or "b"', 'string "c"'),
        (
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]},
            ["a", 1],
            "type",
            "/1",
            "string",
            "number 1",
        ),
        (SHAPE, {"kind": "square"}, "required", "/w", "number", "undefined"),
        (SHAPE, {"kind": "circle", "r": "1"}, "type", "/r", "number", 'string "1"'),
        (SHAPE, {"kind": "sqare", "w": 1}, "anyOf", "/kind", '"circle" or "square"', 'string "sqare"'),
        (
            {"oneOf": [{"type": "string"}, {"minLength": 1}]},
            "a",
            "oneOf",
            "",
            "of only one of the alternatives",
            'string "a"',
        ),
        (
            {"type": "array", "items": {"type": "integer"}},
            {"a": 1},
            "type",
            "",
            "array",
            "object with the properties a",
        ),
        ({"type": "string"}, {}, "type", "", "string", "empty object"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 5, "exclusiveMinimum": True},
            5,
            "exclusiveMinimum",
            "",
            "more than 5",
            "number 5",
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "items": [{"type": "string"}],
                "additionalItems": False,
            },
            ["a", 1],
            "additionalItems",
            "",
            "an array of at most 1 item",
            "array of 2 items",
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "$ref": "#/$defs/a",
                "$defs": {"a": {"type": "null"}},
            },
            1,
            "type",
            "",
            "null",
            "number 1",
        ),
    ],
)
def test_a_violation_names_place_expected_and_received(
    schema: Any, value: Any, keyword: str, path: str, expected: str, received: str
) -> None:
    before = copy.deepcopy((schema, value))
    found = violation(schema, value)
    assert (found.keyword, found.path, found.expected, found.received) == (keyword, path, expected, received)
    assert found.message.startswith(path or "The input") and found.message.endswith(".")
    assert (schema, value) == before


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"type": "string", "nullable": True}}}, {"a": None}),
        (None, {}),
        (None, {"a": 1}),
        ({}, {}),
        ({}, [1]),
        (True, "x"),
        (FILE, {"path": "a", "other": 1}),
        (FILE, {"path": "a", "lines": 1.0}),  # 1.0 is an integer in JSON Schema
        (FILE, {"path": "a", "lines": None}),
        ({"type": "integer"}, 10**400),
        ({"type": "integer", "minimum": 10**30}, 10**30),
        ({"type": "number"}, 1),
        ({"multipleOf": 0.1}, 0.3),
        ({"type": "string", "format": "email"}, "not an address"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "format": "ipv4"}, "999"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"}, "%"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "contentMediaType": "application/json"}, "{"),
        ({"maxLength": 2}, "👍👍"),
        ({"properties": {"ключ": {"type": "string"}}}, {"ключ": "значение"}),
        (
            {"description": 5, "default": [], "title": None, "format": 7},
            {},
        ),  # malformed annotations assert nothing
        (
            {"$id": "https://example.com/a", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
            {"a": 1},
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/a",
                "type": "null",
                "definitions": {"a": {"type": "integer"}},
            },
            1,
        ),
        ({"$schema": "http://json-schema.org/draft-06/schema", "exclusiveMinimum": 1}, 2),
    ],
)
def test_what_fits_is_accepted(schema: Any, value: Any) -> None:
    assert InputValidator(schema).check(value) is None


def test_what_is_said_stays_short_for_huge_values_and_names() -> None:
    for schema, value in (
        (STRICT, {"path": "a", "x" * 1_000_000: "y" * 1_000_000}),
        (FILE, {"path": ["x" * 1_000_000] * 10}),
        ({"enum": ["e" * 1000 + str(index) for index in range(500)]}, "x" * 1_000_000),
        ({"const": {"a": ["x" * 1000] * 100}}, {"k" * 100_000: 1}),
        ({"type": "string"}, 10**4000),
    ):
        found = violation(schema, value)
        assert max(len(found.expected), len(found.received)) <= 120
        assert len(found.path) <= 500
        assert len(found.message) <= 800


def test_a_large_input_still_gets_its_place_named() -> None:
    """And where its explanation is of a part, what was cut off is no violation."""
    body = "x" * 5_000_000
    cut = {
        "properties": {"a": {"minItems": 50}, "s": {"minLength": 600}, "n": {"anyOf": [{"type": "null"}]}},
        "required": ["n"],
    }
    choice = {"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    for schema, value, path, expected in (
        (FILE, {"content": body}, "/path", "string"),
        (choice, {"content": body, "n": "1"}, "/n", "integer or null"),
        ({"items": {"type": "integer"}}, [1] * 150_000 + ["x"], "/150000", "integer"),
        (cut, {"a": [1] * 60, "s": "x" * 30_000, "n": 5}, "/n", "null"),
    ):
        found = violation(schema, value)
        assert (found.path, found.expected) == (path, expected)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        # schema without `$schema` that is none of 2020-12, what fits, what does not
        (
            {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
            ["a", 1],
            ["a", "b"],
        ),
        ({"items": [{"type": "string"}], "required": ["a"], "properties": {"a": {}}}, {"a": 1}, {}),
        (
            {
                "properties": {"a": {"items": [{"$ref": "#/definitions/a"}]}},
                "definitions": {"a": {"const": 1}},
            },
            {},
            {"a": [2]},
        ),
        ({"minimum": 5, "exclusiveMinimum": True}, 6, 5),
        ({"maximum": 5, "exclusiveMaximum": False, "multipleOf": 2}, 4, 5),
    ],
    ids=str,
)
def test_a_schema_of_an_older_draft_that_does_not_say_so_is_checked(
    schema: dict[str, Any], right: Any, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    assert validator.check(right) is None
    assert validator.check(wrong) is not None
    assert caplog.records == []
    # One that says what it is must be that, and rules that must hold are taken for 2020-12 alone.
    assert not InputValidator(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, strict=True
    ).is_checking
    assert InputValidator(schema, strict=True).check(right) is not None


@pytest.mark.parametrize(
    "odd",
    [
        {"type": 5},
        {"type": "file"},
        {"type": ["string", None]},
        {"required": True},
        {"required": ["b", "b"]},
        {"allOf": 5},
        {"allOf": [5]},
        {"enum": 5},
        {"minimum": "1"},
        {"minLength": -1},
        {"multipleOf": 0},
        {"anyOf": [{"type": "any"}, {"multipleOf": 0, "minLength": "3"}]},
    ],
    ids=str,
)
def test_the_rest_is_checked_where_a_keyword_has_a_value_that_it_cannot_have(
    odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "object", "properties": {"a": odd, "b": {"type": "integer"}}}
    validator = InputValidator(schema, label="files.read")
    for value in ({}, {"a": 1}, [], "x", None, 5):
        assert validator.check({"a": value, "b": 1}) is None
        assert validator.check({"a": value, "b": "1"}) is not None
    [said] = [record.getMessage() for record in caplog.records]
    assert "files.read is checked in part: no draft has its /properties/a/" in said
    assert not InputValidator(schema, strict=True).is_checking


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"a": 5}},
        {"items": 5},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$schema": "http://json-schema.org/draft-03/schema#"},
        {"$schema": "https://example.com/own"},
        {"$schema": 5},
        {"x": {1: 2}},
        {"properties": {"a": {"const": "\ud800"}}},
        {"properties": {"a": {"$id": "https://example.com/b", "$ref": "#/$defs/c"}}},
    ],
    ids=lambda schema: ascii(schema),
)
def test_an_unusable_schema_accepts_everything_and_warns_once(
    schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    validator = InputValidator(schema, label="files.read")
    assert [validator.check(value) for value in ({}, {"a": 1}, [], "x", None, 5)] == [None] * 6
    assert not validator.is_checking
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert minimal_example(schema, validator) is None


@pytest.mark.slow
def test_checks_with_one_allowance_share_the_work_of_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"x": [1] * 100_000}
    measure = Mock(wraps=validation.measured)
    monkeypatch.setattr(validation, "measured", measure)
    validators = [
        InputValidator({"properties": {"x": {"items": {"type": "integer"}}}}, strict=True) for _ in range(50)
    ]
    allowance = Allowance(value)
    found = [validator.check(value, allowance) for validator in validators]
    measure.assert_called_once_with(value)
    passed = found.index(next(one for one in found if one is not None))
    assert 1 < passed < 20, "as many as one schema with the work of them all could have"
    assert all(one is not None and "together could take too long" in one.message for one in found[passed:])
    assert all(validator.check(value) is None for validator in validators), "each alone is no such work"
    assert InputValidator(True, strict=True).check(value, allowance) is None


def test_an_allowance_of_a_value_that_is_too_large_lets_nothing_through() -> None:
    value = [0] * 300_000
    allowance = Allowance(value)
    for _ in range(2):
        found: Any = InputValidator({"type": "array"}, strict=True).check(value, allowance)
        assert "over 200000 values" in found.message


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
    assert unbox_schema(boxed, "result") == RECURSIVE


ONE = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({**ONE, "x-dedalus-box": {"field": "result"}}, "result"),
        (
            {
                "type": "object",
                "properties": {"value": {}},
                "required": ["value"],
                "x-dedalus-box": {"field": "value"},
            },
            "value",
        ),
        ({"properties": {"value": {}}, "x-dedalus-box": {"field": "value"}}, None),
        ({**ONE, "x-fastmcp-wrap-result": True}, "result"),
        ({**ONE, "title": "addOutput"}, "result"),
        (ONE, None),
        ({**ONE, "title": "Answer"}, None),
        ({**ONE, "title": "addOutput", "required": []}, None),
        ({"properties": {"result": {}, "more": {}}, "title": "addOutput", "required": ["result"]}, None),
        ({"properties": {"value": {}}, "title": "addOutput", "required": ["value"]}, None),
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


def test_the_sdks_own_box_is_known() -> None:
    """A tool list as the MCP SDK for Python makes it."""
    from mcp.server.mcpserver.tools import Tool

    def add(a: int) -> int:
        return a

    assert boxed_field(Tool.from_function(add).output_schema) == "result"


@pytest.mark.parametrize("scheme", ["http://127.0.0.1:{port}/x", "https://127.0.0.1:{port}/x#/a"])
@pytest.mark.parametrize("keyword", ["$ref", "$schema", "$id", "$dynamicRef"])
def test_no_reference_opens_a_connection(scheme: str, keyword: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        schema = {"type": "object", keyword: scheme.format(port=server.getsockname()[1])}
        if keyword == "$id":
            schema["properties"] = {"a": {"$ref": "other.json"}}
        validator = InputValidator(schema, label="files.read")
        for _ in range(3):
            assert validator.check({"a": 1}) is None
            assert (validator.check(7) is None) == (keyword in ("$schema", "$dynamicRef"))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody waits to be taken
            server.accept()
    assert validator.is_checking == (keyword in ("$ref", "$id"))
    assert len(caplog.records) == 1
    assert "files.read" in caplog.text


def test_a_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}')
    assert InputValidator({"$ref": f"file://{tmp_path}/s.json"}).check(5) is None


AWAY: Final = {"$ref": "https://example.com/other.json#/$defs/x"}
NOWHERE: Final = {"$ref": "#/$defs/missing"}


@pytest.mark.parametrize("reference", [AWAY, NOWHERE, {"$ref": "#anchor"}], ids=str)
def test_the_rest_is_checked_where_a_reference_leads_away(
    reference: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": reference, "b": {"type": "integer"}, "c": {**reference, "minLength": 2}},
        "required": ["b"],
    }
    validator = InputValidator(schema, label="files.read")
    assert validator.check({"a": "anything", "b": 1}) is None
    for wrong in ({"a": 1}, {"b": "x"}, {"b": 1, "c": "x"}):
        assert validator.check(wrong) is not None
    [said] = [record.getMessage() for record in caplog.records]
    assert "files.read is checked in part" in said and reference["$ref"] in said
    assert minimal_example(schema, validator) == {"b": 1}
    strict = InputValidator(schema, strict=True)
    assert strict.check({"b": 1}) is not None and "leads to no place" in strict.why_not


@pytest.mark.parametrize(
    "schema",
    [
        {"not": AWAY},
        {"not": {"properties": {"a": NOWHERE}}},
        {"not": {"$ref": "#/$defs/x"}, "$defs": {"x": AWAY}},
        {"not": {"not": AWAY}},
        {"not": {"pattern": "(?=x)y"}},
        {"oneOf": [AWAY, {"type": "integer"}]},
        {"not": {"type": "any"}},
        {"oneOf": [{"items": {"minimum": "1"}}, {"type": "integer"}]},
        {"if": NOWHERE, "then": False, "else": {"type": "array"}},
        {"items": {"contains": AWAY, "maxContains": 0}},
        {"allOf": [AWAY], "unevaluatedProperties": False},
        {"properties": {"a": {"anyOf": [NOWHERE, {"type": "array"}]}}, "unevaluatedProperties": AWAY},
        {"$schema": "http://json-schema.org/draft-07/schema#", **AWAY, "type": "array"},
    ],
    ids=str,
)
def test_what_a_reference_might_allow_is_never_refused(schema: dict[str, Any]) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    assert [validator.check(value) for value in (1, "y", {"a": 1}, [[1, 2]], {"b": [1]})] == [None] * 5


NEXT = {"properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        # References inside the schema are followed.
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, ["a"], [1]),
        ({"$ref": "#/$defs/%C3%A9", "$defs": {"é": {"type": "string"}}}, ["a"], [1]),
        ({"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "string"}}}, ["a"], [1]),
        (
            {
                "$ref": "https://example.com/a#/$defs/x",
                "$id": "https://example.com/a",
                "$defs": {"x": {"type": "string"}},
            },
            ["a"],
            [1],
        ),
        (NEXT, [{"next": {"next": {"v": 1}}}], [{"next": {"next": {"v": "x"}}}]),
        ({"items": {"$ref": "#/other/place"}, "other": {"place": {"type": "string"}}}, [["a"]], [[1]]),
        # A choice that is `nullable` takes null.
        ({"enum": ["a", "b"], "nullable": True}, [None, "a"], ["c", 1]),
        ({"type": "string", "enum": ["a"], "nullable": True}, [None, "a"], ["c"]),
        ({"type": ["string", "null"], "enum": ["a"], "nullable": True}, [None, "a"], ["c"]),
        ({"enum": ["a", None], "nullable": True}, [None, "a"], ["c"]),
        ({"enum": ["a"], "nullable": False}, ["a"], [None]),
        ({"properties": {"x": {"enum": [1], "nullable": True}}}, [{"x": None}, {"x": 1}], [{"x": 2}]),
        ({"const": "a", "nullable": True}, [None, "a"], ["c"]),
        ({"$ref": "#/$defs/s", "nullable": True, "$defs": {"s": {"type": "string"}}}, [None, "a"], [1]),
        ({"$ref": "elsewhere.json", "type": "string", "nullable": True}, [None, "a"], [1]),
        ({"allOf": [{"type": "string"}], "maxLength": 1, "nullable": True}, [None, "a"], [1, "ab"]),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"const": 2}]}], "nullable": True}, [None, "a", 2], [1]),
    ],
    ids=str,
)
def test_references_are_followed_and_null_is_taken(
    schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    assert [validator.check(value) for value in right] == [None] * len(right)
    assert None not in [validator.check(value) for value in wrong]
