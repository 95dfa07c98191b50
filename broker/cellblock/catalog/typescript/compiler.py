"""Compiles schema locations to shapes: one definition for each distinct conjunction of locations.

Soundness rule: every JSON value that the schema allows belongs to the shape. Where that cannot be had
exactly the shape is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cellblock.catalog.typescript.alternatives import Alternative, Alternatives
from cellblock.catalog.typescript.arrays import array_shape
from cellblock.catalog.typescript.budget import Budget
from cellblock.catalog.typescript.docs import Docs
from cellblock.catalog.typescript.document import (
    ANNOTATIONS,
    SCHEMA_WORDS,
    Document,
    Location,
    as_list,
    as_object,
)
from cellblock.catalog.typescript.keywords import canonical, exclusions, kind_of
from cellblock.catalog.typescript.limits import MAX_DEPTH, MAX_ENUM_MEMBERS
from cellblock.catalog.typescript.literals import literal_shape, widened
from cellblock.catalog.typescript.negation import ALL_KINDS
from cellblock.catalog.typescript.objects import object_shape
from cellblock.catalog.typescript.shapes import (
    ANY_ARRAY,
    NEVER,
    OPEN_OBJECT,
    UNKNOWN,
    Array,
    Definition,
    Definitions,
    Keyword,
    Literal,
    Object,
    Ref,
    Shape,
    Union,
    union,
)
from cellblock.catalog.typescript.text import pascal_case

_WRAPPER_WORDS = ANNOTATIONS | {"$defs", "definitions"}
_MAX_HOPS = 32
_STRUCTURAL = SCHEMA_WORDS - {"unevaluatedItems", "unevaluatedProperties"}


class Compiler:
    """Compiles locations of one document; `definitions` holds everything a `Ref` can mean."""

    def __init__(self, document: Document, budget: Budget, docs: Docs) -> None:
        self.definitions: Definitions = {}
        self.budget = budget
        self.docs = docs
        self._document = document
        self._alternatives = Alternatives(document, budget)
        self._open: set[tuple[object, ...]] = set()
        self._same_value: set[tuple[object, ...]] = set()
        self._depth = 0

    def compile(self, locations: Sequence[Location]) -> Shape:
        """Gives the shape of the values that all `locations` allow."""
        outer, self._same_value = self._same_value, set()
        try:
            return self._compile(locations)
        finally:
            self._same_value = outer

    def _compile(self, locations: Sequence[Location]) -> Shape:
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
        if key in self._same_value:
            # A union that contains itself with nothing in between: no alias can say that, so it says nothing.
            return UNKNOWN
        if key in self._open:
            return Ref(key)
        known = self.definitions.get(key)
        if known is not None:
            return _by_reference(known.shape, key)
        if self._depth >= MAX_DEPTH:
            self.budget.warn(
                "The schema is nested too deeply; the type is unknown from here on.", locations[0]
            )
            return UNKNOWN
        if not self.budget.spend():
            self.budget.warn("The schema is too large; the rest of it is unknown.")
            return UNKNOWN
        chosen = list(distinct.values())
        self._open.add(key)
        self._same_value.add(key)
        self._depth += 1
        try:
            branches = self._plain_union(chosen)
            if branches is None:
                members = [self._alternative(one, chosen[0]) for one in self._alternatives.of(chosen)]
            else:
                members = [self._compile([branch]) for branch in branches]
        finally:
            self._depth -= 1
            self._open.discard(key)
        shape = union(members)
        self.definitions[key] = Definition(shape, _name_hint(chosen))
        return _by_reference(shape, key)

    def resolved(self, shape: Shape) -> Shape:
        """Gives the shape itself where a `Ref` to a finished definition stands; else the argument."""
        while isinstance(shape, Ref) and shape.key in self.definitions:
            shape = self.definitions[shape.key].shape
        return shape

    def _unwrapped(self, location: Location) -> Location:
        """Gives the location behind a bare `$ref` or a one-member allOf: equal meanings share a definition."""
        for _ in range(_MAX_HOPS):
            schema = as_object(location.value)
            if schema is None:
                return location
            words = schema.keys() - _WRAPPER_WORDS
            reference, parts = schema.get("$ref"), as_list(schema.get("allOf"))
            if words == {"$ref"} and isinstance(reference, str):
                found = self._alternatives.target(reference, location)
                if found is None:
                    return location
                location = found
            elif words == {"allOf"} and len(parts) == 1:
                location = self._document.child(location, parts[0], "allOf", "0")
            else:
                return location
        return location

    def _plain_union(self, locations: list[Location]) -> list[Location] | None:
        """Gives the branches of a schema that is one anyOf or oneOf and no more: each keeps its definition."""
        schema = as_object(locations[0].value)
        if len(locations) > 1 or schema is None:
            return None
        words = schema.keys() - _WRAPPER_WORDS
        for word in ("anyOf", "oneOf"):
            branches = as_list(schema.get(word))
            if words == {word} and branches and not (word == "oneOf" and exclusions(branches)):
                return [
                    self._document.child(locations[0], one, word, str(at)) for at, one in enumerate(branches)
                ]
        return None

    def _alternative(self, rules: Alternative, where: Location) -> Shape:
        kinds = list(ALL_KINDS)
        integers_only = False
        excluded: set[tuple[Any, ...]] = set()
        for rule in rules:
            if rule.kinds is not None:
                kinds = [kind for kind in kinds if kind in rule.kinds]
            integers_only = integers_only or rule.integers_only
            excluded.update(canonical(value) for value in rule.excluded or ())
        literals = _common_literals(rules)
        if literals is not None:
            fitting = [
                value
                for value in literals
                if kind_of(value) in kinds
                and not (integers_only and isinstance(value, float) and not value.is_integer())
                and canonical(value) not in excluded
            ]
            return self._literals(fitting, where)
        return union([self._of_kind(kind, rules, excluded) for kind in kinds])

    def _literals(self, values: list[Any], where: Location) -> Shape:
        if len(values) > MAX_ENUM_MEMBERS:
            self.budget.warn(f"The enum has {len(values)} members; only their kinds are declared.", where)
            return union([widened(value) for value in values])
        return union([literal_shape(value, self.budget, where) for value in values])

    def _of_kind(self, kind: str, rules: Alternative, excluded: set[tuple[Any, ...]]) -> Shape:
        if kind == "object":
            groups = [rule.objects for rule in rules if rule.objects is not None]
            return object_shape(groups, self) if groups else OPEN_OBJECT
        if kind == "array":
            lists = [rule.arrays for rule in rules if rule.arrays is not None]
            return array_shape(lists, self.compile) if lists else ANY_ARRAY
        if kind == "null":
            return NEVER if ("null", None) in excluded else Keyword("null")
        if kind == "boolean":
            left = [value for value in (True, False) if ("boolean", value) not in excluded]
            return Keyword("boolean") if len(left) == 2 else union([Literal(value) for value in left])
        return Keyword(kind)


def _common_literals(rules: Alternative) -> list[Any] | None:
    common: list[Any] | None = None
    for rule in rules:
        if rule.literals is not None:
            if common is None:
                common = rule.literals
            else:
                allowed = {canonical(value) for value in rule.literals}
                common = [value for value in common if canonical(value) in allowed]
    return common


def _by_reference(shape: Shape, key: tuple[object, ...]) -> Shape:
    return Ref(key) if isinstance(shape, Object | Array | Union) else shape


def _name_hint(locations: list[Location]) -> str:
    for location in locations:
        # The last step that a person chose: `$defs/Node` gives Node, `properties/tags/items` gives Tags.
        for step in reversed(location.pointer):
            name = "" if step.isdigit() or step in _STRUCTURAL else pascal_case(step)
            if name:
                return name
    return ""
