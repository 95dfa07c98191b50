"""Schemas as TypeScript: malformed, hostile, endless or huge ones give a type all the same, soon, and safe as text."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import NOTHING, bounded, join, shape_of
from cellblock.types.typescript import TypeText, schema_to_type
from cellblock.types.typescript.limits import MAX_TEXT, MAX_WARNINGS
from support.nesting import nested
from support.params import mostly

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


# ---- case by case and at random: what a validator lets through compiles, and little else -----------------


CASES: list[dict[str, Any]] = [
    {"file": path.stem, **case}
    for path in sorted((Path(__file__).parents[5] / "fixtures" / "jsonschema_cases").glob("*.json"))
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
        wrong = [value for value, is_refused in zip(group, refused, strict=True) if is_refused]
        assert wrong == case["refused"], f"{case['file']}: {case['about']}: {made(case).text}"
    assert sum(len(group) for group in values) >= 400


# `nullable` is OpenAPI's own, and a validator cannot read a malformed schema.


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["file"] != "without_meaning" and "OpenAPI" not in case["about"]],
    ids=lambda case: f"{case['file']}: {case['about']}",
)
def test_a_validator_agrees_with_the_case(case: dict[str, Any]) -> None:
    validator = (Draft7Validator if case.get("draft") == "draft-07" else Draft202012Validator)(case["schema"])
    for value in case["valid"]:
        assert validator.is_valid(value), value
    for value in [*case["refused"], *case.get("wider", [])]:
        assert not validator.is_valid(value), value


# ---- results of tools, and the declaration of what was seen of them -----------------------------------

TOOLS = 150
RESULT_KEYS = (
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
RESULT_TEXTS = (
    "",
    "open",
    "closed",
    "a",
    "b",
    "2026-11-01",
    "it's `${a}`",
    "\u2029*/",
    "2026-11-01T10:00:00Z",
)


def sample(random: Random, depth: int = 4) -> Any:
    """One result: often records, with hostile names and kinds that change."""
    choice = random.random()
    if depth == 0 or choice < 0.3:
        return random.choice([None, True, 0, 3, -2.5, 1e300, *RESULT_TEXTS])
    if choice < 0.5:
        return [sample(random, depth - 1) for _ in range(random.randrange(4))]
    record = {key: sample(random, depth - 1) for key in random.sample(RESULT_KEYS, random.randrange(6))}
    if random.random() < 0.4:
        record["type"] = random.choice(["a", "b", "c"])
    return record


def deep(levels: int) -> Any:
    """A value far deeper than what is described."""
    return nested(levels, lambda value: {"next": [value]}, {"end": 1})


@pytest.mark.slow
def test_every_sample_compiles_against_the_merged_declaration(misfits: Any) -> None:
    seen: list[tuple[TypeText, list[Any]]] = []
    others: list[tuple[TypeText, list[Any]]] = []
    for number in range(TOOLS):
        random = Random(number)
        samples = [sample(random) for _ in range(random.randrange(1, 6))]
        shape = NOTHING
        for one in samples:
            shape = bounded(join(shape, shape_of([one])), random.choice([10, 1_000]))
        made = schema_to_type(to_schema(shape))
        seen.append((made, samples))
        others.append((made, [sample(random) for _ in range(3)]))
    hostile = [deep(40), {"n" * 100_000: 1, "ok": 1}, {f"a{i}": {"v": i} for i in range(500)}, [[]] * 1_000]
    seen += [(schema_to_type(to_schema(shape_of([value]))), [value]) for value in hostile]
    refused = misfits([*seen, *others])
    for (made, samples), of_seen in zip(seen, refused, strict=False):
        assert not any(of_seen), f"of {str(samples)[:500]} one is refused by {made.text[:2000]}"
    assert sum(map(sum, refused[len(seen) :])) > TOOLS, "the types say too little"


# ---- random schemas against random values -------------------------------------------------------------

VALUES = 30

KEYS = ("a", "b", "x-1", "x-2", "constructor", "toString", "valueOf", "__proto__")
PATTERNS = ("^x-", "1$", "^a$", "", "-", "^[a-b]$", "^x-.+$", ".*", "^.*$")
SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, -2.5, "", "a", "b", "it's", "`${a}`")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def random_value(random: Random, depth: int = 3) -> Any:
    """Any JSON value over the grammar's keys and scalars."""
    choice = random.random()
    if depth == 0 or choice < 0.45:
        return random.choice(SCALARS)
    if choice < 0.65:
        return [random_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {key: random_value(random, depth - 1) for key in random.sample(KEYS, random.randrange(4))}


def random_document(random: Random) -> dict[str, Any]:
    """A root schema with two definitions that any part of it may refer to."""
    schema: Any = random_schema(random, 3)
    root = cast("dict[str, Any]", schema if isinstance(schema, dict) else {})
    root["$defs"] = {"One": random_schema(random, 2), "Two": random_schema(random, 2)}
    return root


def random_schema(random: Random, depth: int) -> Any:
    """A schema of at most `depth` levels; often a type with its own keywords, at times any mixture."""
    choice = random.random()
    if depth == 0 or choice < 0.2:
        return random.choice(
            [True, {}, {"type": random.choice(TYPES)}, {"const": random.choice(SCALARS)}, False]
            + [{"type": random.sample(TYPES, 2)}, {"enum": random.sample(SCALARS, 3)}] * 2
        )
    if choice < 0.28:
        # Behind a key only: a reference in place could lead round in a circle, which no validator survives.
        return {"properties": {"a": {"$ref": f"#/$defs/{random.choice(['One', 'Two'])}"}}}
    schema: dict[str, Any] = {}
    for words in random.sample(
        [_object_words, _array_words, _logic_words, _scalar_words], random.randrange(1, 3)
    ):
        schema.update(words(random, depth - 1))
    if random.random() < 0.4 and "type" not in schema:
        schema["type"] = random.choice(["object", "array", ["object", "null"], "object"])
    return schema


def _scalar_words(random: Random, depth: int) -> dict[str, Any]:
    if random.random() < 0.3:
        return {"const": random_value(random, depth)}
    if random.random() < 0.5:
        return {"enum": [random_value(random, depth) for _ in range(3)]}
    return {"type": random.sample(TYPES, random.randrange(1, 4)), "minLength": 1}


def some_of(random: Random, words: dict[str, tuple[float, Callable[[], Any]]]) -> dict[str, Any]:
    """Of the keywords, each with its chance and what makes its value, those that chance takes."""
    return {word: value() for word, (chance, value) in words.items() if random.random() < chance}


def _object_words(random: Random, depth: int) -> dict[str, Any]:
    def schemas(keys: list[str]) -> dict[str, Any]:
        return {key: random_schema(random, depth) for key in keys}

    return some_of(
        random,
        {
            "properties": (0.8, lambda: schemas(random.sample(KEYS, 2))),
            "patternProperties": (0.4, lambda: schemas(random.sample(PATTERNS, random.randrange(1, 3)))),
            "additionalProperties": (
                0.5,
                lambda: random.choice([False, False, random_schema(random, depth)]),
            ),
            "required": (0.5, lambda: random.sample(KEYS, 1)),
            "propertyNames": (
                0.15,
                lambda: random.choice([{"enum": ["a", "b", "x-1"]}, {"const": "a"}, {"maxLength": 1}]),
            ),
            "dependentRequired": (0.15, lambda: {"a": ["b"]}),
            "dependentSchemas": (0.15, lambda: schemas(random.sample(KEYS, 1))),
            "maxProperties": (0.15, lambda: random.randrange(2)),
            "unevaluatedProperties": (0.15, lambda: random.choice([False, random_schema(random, depth)])),
        },
    )


def _array_words(random: Random, depth: int) -> dict[str, Any]:
    def schemas() -> list[Any]:
        return [random_schema(random, depth) for _ in range(random.randrange(1, 3))]

    return some_of(
        random,
        {
            "prefixItems": (0.6, schemas),
            "items": (0.6, lambda: random.choice([False, random_schema(random, depth)])),
            "minItems": (0.4, lambda: random.randrange(3)),
            "maxItems": (0.4, lambda: random.randrange(4)),
            "contains": (0.2, lambda: random_schema(random, depth)),
            "unevaluatedItems": (0.15, lambda: False),
        },
    )


def _logic_words(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Any] = {}
    for word in random.sample(["allOf", "anyOf", "oneOf"], random.randrange(1, 3)):
        words[word] = [random_schema(random, depth) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.3:
        words["not"] = random_schema(random, depth)
    if random.random() < 0.3:
        words["if"] = random_schema(random, depth)
        for word in random.sample(["then", "else"], random.randrange(1, 3)):
            words[word] = random_schema(random, depth)
    return words


@pytest.mark.slow
@pytest.mark.parametrize("documents", mostly([80], [80, 250]))
def test_what_a_validator_accepts_compiles(misfits: Any, documents: int) -> None:
    cases: list[tuple[TypeText, list[Any]]] = []
    schemas: list[dict[str, Any]] = []
    refused_by_validator: list[list[bool]] = []
    for number in range(documents):
        random = Random(number)
        schema = random_document(random)
        validator: Any = Draft202012Validator(schema)
        values = [random_value(random) for _ in range(VALUES)]
        schemas.append(schema)
        cases.append((schema_to_type(schema), values))
        refused_by_validator.append([not validator.is_valid(value) for value in values])
    refused_by_compiler: list[list[bool]] = misfits(cases)
    wrong = [
        f"{value!r} is valid for {schema!r}, not for {made.text}"
        for schema, (made, values), by_validator, by_compiler in zip(
            schemas, cases, refused_by_validator, refused_by_compiler, strict=True
        )
        for value, is_wrong, is_refused in zip(values, by_validator, by_compiler, strict=True)
        if is_refused and not is_wrong
    ]
    assert not wrong, wrong[0]
    invalid, caught = sum(map(sum, refused_by_validator)), sum(map(sum, refused_by_compiler))
    assert VALUES * documents - invalid > 8 * documents, (
        "the values are not close enough to the schemas to prove anything"
    )
    assert caught > invalid * 0.9, "the types say too little"
