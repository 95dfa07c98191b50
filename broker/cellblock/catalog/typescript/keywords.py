"""Reads the keywords of one schema object; what is malformed counts as absent, so that it never narrows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cellblock.base.json import is_object
from cellblock.catalog.typescript.document import FALSE, Document, Location, as_list, as_object
from cellblock.catalog.typescript.negation import ALL_KINDS, negated

_MAX_CANONICAL_DEPTH = 16
_MAX_EXCLUSIVE = 6


@dataclass(slots=True)
class ObjectRules:
    """Holds what one schema says about objects; `additional` covers what neither map names."""

    properties: dict[str, Location]
    patterns: list[tuple[str, Location]]
    additional: Location | None
    required: list[str]
    names: Location | None = None
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
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
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


def count(value: object) -> int | None:
    """Gives a non-negative whole number of a size that can matter, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return None
    return math.ceil(value)


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
    if "const" in schema:
        rules.literals = [schema["const"]]
    enum = schema.get("enum")
    if isinstance(enum, list) and rules.literals is None:
        rules.literals = as_list(schema["enum"])
    unwanted = as_object(schema.get("not"))
    if unwanted is not None and len(unwanted) == 1:
        if "const" in unwanted:
            rules.excluded = [unwanted["const"]]
        elif isinstance(unwanted.get("enum"), list):
            rules.excluded = as_list(unwanted["enum"])
    return rules


def _read_type(rules: Rules, stated: object) -> None:
    names = [stated] if isinstance(stated, str) else as_list(stated)
    if not names or not all(
        isinstance(name, str) and (name == "integer" or name in ALL_KINDS) for name in names
    ):
        return
    rules.integers_only = "integer" in names and "number" not in names
    rules.kinds = frozenset("number" if name == "integer" else str(name) for name in names)


def _object_rules(document: Document, here: Location, schema: dict[str, Any]) -> ObjectRules | None:
    def at(word: str) -> Location | None:
        value = schema.get(word)
        return document.child(here, value, word) if is_schema(value) else None

    properties = as_object(schema.get("properties")) or {}
    patterns = as_object(schema.get("patternProperties")) or {}
    required = strings(schema.get("required"))
    additional, names = at("additionalProperties"), at("propertyNames")
    empty_only = count(schema.get("maxProperties")) == 0
    if not (properties or patterns or required or additional or names or empty_only):
        return None
    return ObjectRules(
        {str(key): document.child(here, value, "properties", str(key)) for key, value in properties.items()},
        [(str(key), document.child(here, value, "patternProperties")) for key, value in patterns.items()],
        additional,
        required,
        names,
        empty_only,
    )


def _array_rules(document: Document, here: Location, schema: dict[str, Any]) -> ArrayRules | None:
    prefix, rest, contains = list[Any](), None, schema.get("contains")
    items = schema.get("items")
    if document.stated != "draft-07" and isinstance(schema.get("prefixItems"), list):
        prefix = as_list(schema["prefixItems"])
        rest = document.child(here, items, "items") if is_schema(items) else None
    elif isinstance(items, list):
        prefix = as_list(schema["items"])
        more = schema.get("additionalItems")
        if document.stated != "2020-12" and is_schema(more):
            rest = document.child(here, more, "additionalItems")
    elif is_schema(items):
        rest = document.child(here, items, "items")
    minimum, maximum = count(schema.get("minItems")) or 0, count(schema.get("maxItems"))
    if maximum is not None and isinstance(schema.get("maxItems"), float):
        maximum = int(schema["maxItems"])
    if is_schema(contains):
        least = count(schema.get("minContains")) if document.stated != "draft-07" else None
        minimum = max(minimum, 1 if least is None else least)
        if contains is False and least != 0:
            maximum = 0
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
        refused = exclusions(branches) if word == "oneOf" else {}
        located: list[Branch] = [
            [document.child(here, item, word, str(n))] for n, item in enumerate(branches)
        ]
        for number, branch in enumerate(located):
            others = [opposite for at, opposite in refused.items() if at != number]
            branch.extend(document.child(here, opposite, word) for opposite in others)
        if located:
            choices.append(located)
    choices.extend(_conditional(document, here, schema))
    modern, legacy = document.stated != "draft-07", document.stated != "2020-12"
    dependents: list[tuple[str, object]] = []
    if modern:
        dependents.extend((as_object(schema.get("dependentRequired")) or {}).items())
        dependents.extend((as_object(schema.get("dependentSchemas")) or {}).items())
    if legacy:
        dependents.extend((as_object(schema.get("dependencies")) or {}).items())
    for key, demand in dependents:
        present = _required([str(key), *strings(demand)])
        branch: Branch = [present]
        if is_schema(demand):
            branch.append(document.child(here, demand, "dependentSchemas"))
        choices.append([[_absent([str(key)])], branch])
    unwanted = schema.get("not")
    # A refused literal is in `Rules.excluded`; its opposite is the very same schema again.
    refusal = None if _literals_only(unwanted) else _negation(document, here, unwanted)
    if refusal is not None:
        choices.append([[refusal]])
    return choices


def _literals_only(schema: object) -> bool:
    return is_object(schema) and len(schema) == 1 and ("const" in schema or "enum" in schema)


def exclusions(branches: list[Any]) -> dict[int, dict[str, Any] | bool]:
    """Says what each branch of a oneOf, by position, forbids all others, where that is short to say."""
    found: dict[int, dict[str, Any] | bool] = {}
    for at, branch in enumerate(branches if len(branches) <= _MAX_EXCLUSIVE else ()):
        opposite = negated(branch)
        # Opposites of kinds alone would add nothing: those branches hold different kinds anyway.
        if opposite is False or (isinstance(opposite, dict) and opposite.keys() == {"type", "properties"}):
            found[at] = opposite
    return found


def _conditional(document: Document, here: Location, schema: dict[str, Any]) -> Iterable[list[Branch]]:
    condition = schema.get("if")
    if not is_schema(condition) or not ("then" in schema or "else" in schema):
        return
    yes: Branch = [document.child(here, condition, "if")]
    no: Branch = []
    refusal = _negation(document, here, condition)
    if refusal is not None:
        no.append(refusal)
    for word, branch in (("then", yes), ("else", no)):
        if is_schema(schema.get(word)):
            branch.append(document.child(here, schema[word], word))
    # Without anything to say about the other case its branch allows all, and the union with it says nothing.
    if no:
        yield [yes, no]


def _negation(document: Document, here: Location, schema: object) -> Location | None:
    opposite = negated(schema)
    return None if opposite is None else document.child(here, opposite, "not")


def _required(keys: list[str]) -> Rules:
    return Rules(objects=ObjectRules({}, [], None, keys))


def _absent(keys: list[str]) -> Rules:
    return Rules(objects=ObjectRules(dict.fromkeys(keys, FALSE), [], None, []))
