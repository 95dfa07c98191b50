"""Splits what a server sends into lines, and a stream of server-sent events into events, within a cap. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

from cellblock.tools.upstream.wire.messages import BYTE_ORDER_MARK, ENDS_BYTES, Unreadable, answered_id, read

ENDLESS: Final = 8
"""Sets how many times the cap a line must have to be taken for endless; reading on would only cost time."""

LEAST_RETRY_MS: Final = 100
MOST_RETRY_MS: Final = 30_000
"""Bounds a server's word on when to ask for its stream again: not in a loop, and not when all have forgotten it."""


class Cut(Exception):
    """Tells why nothing more is read of a server; the text goes on from its name, without a full stop."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """Stands for a line that was over the cap, thrown away while it came."""

    size: int
    unread: Unreadable


class LineSplitter:
    """Splits bytes into lines.

    Args:
        cap: Longest line in bytes.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._most = cap
        self._why = ""
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
            Cut: The line under way is over `ENDLESS` times the cap: no end of it is expected.
        """
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes | TooLong] = []
        for end in ends:
            self._add(end)
            lines.append(self._line())
        self._add(rest)
        if self._size > self._cap * ENDLESS:
            raise Cut(f"it sent a line without end, over {self._cap} bytes")
        return lines

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._most:
            come = b"".join(self._parts)
            self._parts.clear()
            self._head = (self._head + come[:ENDS_BYTES])[:ENDS_BYTES]
            self._tail = (self._tail + come[-ENDS_BYTES:])[-ENDS_BYTES:]

    def _line(self) -> bytes | TooLong:
        size, self._size = self._size, 0
        most, self._most = self._most, self._cap
        why, self._why = self._why, ""
        if size <= most:
            line = b"".join(self._parts)
            self._parts.clear()
            return line
        answers = answered_id(self._head, self._tail)
        self._head = self._tail = b""
        return TooLong(size, Unreadable(answers, why or over_cap(size, most), too_large=True))


def over_cap(size: int, cap: int) -> str:
    """Says that a message is over the cap."""
    return f"it has {size} bytes or more, over the maximum of {cap} (twice max_message_bytes, at most 16 MiB)"


class Event(NamedTuple):
    """Holds one server-sent event; what it does not say is empty, or None."""

    data: bytes
    id: str | None = None
    retry_ms: int | None = None
    name: bytes = b"message"


class EventSplitter:
    """Takes bytes and gives events. `held` is how many bytes of the event under way are in memory.

    Events without data tell only where to go on, and when: of those that follow each other in a chunk, one is left.
    """

    def __init__(self) -> None:
        self.held = 0
        self._parts: list[bytes] = []
        self._lines: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Returns the events that end in this chunk."""
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._after_return = chunk.endswith(b"\r")
        *ends, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[Event] = []
        for end in ends:
            self._parts.append(end)
            line = b"".join(self._parts)
            self._parts.clear()
            if line:
                self._lines.append(line)
                self.held += len(end)
                continue
            if self._lines:
                event = _event(self._lines)
                if events and not events[-1].data:
                    last = events.pop()
                    where, wait = event.id or last.id, event.retry_ms or last.retry_ms
                    event = event._replace(id=where, retry_ms=wait)
                events.append(event)
            self._lines = []
            self.held = 0
        if rest:
            self._parts.append(rest)
            self.held += len(rest)
        return events

    def early(self) -> list[Event]:
        """Returns the event under way where it is a message already: some servers send no end of it."""
        under_way = _event([*self._lines, b"".join(self._parts)]).data
        return [] if isinstance(read(under_way), Unreadable) else self.feed(b"\n\n")


def _event(lines: list[bytes]) -> Event:
    fields = defaultdict[bytes, list[bytes]](list)
    for line in lines:
        line = line.removeprefix(BYTE_ORDER_MARK)
        # Some say that they send events, and send JSON.
        field, _, value = (b"data", b"", line) if line.startswith(b"{") else line.partition(b":")
        fields[field].append(value.removeprefix(b" "))
    where, wait, name = (fields[field] for field in (b"id", b"retry", b"event"))
    return Event(
        b"\n".join(fields[b"data"]),
        where[-1].decode("utf-8", "replace") if where else None,
        _retry_ms(wait[-1]) if wait else None,
        next(filter(None, reversed(name)), b"message"),
    )


def _retry_ms(said: bytes) -> int:
    digits = said.strip()[:9]
    return min(max(int(digits) if digits.isdigit() else 0, LEAST_RETRY_MS), MOST_RETRY_MS)
