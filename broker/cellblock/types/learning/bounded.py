"""Takes a bounded part of a large result to learn from: its arrays shortened, its texts cut, all its members there."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from cellblock.tools.catalog.outputs import ResultKind

LEARNT_BYTES: Final = 128 * 1024
"""Bounds the part of one result that is looked at."""

SHOWN_CHARS: Final = 200
"""Sets what is left of a text that is over its share."""

_items: Final = msgspec.json.Decoder(list[Raw])
_fields: Final = msgspec.json.Decoder(dict[str, Raw])


def bounded_part(body: bytes, most: int = LEARNT_BYTES) -> bytes | None:
    """Returns JSON of about `most` bytes; None where an object has too many members for that.

    Args:
        body: JSON that is known to be well-formed.
        most: Bytes.
    """
    if len(body) <= most:
        return body
    first = body[:1]
    if first == b'"':
        text: str = msgspec.json.decode(body)
        return msgspec.json.encode(text[:SHOWN_CHARS])
    if first == b"[":
        taken: list[Raw] = []
        left = most
        for item in _items.decode(body):
            part = bounded_part(bytes(item), most // 4)
            if part is None or len(part) > left:
                break
            taken.append(Raw(part))
            left -= len(part)
        return msgspec.json.encode(taken) if taken else None
    if first != b"{":
        return None
    fields = _fields.decode(body)
    share = most // max(1, len(fields))
    parts = {name: bounded_part(bytes(value), max(share, SHOWN_CHARS)) for name, value in fields.items()}
    if len(fields) > most // SHOWN_CHARS or None in parts.values():
        return None
    return msgspec.json.encode({name: Raw(part) for name, part in parts.items() if part is not None})


def part_of(kind: ResultKind, body: bytes) -> bytes | None:
    """Returns the part of a result that is looked at, the very bytes where that is all of it; None for none."""
    if len(body) <= LEARNT_BYTES:
        return body
    try:
        if kind != "text":
            return bounded_part(body)
        # Of a text it is the JSON in it, if any.
        text: str = msgspec.json.decode(body)
        inner = text.strip().encode()
        if inner[:1] not in (b"[", b"{"):
            return bounded_part(body)
        part = bounded_part(inner)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if part is None else msgspec.json.encode(part.decode())
