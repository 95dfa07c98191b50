"""Says of raw JSON, without decoding it, whether it may be decoded on the broker's loop."""

from __future__ import annotations

from typing import Final

LIGHT_BYTES: Final = 256 * 1024
"""Decoding so much text takes at most 3 ms, whatever is in it but containers."""

LIGHT_CONTAINERS: Final = 50_000
"""Arrays and objects take most of the time and memory (64 bytes for two in the text). So many take 5 ms."""


def is_light(raw: bytes) -> bool:
    """Whether JSON text is small enough for the loop. Brackets within texts count too: this looks at bytes alone, in
    linear native time, and not even at those of what is too long or too short for it."""
    size = len(raw)
    # Each takes two bytes.
    return size <= 2 * LIGHT_CONTAINERS or (size <= LIGHT_BYTES and containers_in(raw) <= LIGHT_CONTAINERS)


def containers_in(raw: bytes) -> int:
    """How many arrays and objects JSON text has at most."""
    return raw.count(b"[") + raw.count(b"{")
