"""Merges the rules of objects and of arrays that apply together: key by key, and position by position."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cellblock.types.typescript.document import Location
from cellblock.types.typescript.keywords import ArrayRules, ObjectRules
from cellblock.types.typescript.limits import MAX_KEY_CHARS, MAX_PADDING, MAX_TUPLE, Budget
from cellblock.types.typescript.patterns import KeyPattern, read_pattern
from cellblock.types.typescript.shapes import (
    INHERITED,
    NEVER,
    UNKNOWN,
    Array,
    Index,
    Literal,
    Never,
    Object,
    Property,
    Shape,
    Union,
    Unknown,
    union,
)

if TYPE_CHECKING:
    from cellblock.types.typescript.compiler import Compiler


def object_shape(groups: list[ObjectRules], compiler: Compiler) -> Shape:
    """Gives the objects that all groups allow; `Never` when there are none."""
    return _Merge(groups, compiler).shape()


class _Merge:
    def __init__(self, groups: list[ObjectRules], compiler: Compiler) -> None:
        self._groups = groups
        self._compiler = compiler
        self._patterns = [[(read_pattern(text), at) for text, at in group.patterns] for group in groups]
        self._allowed = self._allowed_keys()
        self._left_out = False

    def shape(self) -> Shape:
        required = dict.fromkeys(key for group in self._groups for key in group.required)
        if any(group.empty_only for group in self._groups):
            return NEVER if required else Object()
        properties: list[Property] = []
        for key in self._keys(required):
            one = self._property(key, key in required)
            if isinstance(one.shape, Never) and one.required:
                return NEVER
            properties.append(one)
        indexes = self._indexes(properties)
        everything = next((index.shape for index in indexes if index.template is None), None)
        covered = {one.key for index in indexes for one in index.also}
        kept = tuple(
            one
            for one in properties
            # A key that may not be there needs saying only where an index signature would let it in.
            if not isinstance(one.shape, Never) or everything is not None or one.key in covered
        )
        return Object(kept, tuple(indexes))

    def _allowed_keys(self) -> list[str] | None:
        allowed: list[str] | None = None
        for group in self._groups:
            if group.names is None:
                continue
            names = self._compiler.resolved(self._compiler.compile([group.names]))
            members = names.members if isinstance(names, Union) else (names,)
            if not all(isinstance(member, Literal | Never) for member in members):
                continue
            keys = [m.value for m in members if isinstance(m, Literal) and isinstance(m.value, str)]
            allowed = keys if allowed is None else [key for key in allowed if key in keys]
        return allowed

    def _keys(self, required: dict[str, None]) -> list[str]:
        keys: dict[str, None] = {}
        for group in self._groups:
            keys.update(dict.fromkeys(group.properties))
        keys.update(required)
        for patterns in self._patterns:
            exact = [pattern.exact_key for pattern, _ in patterns if pattern is not None]
            keys.update(dict.fromkeys(key for key in exact if key is not None))
        keys.update(dict.fromkeys(self._allowed or ()))
        short = [key for key in keys if len(key) <= MAX_KEY_CHARS]
        if len(short) < len(keys):
            self._left_out = True
            self._compiler.budget.warn("A property key is too long to declare; its object is left open.")
        return short

    def _property(self, key: str, required: bool) -> Property:
        locations: list[Location] = []
        for group, patterns in zip(self._groups, self._patterns, strict=True):
            certain, possible = False, False
            if key in group.properties:
                locations.append(group.properties[key])
                certain = True
            for pattern, at in patterns:
                matched = None if pattern is None else pattern.matches(key)
                if matched:
                    locations.append(at)
                certain, possible = certain or bool(matched), possible or matched is None
            if not certain and not possible and group.additional is not None:
                locations.append(group.additional)
        refused = self._allowed is not None and key not in self._allowed
        shape = NEVER if refused else self._compiler.compile(locations)
        prose, facts = self._compiler.docs.of_property(key, locations)
        doc = (*prose, *facts, *_warnings(self._compiler.budget))
        return Property(key, shape, required, doc, len(prose))

    def _indexes(self, properties: list[Property]) -> list[Index]:
        others = self._other_keys()
        # What a key of no template may hold; a pattern that no template can say adds to it, as it may match.
        wide: list[Shape] = [UNKNOWN if self._left_out else others]
        templates: dict[KeyPattern, Shape] = {}
        if self._allowed is None:
            for group_at, patterns in enumerate(self._patterns):
                for pattern, location in patterns:
                    if pattern is None or not any(pattern.parts):
                        wide.append(self._of_pattern(pattern, location, group_at))
                    elif pattern.exact_key is None and pattern not in templates:
                        templates[pattern] = self._of_pattern(pattern, location, group_at)
        for pattern in [pattern for pattern in templates if not pattern.is_exact]:
            # The template holds keys too that the pattern does not match: they go by the other rules.
            templates[pattern] = union([*wide, *templates.values()])
        indexes: list[Index] = []
        unsaid = tuple(key for key in INHERITED if all(one.key != key for one in properties))
        # Patterns can differ and have one template all the same: `^x-` and `^x-.+`.
        for text, template in {pattern.template: pattern for pattern in templates}.items():
            # TypeScript wants a wider template to allow what a narrower one allows.
            inside = [shape for pattern, shape in templates.items() if pattern.within_template(template)]
            also = tuple(one for one in properties if template.template_covers(one.key))
            inherited = tuple(key for key in unsaid if template.template_covers(key))
            indexes.append(Index(text, union(inside), also, inherited))
        whole = union(wide)
        if isinstance(whole, Never):
            return indexes
        if not isinstance(whole, Unknown):
            whole = union([whole, *templates.values()])
        also = () if isinstance(whole, Unknown) else tuple(properties)
        return [*indexes, Index(None, whole, also, unsaid)]

    def _other_keys(self) -> Shape:
        """Gives what a key may hold that no group names, by property or by pattern."""
        if self._allowed is not None:
            return NEVER
        locations: list[Location] = []
        for group, patterns in zip(self._groups, self._patterns, strict=True):
            every = [at for pattern, at in patterns if pattern is not None and pattern.matches_every_key]
            locations.extend(every)
            if not every and group.additional is not None:
                locations.append(group.additional)
        return self._compiler.compile(locations)

    def _of_pattern(self, pattern: KeyPattern | None, location: Location, group_at: int) -> Shape:
        """Gives what a key may hold that matches the pattern at `location`."""
        locations = [location]
        for at, (group, patterns) in enumerate(zip(self._groups, self._patterns, strict=True)):
            for other, also in patterns:
                if other is not None and (other == pattern or other.certain_for(pattern)):
                    locations.append(also)
            if at != group_at and not patterns and group.additional is not None:
                locations.append(group.additional)
        return self._compiler.compile(locations)


def _warnings(budget: Budget) -> list[str]:
    return [f"Warning: {sentence}" for sentence in budget.take_unplaced()]


def array_shape(groups: list[ArrayRules], compiler: Compiler) -> Shape:
    """Gives the arrays that all groups allow; `Never` when there are none."""
    minimum = max(group.minimum for group in groups)
    maximum = min((group.maximum for group in groups if group.maximum is not None), default=sys.maxsize)
    rest = compiler.compile([group.rest for group in groups if group.rest is not None])
    items: list[Shape] = []
    for position in range(max(len(group.prefix) for group in groups)):
        here = [group.prefix[position] if position < len(group.prefix) else group.rest for group in groups]
        items.append(compiler.compile([location for location in here if location is not None]))
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
