"""Cuts a stream of server-sent events into whole events, and says which data each has. Sans-I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

_FIELD: Final = b"data:"


class Event(NamedTuple):
    """One event as it came, the empty line that ends it included.

    Attributes:
        lines: All its lines, without their ends.
        data: Of its `data` fields; None where it has none.
    """

    lines: list[bytes]
    data: bytes | None

    @property
    def raw(self) -> bytes:
        """As it came, with plain line ends."""
        return b"\n".join(self.lines) + b"\n\n"

    def with_data(self, data: bytes) -> bytes:
        """The same event with other data, of one line."""
        others = [line for line in self.lines if not line.startswith(_FIELD)]
        return b"\n".join([*others, _FIELD + b" " + data]) + b"\n\n"


class EventSplitter:
    """Bytes in, events out. `held` is how many bytes of the event under way are in memory."""

    def __init__(self) -> None:
        self.held = 0
        self._parts: list[bytes] = []
        self._lines: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that end in this chunk."""
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
            events.append(_event(self._lines))
            self._lines = []
            self.held = 0
        if rest:
            self._parts.append(rest)
            self.held += len(rest)
        return events


def _event(lines: list[bytes]) -> Event:
    data = [line[len(_FIELD) :].removeprefix(b" ") for line in lines if line.startswith(_FIELD)]
    return Event(lines, b"\n".join(data) if data else None)
