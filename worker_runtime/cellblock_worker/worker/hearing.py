"""Hears one worker: frames in canonical form, each within its cap, and what hearing them costs.

A worker can make the host work for it by sending: that work is counted, billed to the run, and kept to a share of the
host's time. What is half said is only memory, within the cap of a frame, until the run's time is over.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic, thread_time
from typing import Final, cast

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameDecoder, FrameError

HOST_SHARE: Final = 0.03
"""Caps the share of one core that hearing a run may take whose logs are dropped; its output waits in the pipe
meanwhile. Messages of every other kind are counted, and few."""

HOST_ALLOWANCE_SECONDS: Final = 0.05
"""Allows the host to spend so much CPU time on a run whose logs are dropped, beside its share: tens of thousands of
entries at once."""

LONGEST_REST_SECONDS: Final = 0.1
"""Sets the pause between two looks at the output of a run that floods: its exit, too, is only seen by looking."""

TAIL_SHARE: Final = 4
"""Divides `maxLogBytes`, and the entries that a run may have: one part is for the last of them, and for errors."""


_Entry = tuple[int, bytes, bytes]
"""Numbers an entry, with its encoded header and its message."""


class LogBudget:
    """Keeps `maxLogBytes`, in UTF-8 bytes of messages: the first entries are passed on at once; of those that do
    not fit, the last are held until the run ends, and errors before others.

    Args:
        max_bytes: The run's `maxLogBytes`.

    Attributes:
        dropped_bytes: Of messages, or of the rest of one, that are not kept.
        holds: Whether all that comes is held.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes, self._entries = max_bytes, protocol.MAX_LOG_ENTRIES
        self._errors, self._others = deque[_Entry](), deque[_Entry]()
        self._held = self._held_bytes = self._ms = 0
        self._limit = ""
        self.dropped_bytes = 0
        self.holds = False

    @property
    def truncated(self) -> bool:
        return self._limit != ""

    @property
    def room(self) -> int:
        """Gives the bytes that can be passed on at once."""
        return 0 if self.holds else self._bytes - self._max // TAIL_SHARE

    def lend(self, size: int) -> None:
        """Leaves so many bytes of `room` to another run, or takes them back where that is negative."""
        self._bytes -= size

    def take(self, message: protocol.Log, raw_header: bytes, body: bytes) -> bytes | None:
        """Accounts for an entry while none is held; returns the part to pass on at once (None: nothing)."""
        self._ms, kept, end = message.ms, body, b""
        room = self._bytes - self._max // TAIL_SHARE
        self.holds = len(kept) > room or self._entries <= protocol.MAX_LOG_ENTRIES // TAIL_SHARE
        if self.holds:
            if len(kept) <= self._bytes or room == 0:
                self.hold(raw_header, body)
                return None
            # Larger than all that is left: its beginning goes on, and its end is held.
            end = kept[room - self._bytes :].decode("utf-8", "ignore").encode() if room < self._bytes else b""
            kept = self._cut(kept, room)
        self._bytes -= len(kept)
        self._entries -= 1
        if end:
            self.dropped_bytes -= len(end)
            self.hold(raw_header, end)
        return kept

    def hold(self, raw_header: bytes, message: bytes) -> None:
        """Holds an entry, unread, and drops what it leaves no room for."""
        body = self._cut(message, self._bytes)
        if message and not body:
            return
        self._held += 1
        entries = self._errors if raw_header.startswith(protocol.ERROR_OPENING) else self._others
        entries.append((self._held, raw_header, body))
        self._held_bytes += len(body)
        while (over := self._held_bytes > self._bytes) or len(self._errors) + len(
            self._others
        ) > self._entries:
            _, _, oldest = (self._others or self._errors).popleft()
            self._held_bytes -= len(oldest)
            self._drop(len(oldest), by_bytes=over)

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives what is held, at the run's end, as it would have been passed on; then, if anything was dropped, the
        closing `warn` entry that names the limit (Code Mode specification, section 3.3.1)."""
        for _, raw_header, body in sorted(self._errors + self._others):
            with contextlib.suppress(FrameError):
                self._ms = cast("protocol.Log", protocol.parse_from_worker(raw_header)).ms
                yield raw_header, body
        if self._limit:
            # Of an entry over the cap, the sandbox sends no more than that.
            left_out = f"at least {self.dropped_bytes} bytes before the last entries are left out"
            note = f"[logs truncated: over {self._limit}; {left_out}]"
            yield protocol.Log(level="warn", ms=self._ms).packed(), note.encode()

    def _cut(self, message: bytes, most: int) -> bytes:
        if len(message) <= most:
            return message
        # A cut inside a character leaves bytes that are no UTF-8; "ignore" drops that one character.
        kept = message[:most].decode("utf-8", "ignore").encode()
        self._drop(len(message) - len(kept), by_bytes=True)
        return kept

    def _drop(self, size: int, *, by_bytes: bool) -> None:
        self.dropped_bytes += size
        limit = f"maxLogBytes = {self._max} bytes" if by_bytes else f"{protocol.MAX_LOG_ENTRIES} entries"
        self._limit = self._limit or limit


class Hearing:
    """Hears one worker.

    Args:
        max_message_bytes: The largest cap on messages that a run may have.

    Attributes:
        logs: The run's log cap.
        cost_seconds: CPU time of this process that the run's output has taken.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._decoder = FrameDecoder(protocol.part_cap(max_message_bytes), self._admits)
        self._caps = protocol.worker_caps(0, 0)
        self._since = 0.0
        self._notices = 0
        self.logs = LogBudget(0)
        self.cost_seconds = 0.0

    def begin(self, run: protocol.Run, now: float) -> None:
        """Puts the caps of the worker's run in force, from this monotonic time on."""
        self._caps, self._since = protocol.worker_caps(run.message_bytes, run.log_bytes), now
        self._notices, self.cost_seconds = 0, 0.0
        self.logs = LogBudget(run.log_bytes)

    def hear(self, data: bytes, accept: Callable[[protocol.FromWorker, bytes, bytes], None]) -> float:
        """Takes output of the worker in: `accept` gets each message, with its encoded header and its body.

        Returns:
            Seconds for which no more of it should be read: it has cost this process more than its share.

        Raises:
            FrameError: The worker has broken the protocol.
        """
        before = thread_time()
        try:
            for raw_header, body in self._decoder.feed(data):
                if self.logs.holds and raw_header.startswith(protocol.LOG_OPENING):
                    self.logs.hold(raw_header, body)
                    continue
                message = protocol.parse_from_worker(raw_header)
                if isinstance(message, protocol.Notice):
                    self._notices += 1
                    if self._notices > protocol.MAX_NOTICES:
                        raise FrameError(f"over {protocol.MAX_NOTICES} notices")
                accept(message, raw_header, body)
        finally:
            self.cost_seconds += thread_time() - before
        over = self.cost_seconds - HOST_ALLOWANCE_SECONDS
        if over <= 0 or not self.logs.truncated:
            return 0.0
        return min(over / HOST_SHARE - (monotonic() - self._since), LONGEST_REST_SECONDS)

    def _admits(self, raw_header: bytes, body_bytes: int) -> None:
        most = self._caps.get(protocol.opening_of(raw_header))
        if most is None:
            raise FrameError("unknown or malformed message: its header is not canonical")
        if body_bytes > most:
            raise FrameError(f"a body of {body_bytes} bytes is over {most}")
