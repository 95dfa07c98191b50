"""Merges the rules of objects and of arrays that apply together: key by key, and position by position.

The regular expressions of `patternProperties` are hostile, and are never given to a regex engine: keys of no property
may have what any of them allows.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cellblock.types.typescript.document import TRUE, Location
from cellblock.types.typescript.keywords import ArrayRules, ObjectRules
from cellblock.types.typescript.limits import MAX_KEY_CHARS, MAX_PADDING, MAX_TUPLE, Budget
from cellblock.types.typescript.shapes import (
    INHERITED,
    NEVER,
    UNKNOWN,
    Array,
    Index,
    Never,
    Object,
    Property,
    Shape,
    Unknown,
    union,
)

if TYPE_CHECKING:
    from cellblock.types.typescript.compiler import Compiler


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
    also = () if isinstance(others, Unknown) else tuple(properties)
    unsaid = tuple(key for key in INHERITED if all(one.key != key for one in properties))
    return Object(tuple(properties), (Index(others, also, unsaid),))


def _property(key: str, required: bool, groups: list[ObjectRules], compiler: Compiler) -> Property:
    locations: list[Location] = []
    for group in groups:
        locations.extend(group.every)
        if key in group.properties:
            locations.append(group.properties[key])
        elif not group.every and not group.patterns and group.additional is not None:
            locations.append(group.additional)
    shape = compiler.compile(locations)
    prose, facts = compiler.docs.of_property(key, locations)
    doc = (*prose, *facts, *_warnings(compiler.budget))
    return Property(key, shape, required, doc, len(prose))


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
