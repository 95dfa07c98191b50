"""How much Python data is, without encoding it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from cellblock.base.raw_json import LIGHT_BYTES

TEXT_CHARS: Final = 16
"""Counts so many characters of a text as one value more: values of that size take about as long to encode."""


_SCALARS: Final = frozenset({int, float, bool, type(None)})
"""Has the types of most values, which weigh nothing more; others are told apart by what they inherit from."""


def is_small(value: object) -> bool:
    """Says whether data of any kind is little enough for the loop to encode it; looks at no more of it than that."""
    return weight_of(value, LIGHT_BYTES // TEXT_CHARS) <= LIGHT_BYTES // TEXT_CHARS


def weight_of(value: object, most: int) -> int:
    """Returns how many values data has, with what its texts count for; of what has over `most`, some number over it."""
    weight = 0
    waiting: list[Iterable[Any]] = [(value,)]
    while waiting:
        for item in waiting.pop():
            weight += 1
            if weight > most:
                return weight
            # A look at the type itself first: of most values it says all, and of unions each use makes one.
            if type(item) in _SCALARS:
                continue
            if type(item) is list:
                waiting.append(cast("list[Any]", item))
            elif type(item) is str or isinstance(item, str | bytes):
                weight += len(cast("str", item)) // TEXT_CHARS
            elif isinstance(item, dict):
                known = cast("dict[object, Any]", item)
                waiting += (known.keys(), known.values())
            elif isinstance(item, bytearray | memoryview):
                weight += len(cast("bytearray", item)) // TEXT_CHARS
            elif isinstance(item, list | tuple | set | frozenset | deque):
                waiting.append(cast("Iterable[Any]", item))
            elif not isinstance(item, int | float | type | Enum | None):
                waiting.append(getattr(item, "__dict__", {}).values())
                if slots := _slots_of(cast("Any", type(item))):
                    waiting.append([getattr(item, name, None) for name in slots])
    return weight


@lru_cache(maxsize=256)
def _slots_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the slots that instances of a class have beside their `__dict__`."""
    found: list[str] = []
    for base in kind.__mro__:
        slots: Iterable[str] | str = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))
