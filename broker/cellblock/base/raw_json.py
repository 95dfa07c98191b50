"""JSON that is passed on as its bytes, what can be said of such bytes without decoding them, and how much Python data
is, without encoding it.

Large work on the event loop is done in steps, and a pass of the loop has at most one of them, whoever's it is: those of
many clients and servers never add up to one long hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic_core import from_json

LIGHT_BYTES: Final = 256 * 1024
"""Bounds the text that takes at most 3 ms to decode, whatever is in it but containers."""

LIGHT_CONTAINERS: Final = 50_000
"""Bounds arrays and objects, which take most of the time and memory (64 bytes for two in the text). So many take 5
ms."""

MOST_VALUES: Final = 100_000
"""Bounds the values that are decoded, or checked against a schema, in one step."""

MANY_CONTAINERS: Final = 1_000_000
MANY_CONTAINERS_BYTES: Final = 4 * 1024 * 1024
"""Bounds JSON of more arrays and objects than `MANY_CONTAINERS`: those take most of the time."""


_BUT_SIGNS: Final = bytes(set(range(256)) - set(b'[]{}",'))
_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = [1 if byte in b"[{" else -1 for byte in range(256)]

_WAITING: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]()


@dataclass(frozen=True, slots=True)
class RawJson:
    """Holds JSON text in UTF-8 that is known to be well-formed."""

    raw: bytes

    def decoded(self) -> Any:
        """Returns the value that the JSON stands for. On the loop, for whoever asks for it and so waits for it."""
        return from_json(self.raw)


def is_light(raw: bytes) -> bool:
    """Says whether JSON text is little. Brackets within texts count too: this looks at bytes alone, in linear native
    time, and not even at those of what is too long or too short for it.
    """
    size = len(raw)
    # Each takes two bytes.
    return size <= 2 * LIGHT_CONTAINERS or (size <= LIGHT_BYTES and containers_in(raw) <= LIGHT_CONTAINERS)


def containers_in(raw: bytes) -> int:
    """Returns how many arrays and objects JSON text has at most."""
    return raw.count(b"[") + raw.count(b"{")


def values_in(raw: bytes) -> int:
    """Returns how many values JSON text has at most; what looks like one within a text counts too."""
    few = raw.translate(None, _BUT_SIGNS)
    return few.count(b",") + containers_in(few) - few.count(b"[]") - few.count(b"{}")


def has_many_containers(raw: bytes) -> bool:
    """Says whether JSON text is over what is read of so many arrays and objects."""
    return len(raw) > MANY_CONTAINERS_BYTES and containers_in(raw) > MANY_CONTAINERS


def brackets_of(raw: bytes) -> bytes:
    """Returns the brackets of well-formed JSON, without those in its texts."""
    if b"\\" in raw:
        # Without escapes, each quote is the beginning or the end of a text.
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = raw.translate(None, _BUT_BRACKETS).replace(b'""', b"")
    return b"".join(bare.split(b'"')[::2]) if b'"' in bare else bare


def depths(brackets: bytes, before: int = 0) -> tuple[int, int]:
    """Returns the greatest depth that brackets lead to, and the one after the last of them; 30 ns for each."""
    found = list(accumulate(map(_STEPS.__getitem__, brackets), initial=before))
    return max(found), found[-1]


def is_deeper(raw: bytes, most: int) -> bool:
    """Says whether arrays and objects of well-formed JSON nest over a bound; each takes two bytes of it."""
    if len(raw) <= 2 * most:
        return False
    brackets = brackets_of(raw)
    # Each of the two takes at most one level, and in most JSON most brackets, away.
    inner = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return containers_in(inner) + 2 > most and depths(brackets)[0] > most


TEXT_CHARS: Final = 16
"""Counts so many characters of a text as one value more: values of that size take about as long to encode."""

ROW_NAMES: Final = 64
"""Bounds the names of one object that are kept, to know them in others."""

_SCALARS: Final = frozenset({int, float, bool, type(None)})
"""Has the types of most values that are no texts; they weigh nothing more."""

_kind_of: Callable[[object], type[object]] = type


def is_small(value: object) -> bool:
    """Says whether data of any kind is little enough for the loop to encode it; looks at no more of it than that."""
    return weight_of(value, LIGHT_BYTES // TEXT_CHARS) <= LIGHT_BYTES // TEXT_CHARS


def weight_of(value: object, most: int) -> int:
    """Returns how many values data has, with what its texts count for; of what has over `most`, some number over it."""
    weight = 0
    waiting: list[Collection[Any]] = [(value,)]
    # Names that weigh nothing more: rows have the same ones, and are looked at in one step.
    light: set[object] = set()
    while waiting and weight <= most:
        members = waiting.pop()
        weight += len(members)
        for item in members if weight <= most else ():
            # By the type itself: of most values it says all.
            kind = _kind_of(item)
            if kind is str:
                weight += len(item) // TEXT_CHARS
            elif kind is dict:
                waiting.append(item.values())
                if light.issuperset(item):
                    weight += len(item)
                else:
                    waiting.append(item.keys())
                    names = islice(item, ROW_NAMES)
                    light.update(name for name in names if _kind_of(name) is str and len(name) < TEXT_CHARS)
            elif kind is list:
                waiting.append(item)
            elif kind in _SCALARS:
                continue
            elif issubclass(kind, (str, bytes, bytearray, memoryview)):
                weight += len(item) // TEXT_CHARS
            elif issubclass(kind, dict):
                waiting += (item.keys(), item.values())
            elif issubclass(kind, (list, tuple, set, frozenset, deque)):
                waiting.append(item)
            elif not issubclass(kind, (int, float, type, Enum)):
                waiting.append(getattr(item, "__dict__", {}).values())
                if slots := _slots_of(kind):
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


async def next_step() -> None:
    """Waits for a pass of the loop that has no other step; called right before each. First come, first served."""
    loop = asyncio.get_running_loop()
    waiting = _WAITING.setdefault(loop, deque())
    mine = loop.create_future()
    waiting.append(mine)
    if len(waiting) == 1:
        loop.call_soon(_admit, loop, waiting)
    await mine


async def step_for(body: bytes) -> None:
    """Waits as `next_step` before work on a body that is large; for a small one, nothing does."""
    if not is_light(body):
        await next_step()


def _admit(loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        first = waiting.popleft()
        # Who was cancelled has no step to do.
        if not first.done():
            first.set_result(None)
            break
    if waiting:
        loop.call_soon(_admit, loop, waiting)
