"""Says of raw JSON, without decoding it, and of data, whether the broker's loop may decode or encode it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from cellblock.base.json import is_flat

LIGHT_BYTES: Final = 256 * 1024
"""Bounds the text that takes at most 3 ms to decode, whatever is in it but containers."""

LIGHT_CONTAINERS: Final = 50_000
"""Bounds arrays and objects, which take most of the time and memory (64 bytes for two in the text). So many take 5
ms."""


def is_light(raw: bytes) -> bool:
    """Says whether JSON text is small enough for the loop. Brackets within texts count too: this looks at bytes alone,
    in linear native time, and not even at those of what is too long or too short for it.
    """
    size = len(raw)
    # Each takes two bytes.
    return size <= 2 * LIGHT_CONTAINERS or (size <= LIGHT_BYTES and containers_in(raw) <= LIGHT_CONTAINERS)


def containers_in(raw: bytes) -> int:
    """Returns how many arrays and objects JSON text has at most."""
    return raw.count(b"[") + raw.count(b"{")


TEXT_CHARS: Final = 16
"""Counts so many characters of a text as one value more: values of that size take about as long to encode."""


_SCALARS: Final = frozenset({int, float, bool, type(None)})
"""Has the types of most values, which weigh nothing more; others are told apart by what they inherit from."""


def is_small(value: object) -> bool:
    """Says whether data of any kind is little enough for the loop to encode it; looks at no more of it than that."""
    return is_flat(value) or weight_of(value, LIGHT_BYTES // TEXT_CHARS) <= LIGHT_BYTES // TEXT_CHARS


def weight_of(value: object, most: int, text_chars: int = TEXT_CHARS) -> int:
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
                weight += len(cast("str", item)) // text_chars
            elif isinstance(item, dict):
                known = cast("dict[object, Any]", item)
                waiting += (known.keys(), known.values())
            elif isinstance(item, bytearray | memoryview):
                weight += len(cast("bytearray", item)) // text_chars
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
