"""Finds which schemas apply together to one value: `$ref`, allOf, anyOf, oneOf and if, multiplied out.

The result is a list of alternatives, each a plain conjunction of `Rules`. A value that the schemas allow satisfies at
least one of them. What is malformed counts as absent, so that it never narrows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cellblock.base.json import is_array
from cellblock.tools.schemas.document import Document, Location, as_list, as_object

MAX_ALTERNATIVES: Final = 48
"""Bounds the members of one union that come from combining several anyOf, oneOf, if or dependent keywords."""

MAX_CONJUNCTS: Final = 200
"""Bounds the schemas that may apply to one value through allOf and `$ref`; later ones are ignored (wider)."""

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

    schema: dict[str, Any] = field(default_factory=dict[str, Any])
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
    rules = Rules(
        schema, objects=_object_rules(document, here, schema), arrays=_array_rules(document, here, schema)
    )
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


_MAX_NESTING = 24
_NOT_FOLLOWED: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "dependencies",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Holds the keywords that refuse values which the types here allow, rare as they are."""

_NULL_ONLY = Rules(kinds=frozenset({"null"}))


@dataclass(slots=True)
class _Parsed:
    # Its key is an object's identity, which must not be given away again while this is held.
    at: Location
    rules: list[Rules] = field(default_factory=list[Rules])
    in_place: list[Location] = field(default_factory=list[Location])
    choices: list[list[Branch]] = field(default_factory=list[list[Branch]])


Alternative = tuple[Rules, ...]


def kinds_of(rules: Alternative) -> list[str]:
    """Gives the kinds of values that an alternative allows."""
    return [kind for kind in ALL_KINDS if all(rule.kinds is None or kind in rule.kinds for rule in rules)]


def excluded_by(rules: Alternative) -> set[tuple[Any, ...]]:
    """Gives what an alternative excludes, as `canonical` has it."""
    return {canonical(value) for rule in rules for value in rule.excluded or ()}


def literals_of(rules: Alternative) -> list[Any] | None:
    """Gives the only values that an alternative allows; None where it does not list them."""
    stated = [rule.literals for rule in rules if rule.literals is not None]
    if not stated:
        return None
    kinds, excluded = kinds_of(rules), excluded_by(rules)
    others = [{canonical(value) for value in literals} for literals in stated[1:]]
    integers_only = any(rule.integers_only for rule in rules)
    return [
        value
        for value in stated[0]
        if kind_of(value) in kinds
        and not (integers_only and isinstance(value, float) and not value.is_integer())
        and canonical(value) not in excluded
        and all(canonical(value) in allowed for allowed in others)
    ]


def at_key(groups: Sequence[ObjectRules], key: str) -> list[Location]:
    """Gives the schemas that are certain to apply to what an object has under a key."""
    locations: list[Location] = []
    for group in groups:
        locations.extend(group.every)
        if key in group.properties:
            locations.append(group.properties[key])
        elif not group.every and not group.patterns and group.additional is not None:
            locations.append(group.additional)
    return locations


def at_position(groups: Sequence[ArrayRules], position: int) -> list[Location]:
    """Gives the schemas that apply to one item of an array."""
    here = [group.prefix[position] if position < len(group.prefix) else group.rest for group in groups]
    return [location for location in here if location is not None]


class Alternatives:
    """Multiplies out the applicators of one document; keeps what it has read of each location.

    Args:
        document: The schema.
        spend: Counts work; False once there is too much.
        warn: Takes what is left out, and where.
    """

    def __init__(
        self,
        document: Document,
        spend: Callable[[int], bool],
        warn: Callable[[str, Location | None], None],
    ) -> None:
        self._document = document
        self._spend = spend
        self._warn = warn
        self._parsed: dict[tuple[object, ...], _Parsed] = {}

    def expand(self, locations: Sequence[Location]) -> list[Alternative]:
        """Gives the alternatives of the conjunction of `locations`; none when no value fits."""
        return self._expand(list(locations), set(), 0)

    def target(self, reference: str, here: Location) -> Location | None:
        """Finds where a `$ref` leads; a warning when that is nowhere in this document."""
        found = self._document.resolve(reference, here)
        if found is None:
            local = reference.startswith("#")
            why = "leads nowhere; any value is allowed" if local else "leaves the schema; it is not fetched"
            self._warn(f'The reference "{reference[:120]}" {why}.', here)
        return found

    def _expand(self, start: Branch, seen: set[tuple[object, ...]], nesting: int) -> list[Alternative]:
        flat = self._flatten(start, seen)
        if flat is None:
            return []
        rules, choices = flat
        alternatives: list[Alternative] = [tuple(rules)] if _compatible(rules) else []
        if nesting > _MAX_NESTING or (choices and not self._spend(sum(map(len, choices)))):
            self._warn(
                "Alternatives are nested too deeply; some are left out and any of them is allowed.", None
            )
            return alternatives
        for branches in choices:
            if not alternatives:
                break
            options = [one for branch in branches for one in self._expand(branch, set(seen), nesting + 1)]
            if (
                min(len(alternatives), len(options)) > 1
                and len(alternatives) * len(options) > MAX_ALTERNATIVES
            ):
                self._warn(
                    "Too many alternatives combine; some are left out and any of them is allowed.", None
                )
                continue
            alternatives = [
                (*one, *other) for one in alternatives for other in options if _compatible((*one, *other))
            ]
        return alternatives

    def _flatten(
        self, start: Branch, seen: set[tuple[object, ...]]
    ) -> tuple[list[Rules], list[list[Branch]]] | None:
        rules: list[Rules] = []
        choices: list[list[Branch]] = []
        waiting: deque[Location | Rules] = deque(start)
        while waiting:
            here = waiting.popleft()
            if isinstance(here, Rules):
                rules.append(here)
                continue
            if here.value is False:
                return None
            # A schema that contains itself in place adds nothing the second time.
            if here.key in seen:
                continue
            if len(seen) >= MAX_CONJUNCTS:
                self._warn("Too many schemas apply to one value; the rest is left out.", here)
                break
            seen.add(here.key)
            parsed = self._read(here)
            rules.extend(parsed.rules)
            choices.extend(parsed.choices)
            waiting.extendleft(reversed(parsed.in_place))
        return rules, choices

    def _read(self, here: Location) -> _Parsed:
        known = self._parsed.get(here.key)
        if known is not None:
            return known
        parsed = self._parsed[here.key] = _Parsed(here)
        schema = as_object(here.value)
        if schema is None:
            return parsed
        if schema.get("nullable") is True:
            plain = {key: value for key, value in schema.items() if key != "nullable"}
            parsed.choices.append([[Location(plain, here.is_foreign, here.pointer)], [_NULL_ONLY]])
            return parsed
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = self.target(reference, here)
            if found is not None:
                parsed.in_place.append(found)
            if self._document.stated != "2020-12":
                return parsed
        for word in filter(schema.__contains__, _NOT_FOLLOWED):
            self._warn(f"{word} is not followed here; more values may be allowed.", here)
        document = self._document
        parsed.rules.append(rules := read_rules(document, here, schema))
        if "type" in schema and rules.kinds is None:
            self._warn("The type is none of JSON Schema's; any value is allowed.", here)
        parts = enumerate(as_list(schema.get("allOf")))
        parsed.in_place.extend(document.child(here, part, "allOf", str(at)) for at, part in parts)
        parsed.choices.extend(read_choices(document, here, schema))
        return parsed


def _compatible(rules: Sequence[Rules]) -> bool:
    stated = [rule.kinds for rule in rules if rule.kinds is not None]
    return not stated or bool(frozenset[str].intersection(*stated))
