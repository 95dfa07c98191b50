"""Schemas that are malformed, hostile, endless or huge: a type all the same, soon, and safe as text."""

import json
import re
import time
from typing import Any

import pytest

from cellblock.types.typescript import TypeText, schema_to_type
from cellblock.types.typescript.limits import MAX_TEXT, MAX_WARNINGS
from support.nesting import nested

HOSTILE = [
    "*/ declare const evil: 1; /*",
    "**//",
    "a\u2028b\u2029c",
    "`${process.exit()}`",
    "line\r\n@ts-ignore\n@deprecated\n/// <reference path='/etc/passwd' />",
    "\x00\x1b[31m\x7f\u202etxt\u2066",
    "\ud800",
    "x" * 100_000,
    "\n" * 100_000,
    "*" * 5_000 + "/",
]

MALFORMED: list[Any] = [
    {"type": 5},
    {"type": []},
    {"type": ["string", 7]},
    {"type": "any"},
    {"properties": []},
    {"properties": {"a": 5, "b": [], "c": None, "d": "string"}},
    {"required": "x"},
    {"required": [1, None]},
    {"items": 7, "prefixItems": 3, "additionalItems": "x"},
    {"enum": "a", "oneOf": {}, "anyOf": "x", "allOf": [1, None]},
    {"$ref": 5},
    {"$ref": "#/%zz/~2"},
    {"$ref": "http://["},
    {"$id": "http://[", "$ref": "x"},
    {"$id": 7, "$anchor": [], "$defs": []},
    {"minItems": -1, "maxItems": "2", "minProperties": 1e400, "type": "array"},
    {"minItems": float("nan")},
    {"patternProperties": {"(": True, "[": {"type": "string"}, "\\": False}},
    {"dependentRequired": {"a": "b"}, "dependentSchemas": [], "dependencies": 1},
    {"if": 1, "then": 2, "else": 3, "not": 4},
    {"const": float("inf")},
    {"enum": [float("nan"), 10**400, 1e308]},
]


def test_what_cannot_be_read_allows_all(misfits: Any) -> None:
    cases: list[tuple[TypeText, list[Any]]] = []
    for schema in MALFORMED:
        if {"const", "enum"} & schema.keys():
            values: list[Any] = []
        elif schema.get("type") == "array":
            values = [[], [1, 2, 3]]
        else:
            values = [{}, {"a": 1, "z": [1]}, [1], "x", None]
        cases.append((schema_to_type(schema), values))
    assert misfits(cases) == [[False] * len(values) for _, values in cases]


def test_hostile_text_stays_where_it_is_put(misfits: Any) -> None:
    cases = [(_hostile_type(text), [_hostile_value(text), {}]) for text in HOSTILE]
    assert misfits(cases) == [[False, True]] * len(HOSTILE)
    for text, (made, _) in zip(HOSTILE, cases, strict=True):
        made.text.encode("utf-8")
        assert len(made.text) < 20_000
        assert not any(ord(char) < 32 and char != "\n" for char in made.text), ascii(text[:40])
        inside = [line for line in made.text.split("\n") if line.lstrip().startswith("* ")]
        assert not any("*/" in line for line in inside), ascii(text[:40])
        assert not re.search(r"^\s*\* @(ts-ignore|deprecated)", "\n".join(inside), re.MULTILINE)


def _hostile_type(text: str) -> TypeText:
    notes = {"description": text, "default": text, "examples": [text], "format": text, "pattern": text}
    return schema_to_type(
        {
            "type": "object",
            "description": text,
            "title": text,
            "properties": {
                "plain": notes,
                text: {"type": "string", "description": "d"},
                "literal": {"enum": [text, {text: text}]},
            },
            "required": ["plain"],
            "patternProperties": {f"^{text}": {"description": text}},
        }
    )


def _hostile_value(text: str) -> dict[str, Any]:
    return {"plain": 1} if len(text) > 1_000 else {"plain": 1, text: "x", "literal": text}


NAMED = {"$anchor": "name", "type": "string"}


@pytest.mark.parametrize(
    ("reference", "definition", "text"),
    [
        ("#/$defs/missing", {}, "unknown"),
        ("#name", NAMED, "string"),
        ("#name", {"$id": "https://schemas.invalid/x.json", "$defs": {"b": NAMED}}, "unknown"),
    ],
    ids=["nowhere", "by its name", "a name of another schema"],
)
def test_a_reference_is_followed_or_unknown_with_a_warning(
    reference: str, definition: Any, text: str
) -> None:
    made = schema_to_type({"$ref": reference, "$defs": {"a": definition}})
    warning = f'At the root: The reference "{reference}" leads nowhere; any value is allowed.'
    assert (made.text, made.root_warnings) == (text, () if text == "string" else (warning,))


NO_TYPE = "The type is none of JSON Schema's; any value is allowed."
CIRCLE = "References lead back to where they began; any value is allowed."


@pytest.mark.parametrize(
    ("member", "kind", "doc"),
    [
        ({"type": "datetime"}, "unknown", f"Warning: At /properties/a: {NO_TYPE}"),
        ({"type": ["frob", "null"]}, "unknown", f"Warning: At /properties/a: {NO_TYPE}"),
        ({"$ref": "#/properties/a"}, "unknown", f"Warning: At /properties/a: {CIRCLE}"),
        ({"$ref": "#/$defs/one"}, "unknown", f"Warning: At /$defs/one: {CIRCLE}"),
        (
            {"anyOf": [{"$ref": "#/properties/a"}, {"type": "string"}]},
            "unknown",
            f"Warning: At /properties/a/anyOf/0: {CIRCLE}",
        ),
        (
            {"$ref": "https://schemas.invalid/x.json"},
            "unknown",
            'Warning: At /properties/a: The reference "https://schemas.invalid/x.json" leaves the schema; '
            "it is not fetched.",
        ),
        (
            {
                "type": "string",
                "description": "Due date.",
                "format": "date-time",
                "minLength": 3,
                "default": "now",
                "examples": ["2024-01-01T00:00:00Z"],
                "deprecated": True,
                "readOnly": True,
            },
            "string",
            'Due date. @format "date-time" @minLength 3 @default "now" @example "2024-01-01T00:00:00Z" '
            "@deprecated @readOnly",
        ),
    ],
)
def test_a_property_is_documented_and_says_why_nothing_is_known_of_it(
    member: Any, kind: str, doc: str
) -> None:
    other = {"one": {"$ref": "#/$defs/two"}, "two": {"$ref": "#/$defs/one"}}
    made = schema_to_type({"type": "object", "properties": {"a": member}, "$defs": other})
    assert made.text == f"{{\n  /** {doc} */\n  a?: {kind};\n  [key: string]: unknown;\n}}"
    assert made.root_warnings == ()


CIRCLES: list[Any] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}], "type": "object"},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}, "$ref": "#/$defs/a"},
    {"not": {"$ref": "#"}},
    {"propertyNames": {"$ref": "#"}},
]


def test_a_circle_without_anything_in_between_ends(misfits: Any) -> None:
    assert misfits((schema_to_type(schema), [{}]) for schema in CIRCLES) == [[False]] * len(CIRCLES)


def around(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def test_a_deep_schema_is_unknown_from_a_depth_on() -> None:
    made = schema_to_type(nested(200, around, {"type": "string"}))
    assert "a: unknown" in made.text
    assert "nested too deeply" in made.text


def linked(count: int, step: Any) -> dict[str, Any]:
    """Definitions d0 … of which each is made by `step` from its number and a way to refer to others."""
    definitions = {f"d{n}": step(n, lambda other: {"$ref": f"#/$defs/d{other}"}) for n in range(count)}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


HUGE: dict[str, Any] = {
    "deep": nested(5_000, around, {"type": "string"}),
    "long": linked(3_000, lambda n, to: {"type": "array", "items": to(n + 1)}),
    "wide": linked(60, lambda n, to: {"type": "object", "properties": {key: to(n + 1) for key in "abc"}}),
    "chain": {
        "properties": {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(3_000)},
        "$defs": {
            f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{max(0, n - 1)}"}}} for n in range(3_000)
        },
    },
    "doubling": linked(60, lambda n, to: {"anyOf": [to(n + 1), {"allOf": [to(n + 1)]}], "minLength": n}),
    "product": {
        "type": "object",
        "allOf": [{"anyOf": [{"required": [f"{n}a"]}, {"required": [f"{n}b"]}]} for n in range(40)],
    },
    "enum": {"enum": [f"value {n}" for n in range(20_000)]},
    "const": {"const": nested(900, around, {"type": "string"})},
    "docs": {
        "type": "object",
        "properties": {f"property number {n}": {"description": "d" * 900} for n in range(5_000)},
    },
    "conjuncts": {"allOf": [{"properties": {f"k{n}": {"type": "string"}}} for n in range(3_000)]},
    "patterns": {"patternProperties": {f"^x{n}.*y$": {"type": "string"} for n in range(60)}},
}


@pytest.mark.parametrize("schema", HUGE.values(), ids=HUGE.keys())
def test_a_huge_schema_ends_soon_within_its_budget(schema: Any) -> None:
    start = time.process_time()
    made = schema_to_type(schema)
    assert time.process_time() - start < 6
    assert len(made.text) + sum(map(len, made.aliases)) < 3 * MAX_TEXT
    assert made.text.count("Warning: ") + len(made.root_warnings) <= MAX_WARNINGS + 1


def test_the_same_schema_gives_the_same_bytes() -> None:
    schema = {
        "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"enum": ["x", 1, None]}},
        "patternProperties": {"^x-": {"type": "number"}},
    }
    assert schema_to_type(schema) == schema_to_type(json.loads(json.dumps(schema)))


def test_recursive_definitions_are_named_after_the_tool_and_themselves() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree node"}}}
    made = schema_to_type(
        {"$defs": {"tree node": node}, "type": "array", "items": {"$ref": "#/$defs/tree node"}},
        name="AddInput",
    )
    assert made.text == "TreeNode[]"
    assert made.aliases == ("type TreeNode = { next?: TreeNode; [key: string]: unknown };",)
