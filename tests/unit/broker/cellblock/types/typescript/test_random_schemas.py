"""Random schemas against random values: whatever a validator lets through must compile."""

from random import Random
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from cellblock.types.typescript import TypeText, schema_to_type
from support.params import mostly

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
    keys = random.sample(KEYS, random.randrange(4))
    return {key: random_value(random, depth - 1) for key in keys}


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


def _object_words(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if random.random() < 0.8:
        words["properties"] = {key: random_schema(random, depth) for key in random.sample(KEYS, 2)}
    if random.random() < 0.4:
        words["patternProperties"] = {
            pattern: random_schema(random, depth)
            for pattern in random.sample(PATTERNS, random.randrange(1, 3))
        }
    if random.random() < 0.5:
        words["additionalProperties"] = random.choice([False, False, random_schema(random, depth)])
    if random.random() < 0.5:
        words["required"] = random.sample(KEYS, 1)
    if random.random() < 0.15:
        words["propertyNames"] = random.choice(
            [{"enum": ["a", "b", "x-1"]}, {"const": "a"}, {"maxLength": 1}]
        )
    if random.random() < 0.15:
        words["dependentRequired"] = {"a": ["b"]}
    if random.random() < 0.15:
        words["dependentSchemas"] = {random.choice(KEYS): random_schema(random, depth)}
    if random.random() < 0.15:
        words["maxProperties"] = random.randrange(2)
    if random.random() < 0.15:
        words["unevaluatedProperties"] = random.choice([False, random_schema(random, depth)])
    return words


def _array_words(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if random.random() < 0.6:
        words["prefixItems"] = [random_schema(random, depth) for _ in range(random.randrange(1, 3))]
    if random.random() < 0.6:
        words["items"] = random.choice([False, random_schema(random, depth)])
    if random.random() < 0.4:
        words["minItems"] = random.randrange(3)
    if random.random() < 0.4:
        words["maxItems"] = random.randrange(4)
    if random.random() < 0.2:
        words["contains"] = random_schema(random, depth)
    if random.random() < 0.15:
        words["unevaluatedItems"] = False
    return words


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
    valid = invalid = caught = 0
    for schema, (made, values), wrong, refused in zip(
        schemas, cases, refused_by_validator, refused_by_compiler, strict=True
    ):
        for value, is_wrong, is_refused in zip(values, wrong, refused, strict=True):
            assert is_wrong or not is_refused, f"{value!r} is valid for {schema!r}, not for {made.text}"
            valid, invalid, caught = valid + (not is_wrong), invalid + is_wrong, caught + is_refused
    assert valid > 8 * documents, "the values are not close enough to the schemas to prove anything"
    assert caught > invalid * 0.9, "the types say too little"
