"""Reads the keywords of one schema object; what is malformed counts as absent, so that it never narrows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cellblock.base.json import is_array
from cellblock.types.typescript.document import Document, Location, as_list, as_object

ALL_KINDS = ("string", "number", "boolean", "array", "object", "null")
"""Holds the kinds of JSON values, in the order in which a union lists them."""

_MAX_CANONICAL_DEPTH = 16


_ANY_KEY: Final = frozenset(("", "^", "$", ".*", "^.*", ".*$", "^.*$", "^(.*)$"))
"""Holds the patterns that are written for any key; of no other one is it known here which keys it matches."""


@dataclass(slots=True)
class ObjectRules:
    """Holds what one schema says about objects.

    Attributes:
        properties: By key.
        every: What holds for every key: patterns that match all.
        patterns: What holds for some keys.
        additional: What holds for keys that are no property and match no pattern.
        required: Keys.
        empty_only: Whether there may be no key.
    """

    properties: dict[str, Location]
    every: list[Location]
    patterns: list[Location]
    additional: Location | None
    required: list[str]
    empty_only: bool = False


@dataclass(slots=True)
class ArrayRules:
    """Holds what one schema says about arrays; `rest` covers the positions behind `prefix`."""

    prefix: list[Location]
    rest: Location | None
    minimum: int
    maximum: int | None


@dataclass(slots=True)
class Rules:
    """Holds what one schema object says about its value, apart from schemas that apply to the same value."""

    kinds: frozenset[str] | None = None
    integers_only: bool = False
    literals: list[Any] | None = None
    excluded: list[Any] | None = None
    objects: ObjectRules | None = None
    arrays: ArrayRules | None = None


Branch = list["Location | Rules"]


def kind_of(value: object) -> str:
    """Gives the JSON kind of a Python value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return "object" if isinstance(value, dict) else "array"


def canonical(value: Any, depth: int = 0) -> tuple[Any, ...]:
    """Gives a hashable stand-in under which equal JSON values are equal (1 and 1.0 are; 1 and true are not)."""
    kind = kind_of(value)
    if depth > _MAX_CANONICAL_DEPTH:
        return (kind, id(value))
    if kind == "array":
        return (kind, *(canonical(item, depth + 1) for item in value))
    if kind == "object":
        return (kind, frozenset((key, canonical(item, depth + 1)) for key, item in value.items()))
    return (kind, value)


def count(value: object, rounded: Callable[[float], int] = math.ceil) -> int | None:
    """Gives a non-negative whole number of a size that can matter, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return None
    return rounded(value)


def is_schema(value: object) -> bool:
    """Says whether a JSON value can be a schema: an object or a boolean."""
    return isinstance(value, dict | bool)


def strings(value: object) -> list[str]:
    """Gives the strings of a JSON array of strings; empty when it is anything else."""
    items = as_list(value)
    return [item for item in items if isinstance(item, str)]


def read_rules(document: Document, here: Location, schema: dict[str, Any]) -> Rules:
    """Gives the rules of one schema object. In-place applicators are `read_choices`' and the caller's business."""
    rules = Rules(objects=_object_rules(document, here, schema), arrays=_array_rules(document, here, schema))
    _read_type(rules, schema.get("type"))
    rules.literals = _literals(schema)
    unwanted = as_object(schema.get("not"))
    if unwanted is not None and len(unwanted) == 1:
        rules.excluded = _literals(unwanted)
    return rules


def _literals(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if is_array(schema.get("enum")) else None


def _read_type(rules: Rules, stated: object) -> None:
    names: list[Any] = [stated] if isinstance(stated, str) else as_list(stated)
    if names and all(name == "integer" or name in ALL_KINDS for name in names):
        rules.integers_only = "integer" in names and "number" not in names
        rules.kinds = frozenset("number" if name == "integer" else name for name in names)


def _at(document: Document, here: Location, schema: dict[str, Any], word: str) -> Location | None:
    """Gives the location of the schema that a keyword holds, if it holds one."""
    return document.child(here, schema[word], word) if is_schema(schema.get(word)) else None


def _object_rules(document: Document, here: Location, schema: dict[str, Any]) -> ObjectRules | None:
    properties = as_object(schema.get("properties")) or {}
    every, patterns = list[Location](), list[Location]()
    for pattern, value in (as_object(schema.get("patternProperties")) or {}).items():
        chosen = every if pattern in _ANY_KEY else patterns
        chosen.append(document.child(here, value, "patternProperties"))
    required = strings(schema.get("required"))
    additional = _at(document, here, schema, "additionalProperties")
    empty_only = count(schema.get("maxProperties")) == 0
    if not (properties or every or patterns or required or additional or empty_only):
        return None
    located = {
        str(key): document.child(here, value, "properties", str(key)) for key, value in properties.items()
    }
    return ObjectRules(located, every, patterns, additional, required, empty_only)


def _array_rules(document: Document, here: Location, schema: dict[str, Any]) -> ArrayRules | None:
    prefix, word = list[Any](), "items"
    if document.stated != "draft-07" and is_array(schema.get("prefixItems")):
        prefix = schema["prefixItems"]
    elif is_array(schema.get("items")):
        prefix, word = schema["items"], "additionalItems"
    ignored = word == "additionalItems" and document.stated == "2020-12"
    rest = None if ignored else _at(document, here, schema, word)
    minimum, maximum = count(schema.get("minItems")) or 0, count(schema.get("maxItems"), math.floor)
    if not prefix and rest is None and not minimum and maximum is None:
        return None
    return ArrayRules(
        [document.child(here, item, "prefixItems", str(n)) for n, item in enumerate(prefix)],
        rest,
        minimum,
        maximum,
    )


def read_choices(document: Document, here: Location, schema: dict[str, Any]) -> list[list[Branch]]:
    """Gives the keywords of which at least one branch must hold: each inner list is one keyword's branches."""
    choices: list[list[Branch]] = []
    for word in ("anyOf", "oneOf"):
        branches = as_list(schema.get(word))
        if branches:
            choices.append([[document.child(here, item, word, str(at))] for at, item in enumerate(branches)])
    condition, no = _at(document, here, schema, "if"), _at(document, here, schema, "else")
    # Without anything to say about the other case its branch allows all, and the union with it says nothing.
    if condition is not None and no is not None:
        yes = _at(document, here, schema, "then")
        choices.append([[condition, *filter(None, [yes])], [no]])
    return choices
