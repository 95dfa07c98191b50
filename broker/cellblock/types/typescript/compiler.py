"""Compiles schema locations to shapes: one definition for each distinct conjunction of locations.

Soundness rule: every JSON value that the schema allows belongs to the shape. Where that cannot be had
exactly the shape is wider.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cellblock.tools.schemas.alternatives import (
    Alternative,
    Alternatives,
    ArrayRules,
    ObjectRules,
    at_key,
    at_position,
    excluded_by,
    kind_of,
    kinds_of,
    literals_of,
)
from cellblock.tools.schemas.document import (
    ANNOTATIONS,
    BELOW_LIST,
    BELOW_ONE,
    IN_PLACE_LIST,
    IN_PLACE_ONE,
    MAPS,
    TRUE,
    Document,
    Location,
    as_list,
    as_object,
)
from cellblock.types.typescript.docs import Docs
from cellblock.types.typescript.limits import (
    MAX_DEPTH,
    MAX_ENUM_MEMBERS,
    MAX_KEY_CHARS,
    MAX_LITERAL_CHARS,
    MAX_LITERAL_NODES,
    MAX_PADDING,
    MAX_TUPLE,
    Budget,
)
from cellblock.types.typescript.shapes import (
    ANY_ARRAY,
    NEVER,
    OPEN_OBJECT,
    UNKNOWN,
    Array,
    Definitions,
    Keyword,
    Literal,
    Never,
    Object,
    Property,
    Ref,
    Shape,
    Union,
    Unknown,
    union,
)
from cellblock.types.typescript.text import pascal_case, string_literal

_WRAPPER_WORDS = ANNOTATIONS | {"$defs", "definitions"}
_SCHEMA_WORDS = frozenset({*IN_PLACE_ONE, *IN_PLACE_LIST, *BELOW_ONE, *BELOW_LIST, *MAPS})
_MAX_HOPS = 32
CIRCLE: Final = "References lead back to where they began; any value is allowed."
_MAX_EXACT = 2**53
_EXACT = Union((Keyword("number"), Keyword("bigint")))
"""Is what numbers are to a script that gets large integers as bigints."""


class _TooLarge(Exception):
    """Tells that a literal value is too large to declare."""


class Compiler:
    """Compiles locations of one document.

    Args:
        document: The schema.
        definitions: Holds everything a `Ref` can mean, of all schemas of one text.
        shared: Holds the `Ref` of each shape that is not recursive.
        recursive: Holds the others.
        name: Hints at a name of the whole.
        reading: Whether agents read the text: an object that may have any other key does not say so.
        exact: Whether integers that numbers cannot have are bigints.
    """

    def __init__(
        self,
        document: Document,
        definitions: Definitions,
        shared: dict[Shape, Ref],
        recursive: set[Ref],
        name: str,
        *,
        reading: bool,
        exact: bool,
    ) -> None:
        self.budget = Budget()
        self.docs = Docs(document)
        self.reading = reading
        self._definitions, self._shared, self._recursive, self._name = definitions, shared, recursive, name
        self._number: Shape = _EXACT if exact else Keyword("number")
        self._document = document
        self._alternatives = Alternatives(document, self.budget.spend, self.budget.warn)
        self._known: dict[tuple[object, ...], Shape] = {}
        self._open: dict[tuple[object, ...], Ref] = {}

    def compile(self, locations: Sequence[Location], unions: tuple[object, ...] = ()) -> Shape:
        """Gives the shape of the values that all `locations` allow, as a branch of `unions`, by their keys."""
        distinct: dict[tuple[object, ...], Location] = {}
        for location in locations:
            plain = self._unwrapped(location)
            if plain.value is False:
                return NEVER
            if plain.value is not True:
                distinct.setdefault(plain.key, plain)
        if not distinct:
            return UNKNOWN
        key = tuple(distinct)
        if key in unions:
            # A union that contains itself with nothing in between: no alias can say that, so it says nothing.
            self.budget.warn(CIRCLE, locations[0])
            return UNKNOWN
        if key in self._open:
            self._recursive.add(self._open[key])
            return self._open[key]
        if key in self._known:
            return self._known[key]
        if len(self._open) >= MAX_DEPTH:
            self.budget.warn(
                "The schema is nested too deeply; the type is unknown from here on.", locations[0]
            )
            return UNKNOWN
        if not self.budget.spend():
            self.budget.warn("The schema is too large; the rest of it is unknown.")
            return UNKNOWN
        chosen = list(distinct.values())
        ref = self._open[key] = Ref(len(self._definitions), _name_hint(chosen) or self._name)
        self._definitions[ref.key] = UNKNOWN
        branches = self._branches(chosen[0]) if len(chosen) == 1 else []
        if branches:
            members = [self.compile([branch], (*unions, key)) for branch in branches]
        else:
            members = [self._alternative(one, chosen[0]) for one in self._alternatives.expand(chosen)]
        del self._open[key]
        shape = self._definitions[ref.key] = union(members)
        if ref in self._recursive:
            shape = ref
        elif isinstance(shape, Object | Array | Union):
            shape = self._shared.setdefault(shape, ref)
        self._known[key] = shape
        return shape

    def resolved(self, shape: Shape) -> Shape:
        """Gives the shape itself where a `Ref` stands; else the argument."""
        while isinstance(shape, Ref):
            shape = self._definitions[shape.key]
        return shape

    def _unwrapped(self, location: Location, seen: tuple[object, ...] = ()) -> Location:
        """Gives the location behind a bare `$ref` or a one-member allOf: equal meanings share a definition."""
        schema = as_object(location.value) or {}
        words = schema.keys() - _WRAPPER_WORDS
        reference, parts = schema.get("$ref"), as_list(schema.get("allOf"))
        inner: Location | None = None
        if location.key in seen:
            self.budget.warn(CIRCLE, location)
        elif len(seen) < _MAX_HOPS and words == {"$ref"} and isinstance(reference, str):
            inner = self._alternatives.target(reference, location)
        elif len(seen) < _MAX_HOPS and words == {"allOf"} and len(parts) == 1:
            inner = self._document.child(location, parts[0], "allOf", "0")
        return location if inner is None else self._unwrapped(inner, (*seen, location.key))

    def _branches(self, here: Location) -> list[Location]:
        """Gives the branches of a schema that is one anyOf or oneOf and no more: each keeps its definition."""
        schema = as_object(here.value) or {}
        words = schema.keys() - _WRAPPER_WORDS
        for word in ("anyOf", "oneOf"):
            if words == {word}:
                parts = enumerate(as_list(schema[word]))
                return [self._document.child(here, part, word, str(at)) for at, part in parts]
        return []

    def _alternative(self, rules: Alternative, where: Location) -> Shape:
        literals = literals_of(rules)
        if literals is not None:
            return self._literals(literals, where)
        excluded = excluded_by(rules)
        return union([self._of_kind(kind, rules, excluded) for kind in kinds_of(rules)])

    def _literals(self, values: list[Any], where: Location) -> Shape:
        if len(values) > MAX_ENUM_MEMBERS:
            self.budget.warn(f"The enum has {len(values)} members; only their kinds are declared.", where)
            return union([self._widened(value) for value in values])
        members: list[Shape] = []
        for value in values:
            try:
                members.append(self._literal(value, iter(range(MAX_LITERAL_NODES))))
            except _TooLarge:
                self.budget.warn("A literal value is too large to declare; only its kind is.", where)
                members.append(self._widened(value))
        return union(members)

    def _of_kind(self, kind: str, rules: Alternative, excluded: set[tuple[Any, ...]]) -> Shape:
        match kind:
            case "object":
                groups = [rule.objects for rule in rules if rule.objects is not None]
                return object_shape(groups, self) if groups else OPEN_OBJECT
            case "array":
                lists = [rule.arrays for rule in rules if rule.arrays is not None]
                return array_shape(lists, self) if lists else ANY_ARRAY
            case "number":
                return self._number
            case "null":
                return NEVER if ("null", None) in excluded else Keyword(kind)
            case "boolean":
                left = [value for value in (True, False) if ("boolean", value) not in excluded]
                return Keyword(kind) if len(left) == 2 else union([_scalar(value) for value in left])
            case _:
                return Keyword(kind)

    def _widened(self, value: object) -> Shape:
        """Gives the kind of a JSON value alone."""
        return self._of_kind(kind_of(value), (), set())

    def _literal(self, value: Any, left: Iterator[int], depth: int = 0) -> Shape:
        """Gives the shape of exactly one JSON value; `left` counts down the values that may be in it."""
        if depth > MAX_DEPTH or next(left, None) is None:
            raise _TooLarge
        kind = kind_of(value)
        if kind == "array":
            return Array(tuple(self._literal(item, left, depth + 1) for item in value), len(value))
        if kind == "object" and all(len(str(key)) <= MAX_KEY_CHARS for key in value):
            return Object(
                tuple(
                    Property(str(key), self._literal(item, left, depth + 1), True)
                    for key, item in value.items()
                )
            )
        if kind == "object" or (kind == "string" and len(value) > MAX_LITERAL_CHARS):
            raise _TooLarge
        # JavaScript holds no other number past this size exactly, so nothing narrower is certain.
        inexact = kind == "number" and not abs(value) <= _MAX_EXACT
        return self._widened(value) if kind == "null" or inexact else _scalar(value)


def _scalar(value: str | float | bool) -> Literal:
    if isinstance(value, str):
        return Literal(string_literal(value), "string")
    if isinstance(value, bool):
        return Literal("true" if value else "false", "boolean")
    return Literal(repr(int(value) if value == int(value) else value), "number")


def _name_hint(locations: list[Location]) -> str:
    # The last step that a person chose: `$defs/Node` gives Node, `properties/tags/items` gives Tags.
    steps = (step for location in locations for step in reversed(location.pointer))
    names = (pascal_case(step) for step in steps if not step.isdigit() and step not in _SCHEMA_WORDS)
    return next(filter(None, names), "")


def object_shape(groups: list[ObjectRules], compiler: Compiler) -> Shape:
    """Gives the objects that all groups allow; `Never` when there are none."""
    required = dict.fromkeys(key for group in groups for key in group.required)
    if any(group.empty_only for group in groups):
        return NEVER if required else Object()
    declared = dict.fromkeys([*(key for group in groups for key in group.properties), *required])
    keys = [key for key in declared if len(key) <= MAX_KEY_CHARS]
    properties = [_property(key, key in required, groups, compiler) for key in keys]
    if any(one.required and isinstance(one.shape, Never) for one in properties):
        return NEVER
    others = _others(groups, compiler)
    if len(keys) < len(declared):
        compiler.budget.warn("A property key is too long to declare; its object is left open.")
        others = UNKNOWN
    elif isinstance(others, Unknown) and any(group.patterns for group in groups):
        compiler.budget.warn("Keys of a pattern have a type that is not declared here.")
    if isinstance(others, Never):
        # A key that may not be there needs saying only where an index signature would let it in.
        return Object(tuple(one for one in properties if not isinstance(one.shape, Never)))
    if compiler.reading and isinstance(others, Unknown):
        return Object(tuple(properties)) if properties else OPEN_OBJECT
    return Object(tuple(properties), others)


def _property(key: str, required: bool, groups: list[ObjectRules], compiler: Compiler) -> Property:
    locations = at_key(groups, key)
    shape = compiler.compile(locations)
    prose, facts = compiler.docs.of_property(key, locations)
    warnings = (f"Warning: {sentence}" for sentence in compiler.budget.take_unplaced())
    return Property(key, shape, required, (*prose, *facts, *warnings), len(prose))


def _others(groups: list[ObjectRules], compiler: Compiler) -> Shape:
    """Gives what a key may hold that no group names."""
    certain: list[Location] = []
    choices: list[Location] = [TRUE]
    for group in groups:
        additional = TRUE if group.additional is None else group.additional
        if group.every or not group.patterns:
            certain.extend(group.every or [additional])
        else:
            choices = [additional, *group.patterns]
    return union([compiler.compile([*certain, one]) for one in choices])


def array_shape(groups: list[ArrayRules], compiler: Compiler) -> Shape:
    """Gives the arrays that all groups allow; `Never` when there are none."""
    minimum = max(group.minimum for group in groups)
    maximum = min((group.maximum for group in groups if group.maximum is not None), default=sys.maxsize)
    rest = compiler.compile([group.rest for group in groups if group.rest is not None])
    items: list[Shape] = []
    for position in range(max(len(group.prefix) for group in groups)):
        items.append(compiler.compile(at_position(groups, position)))
        if isinstance(items[-1], Never):
            # No value fits this position, so every array ends in front of it.
            items.pop()
            rest = NEVER
            break
    if maximum < len(items):
        items, rest = items[:maximum], NEVER
    if isinstance(rest, Never):
        maximum = min(maximum, len(items))
    if minimum > maximum:
        return NEVER
    if len(items) > MAX_TUPLE:
        items, rest = items[:MAX_TUPLE], union([*items[MAX_TUPLE:], rest])
    if isinstance(rest, Never):
        return Array(tuple(items), min(minimum, len(items)))
    if maximum - len(items) <= MAX_PADDING and maximum <= MAX_TUPLE:
        return Array((*items, *[rest] * (maximum - len(items))), minimum)
    if minimum > len(items) + MAX_PADDING:
        # The full number of positions would be noise; the first few still refuse the common mistake.
        minimum = len(items) + 1
    return Array((*items, *[rest] * max(0, minimum - len(items))), minimum, rest)
