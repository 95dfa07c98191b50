"""Measures how large a JSON value is, depth by depth, and abridges large ones."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cellblock.base.json import is_array, is_object

MAX_VALUES: Final = 200_000
"""Sets the most JSON values in an input that is checked on the loop."""

KEPT_CHARS: Final = 500
KEPT_ITEMS: Final = 10


class NotCheckable(Exception):
    """The cost of a schema or value has no bound, or too high a one; the text says why."""


class Level(NamedTuple):
    """Counts what lies at one depth of a value: values, characters of texts and keys, sum of squared array lengths."""

    values: int
    chars: int
    squares: int


def measured(value: Any, max_values: int = MAX_VALUES) -> list[Level]:
    """Sizes a value, depth by depth.

    Raises:
        NotCheckable: Over `max_values`.
    """
    levels: list[Level] = []
    level: list[Any] = [value]
    count = keys = 0
    while level:
        count += len(level)
        chars, squares = keys, 0
        keys = 0
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                chars += len(item)
            elif is_object(item):
                keys += sum(map(len, item))
                below += item.values()
            elif is_array(item):
                squares += len(item) ** 2
                below += item
            if count + len(below) > max_values:
                raise NotCheckable(f"it has over {max_values} values")
        # A key is matched both by its object's patterns and, as a value, by propertyNames.
        levels.append(Level(len(level), chars + keys, squares))
        level = below
    return levels


def abridged(value: Any, path: tuple[str | int, ...], cut: set[tuple[str | int, ...]]) -> Any:
    """Copies a value with long texts and arrays cut off, and notes where. Recursion ends with the input's capped
    depth."""
    if isinstance(value, str):
        if len(value) > KEPT_CHARS:
            cut.add(path)
            return value[:KEPT_CHARS]
        return value
    if is_array(value):
        if len(value) > KEPT_ITEMS:
            cut.add(path)
        return [abridged(item, (*path, index), cut) for index, item in enumerate(value[:KEPT_ITEMS])]
    if is_object(value):
        return {key: abridged(item, (*path, key), cut) for key, item in value.items()}
    return value
