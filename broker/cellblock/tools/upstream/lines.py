"""Splits a server's stdout into lines, none longer than a cap: a longer one is thrown away while it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

KEPT_BYTES: Final = 512
"""Sets what is kept of the beginning and the end of a line that is thrown away: where the id of an answer stands."""

ENDLESS: Final = 8
"""Sets how many times the cap a line must have to be taken for endless; reading on would only cost time."""

_ID_AT_START: Final = re.compile(rb'\A\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,18})\s*,')
_ID_AT_END: Final = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')


class EndlessLine(Exception):
    """Tells that a line is over `ENDLESS` times the cap, so that no end of it is expected."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """Stands for a line that was over the cap. `answers` is the id of the request that it was the answer to, where it
    said so at one of its ends; a server that lies there fails its own calls only."""

    size: int
    answers: int | None
    why: str | None = None
    """Says why the line was dropped, where that was not the cap."""


def answered_id(head: bytes, tail: bytes) -> int | None:
    """Returns the id of the request that a line answers, where its beginning or its end says so as most servers write
    it."""
    found = _ID_AT_START.search(head[:KEPT_BYTES]) or _ID_AT_END.search(tail[-KEPT_BYTES:])
    return int(found[1]) if found else None


class LineSplitter:
    """Splits bytes into lines, sans-I/O.

    Args:
        cap: Longest line in bytes.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._most = cap
        self._why: str | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    @property
    def held(self) -> int:
        """Returns bytes of the line under way that are in memory."""
        return self._size if self._size <= self._most else 0

    def throw_away(self, why: str) -> None:
        """Drops the line under way, and the rest of it that is yet to come."""
        self._most, self._why = 0, why
        self._add(b"")

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """Returns the lines that end in this chunk, in order.

        Raises:
            EndlessLine: The line under way is over `ENDLESS` times the cap.
        """
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes | TooLong] = []
        for end in ends:
            self._add(end)
            lines.append(self._line())
        self._add(rest)
        if self._size > self._cap * ENDLESS:
            raise EndlessLine
        return lines

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._most:
            if part:
                self._parts.append(part)
            return
        if self._parts:
            self._head = b"".join(self._parts)
            self._parts.clear()
        if len(self._head) < KEPT_BYTES:
            self._head += part[:KEPT_BYTES]
        self._tail = (self._head + part if not self._tail else self._tail + part)[-KEPT_BYTES:]
        self._head = self._head[:KEPT_BYTES]

    def _line(self) -> bytes | TooLong:
        size, self._size = self._size, 0
        most, self._most = self._most, self._cap
        why, self._why = self._why, None
        if size <= most:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            return line
        answers = answered_id(self._head, self._tail)
        self._head = self._tail = b""
        return TooLong(size, answers, why)
