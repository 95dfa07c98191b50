"""Takes objects and arrays of servers apart, undecoded. Each member and item is an object of Python's, and a server may
send millions: of what is large, only those are made that somebody reads, and the rest costs a scan. Pure.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

FEW_BYTES: Final = 256 * 1024
"""Bounds what is taken apart whole: so many bytes have at most 131,072 items, which take some 8 ms."""

MOST_ITEMS: Final = 4_096
"""Bounds the items taken of one array, and the messages of a batch; the caps on whole lists are lower."""

MOST_MEMBERS: Final = 100_000
"""Bounds the members of an object that are taken all; they take some 25 ms."""

_READ: Final = (
    *("content", "structuredContent", "isError", "task", "resultType", "ttlMs", "cacheScope", "_meta"),
    *("tools", "resources", "resourceTemplates", "prompts", "nextCursor", "contents", "messages"),
    *("type", "text", "name"),
)
"""Names the members that somebody reads."""

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])
_read: Final = msgspec.json.Decoder(msgspec.defstruct("Read", [(name, Raw, Raw()) for name in _READ]))


@cache
def _first() -> msgspec.json.Decoder[Any]:
    names = [(f"item_{number}", Raw, Raw()) for number in range(MOST_ITEMS)]
    return msgspec.json.Decoder(msgspec.defstruct("First", names, array_like=True))


@lru_cache(64)
def _alone(name: str) -> msgspec.json.Decoder[Any]:
    made = msgspec.defstruct("Alone", [("only", Raw)], rename={"only": name}, forbid_unknown_fields=True)
    return msgspec.json.Decoder(made)


def fields_of(body: bytes) -> dict[str, Raw]:
    """Returns the members of an object; where there may be over `MOST_MEMBERS`, those that somebody reads."""
    if len(body) <= FEW_BYTES or body.count(b":") <= MOST_MEMBERS:
        return _fields.decode(body)
    known = {name: raw for name, raw in msgspec.structs.asdict(_read.decode(body)).items() if memoryview(raw)}
    rest = len(body) - sum(len(memoryview(raw)) for raw in known.values())
    return _fields.decode(body) if rest <= FEW_BYTES else known


def items_of(body: bytes) -> list[bytes]:
    """Returns the first `MOST_ITEMS` of an array."""
    if len(body) <= FEW_BYTES:
        return [bytes(item) for item in _items.decode(body)[:MOST_ITEMS]]
    return [bytes(item) for item in msgspec.structs.astuple(_first().decode(body)) if memoryview(item)]


def member_alone(value: bytes, name: str) -> bytes | None:
    """Returns the member of an object that has no other; None where that is not so."""
    try:
        return bytes(_alone(name).decode(value).only)
    except msgspec.ValidationError:
        return None
