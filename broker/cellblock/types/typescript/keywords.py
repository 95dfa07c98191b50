"""Reads the keywords of one schema object; what is malformed counts as absent, so that it never narrows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cellblock.base.json import is_array, is_object
from cellblock.types.typescript.document import ANNOTATIONS, FALSE, Document, Location, as_list, as_object

ALL_KINDS = ("string", "number", "boolean", "array", "object", "null")
"""Holds the kinds of JSON values, in the order in which a union lists them."""

_NOTES = ANNOTATIONS | {"$schema"}
_MAX_DEPTH = 8


def negated(schema: object, depth: int = 0) -> dict[str, Any] | bool | None:
    """Gives a schema for exactly the values that `schema` refuses, or None when there is no simple one.

    An opposite that allowed too little would make a type narrower than its schema, so nothing is guessed.
    """
    if isinstance(schema, bool):
        return not schema
    if not is_object(schema) or depth > _MAX_DEPTH:
        return None
    body = {key: value for key, value in schema.items() if key not in _NOTES}
    if not body:
        return False
    words = set(body)
    if words == {"not"}:
        inner: object = body["not"]
        return inner if isinstance(inner, bool) or is_object(inner) else None
    if words in ({"const"}, {"enum"}):
        return {"not": body} if "const" in body or isinstance(body["enum"], list) else None
    if words == {"type"}:
        return _other_kinds(body["type"])
    for word, dual in (("anyOf", "allOf"), ("allOf", "anyOf")):
        if words == {word} and is_array(body[word]) and body[word]:
            opposites = [negated(member, depth + 1) for member in body[word]]
            return None if None in opposites else {dual: opposites}
    if words <= {"type", "required", "properties"} and ("required" in words or "properties" in words):
        return _not_such_an_object(body, depth)
    return None


def _other_kinds(stated: object) -> dict[str, Any] | bool | None:
    names: list[object] = stated if is_array(stated) else [stated]
    if not names or any(name != "integer" and name not in ALL_KINDS for name in names):
        return None
    # The opposite of `integer` still allows numbers, those with a fraction.
    others = [kind for kind in ALL_KINDS if kind not in names]
    return {"type": others} if others else False


def _not_such_an_object(body: dict[str, Any], depth: int) -> dict[str, Any] | None:
    required, properties = body.get("required", []), body.get("properties", {})
    if body.get("type", "object") != "object" or not is_array(required) or not is_object(properties):
        return None
    if not all(isinstance(key, str) for key in required):
        return None
    ways: list[dict[str, Any]] = [{"properties": {key: False}} for key in required]
    for key, value in properties.items():
        opposite = negated(value, depth + 1)
        if opposite is None:
            return None
        ways.append({"required": [key], "properties": {key: opposite}})
    objects = {"type": "object", **({"anyOf": ways} if len(ways) > 1 else (ways or [{"not": {}}])[0])}
    if "type" not in body:
        return objects
    return {"anyOf": [{"type": [other for other in ALL_KINDS if other != "object"]}, objects]}


_MAX_CANONICAL_DEPTH = 16
_MAX_EXCLUSIVE = 6
_DEPENDENTS = ("dependentRequired", "dependentSchemas", "dependencies")


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
    patterns = as_object(schema.get("patternProperties")) or {}
    required = strings(schema.get("required"))
    additional, names = (
        _at(document, here, schema, word) for word in ("additionalProperties", "propertyNames")
    )
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
    prefix, word, contains = list[Any](), "items", schema.get("contains")
    if document.stated != "draft-07" and is_array(schema.get("prefixItems")):
        prefix = schema["prefixItems"]
    elif is_array(schema.get("items")):
        prefix, word = schema["items"], "additionalItems"
    ignored = word == "additionalItems" and document.stated == "2020-12"
    rest = None if ignored else _at(document, here, schema, word)
    minimum, maximum = count(schema.get("minItems")) or 0, count(schema.get("maxItems"), math.floor)
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
    words = [*_DEPENDENTS[:2] * modern, *_DEPENDENTS[2:] * legacy]
    for key, demand in (pair for word in words for pair in (as_object(schema.get(word)) or {}).items()):
        branch: Branch = [Rules(objects=ObjectRules({}, [], None, [str(key), *strings(demand)]))]
        if is_schema(demand):
            branch.append(document.child(here, demand, "dependentSchemas"))
        choices.append([[Rules(objects=ObjectRules({str(key): FALSE}, [], None, []))], branch])
    unwanted = schema.get("not")
    # A refused literal is in `Rules.excluded`; its opposite is the very same schema again.
    if not (is_object(unwanted) and unwanted.keys() in ({"const"}, {"enum"})):
        choices.extend([[refusal]] for refusal in _negation(document, here, unwanted))
    return choices


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
    no: Branch = [*_negation(document, here, condition)]
    for word, branch in (("then", yes), ("else", no)):
        branch.extend(filter(None, [_at(document, here, schema, word)]))
    # Without anything to say about the other case its branch allows all, and the union with it says nothing.
    if no:
        yield [yes, no]


def _negation(document: Document, here: Location, schema: object) -> list[Location]:
    """Gives the opposite of a schema, or nothing where there is no simple one."""
    opposite = negated(schema)
    return [] if opposite is None else [document.child(here, opposite, "not")]
