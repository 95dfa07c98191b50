"""Kept describes an output that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from cellblock.serve.client import Owner

BLOCK_BYTES: Final = 4096
"""Sets what an output takes at least: a page of the database."""

Part = Literal["result", "logs"]


@dataclass(frozen=True, slots=True)
class Output:
    """Holds one output that is to be kept: UTF-8 text."""

    part: Part
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds one output that is kept. Size in bytes, `made_at` in seconds since 1970."""

    output_id: str
    owner: Owner
    part: Part
    mime_type: str
    size: int
    pages: int
    made_at: float

    @property
    def on_disk(self) -> int:
        """Returns what the output counts for, in bytes."""
        return max(1, -(-self.size // BLOCK_BYTES)) * BLOCK_BYTES


class NotKept(Exception):
    """Tells that the client has no output of this id (any more)."""


def cut_at(data: bytes, at: int) -> int:
    """Finds where the next character begins: pages are cut there."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))
