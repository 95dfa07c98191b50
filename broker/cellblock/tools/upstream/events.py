"""Cuts a stream of server-sent events into whole events, and says which data each has. Sans-I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

LEAST_RETRY_MS: Final = 100
MOST_RETRY_MS: Final = 30_000
"""Bounds a server's word on when to ask for its stream again: not in a loop, and not when all have forgotten it."""

_FIELD: Final = b"data:"
_SPACED: Final = b"data: "
_RETRY: Final = b"retry"


class Event(NamedTuple):
    """Holds one event as it came, the empty line that ends it included.

    Attributes:
        lines: All its lines, without their ends.
        data: Of its `data` fields; None where it has none.
    """

    lines: list[bytes]
    data: bytes | None

    @property
    def raw(self) -> bytes:
        """Gives the event as it came, with plain line ends."""
        return b"\n".join(self.lines) + b"\n\n"

    def without_data(self) -> Event:
        """Returns the same event without its data, which may be most of it."""
        return Event([line for line in self.lines if not line.startswith(_FIELD)], None)

    def with_data(self, data: bytes) -> bytes:
        """Returns the event with other data, of one line."""
        return b"\n".join([*self.without_data().lines, _SPACED + data]) + b"\n\n"


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
                if events and not event.data and not events[-1].data:
                    event = _event(_last_position(events.pop(), event))
                events.append(event)
            self._lines = []
            self.held = 0
        if rest:
            self._parts.append(rest)
            self.held += len(rest)
        return events


def _last_position(before: Event, after: Event) -> list[bytes]:
    lines = {line.partition(b":")[0]: line for line in (*before.lines, *after.lines)}
    return [lines[field] for field in (b"id", _RETRY, b"data") if field in lines]


def _bounded(line: bytes) -> bytes:
    """Returns a line as it came, or, of how long to wait before the stream is asked for again, within bounds."""
    # A long line of data is not copied for this.
    if not line.startswith(_RETRY) or line[len(_RETRY) : len(_RETRY) + 1] not in (b":", b""):
        return line
    value = line[len(_RETRY) + 1 :]
    digits = value.strip()[:9]
    wait = int(digits) if digits.isdigit() else LEAST_RETRY_MS
    return b"%s: %d" % (_RETRY, min(max(wait, LEAST_RETRY_MS), MOST_RETRY_MS))


def _event(lines: list[bytes]) -> Event:
    lines = [_bounded(line) for line in lines]
    data = [
        line[len(_SPACED) if line.startswith(_SPACED) else len(_FIELD) :]
        for line in lines
        if line.startswith(_FIELD)
    ]
    return Event(lines, b"\n".join(data) if data else None)
