"""Merges array rules that apply together position by position into one array or tuple shape."""

from __future__ import annotations

from collections.abc import Callable

from cellblock.catalog.typescript.document import Location
from cellblock.catalog.typescript.keywords import ArrayRules
from cellblock.catalog.typescript.limits import MAX_PADDING, MAX_TUPLE
from cellblock.catalog.typescript.shapes import NEVER, UNKNOWN, Array, Never, Shape, union


def array_shape(groups: list[ArrayRules], compile_: Callable[[list[Location]], Shape]) -> Shape:
    """Gives the arrays that all groups allow; `Never` when there are none."""
    minimum = max(group.minimum for group in groups)
    limits = [group.maximum for group in groups if group.maximum is not None]
    maximum = min(limits) if limits else None
    rest_locations = [group.rest for group in groups if group.rest is not None]
    rest = compile_(rest_locations) if rest_locations else UNKNOWN
    items: list[Shape] = []
    for position in range(max(len(group.prefix) for group in groups)):
        here = [
            group.prefix[position] if position < len(group.prefix) else group.rest
            for group in groups
            if position < len(group.prefix) or group.rest is not None
        ]
        items.append(compile_([location for location in here if location is not None]))
        if isinstance(items[-1], Never):
            # No value fits this position, so every array ends in front of it.
            items.pop()
            rest = NEVER
            break
    if maximum is not None and maximum < len(items):
        items, rest = items[:maximum], NEVER
    if isinstance(rest, Never):
        maximum = len(items) if maximum is None else min(maximum, len(items))
    if maximum is not None and minimum > maximum:
        return NEVER
    if len(items) > MAX_TUPLE:
        items, rest = items[:MAX_TUPLE], union([*items[MAX_TUPLE:], rest])
    return _padded(items, rest, minimum, maximum)


def _padded(items: list[Shape], rest: Shape, minimum: int, maximum: int | None) -> Array | Never:
    if isinstance(rest, Never):
        return Array(tuple(items), min(minimum, len(items)))
    if maximum is not None and maximum - len(items) <= MAX_PADDING and maximum <= MAX_TUPLE:
        return Array((*items, *[rest] * (maximum - len(items))), minimum)
    if minimum > len(items) + MAX_PADDING:
        # The full number of positions would be noise; the first few still refuse the common mistake.
        minimum = len(items) + 1
    return Array((*items, *[rest] * max(0, minimum - len(items))), minimum, rest)
