"""Takes a bounded part of a large result to learn from: its arrays shortened, its texts cut, all its members there."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

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
