"""Hears one worker: frames in canonical form, each within its cap, and what hearing them costs.

A worker can make the host work for it by sending: that work is counted, billed to the run, and kept to a share of the
host's time. What is half said is only memory, within the cap of a frame, until the run's time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import Frame, FrameDecoder, FrameError

HOST_SHARE: Final = 0.03
"""Caps the share of one core that hearing a run may take whose logs are dropped; its output waits in the pipe
meanwhile. Messages of every other kind are counted, and few."""

HOST_ALLOWANCE_SECONDS: Final = 0.05
"""Allows the host to spend so much CPU time on a run whose logs are dropped, beside its share: tens of thousands of
entries at once."""

LONGEST_REST_SECONDS: Final = 0.1
"""Sets the pause between two looks at the output of a run that floods: its exit, too, is only seen by looking."""


class LogBudget:
    """Keeps `maxLogBytes`, in UTF-8 bytes of messages: the first entry that does not fit is cut, all after it are
    dropped.

    Args:
        max_bytes: The run's `maxLogBytes`.

    Attributes:
        dropped_bytes: Of messages, or of the rest of one, that were not kept.
        truncated: Whether all that comes is dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._left = max_bytes
        self._entries = 0
        self.dropped_bytes = 0
        self.truncated = False

    def take(self, message: bytes) -> tuple[bytes | None, str | None]:
        """Accounts for one log message.

        Returns:
            The part of the message to keep (None: nothing), and, exactly once, the text of the closing
            `warn` entry that names the limit (Code Mode specification, section 3.3.1).
        """
        if self.truncated:
            self.dropped_bytes += len(message)
            return None, None
        self._entries += 1
        if len(message) <= self._left and self._entries <= protocol.MAX_LOG_ENTRIES:
            self._left -= len(message)
            return message, None
        self.truncated = True
        if self._entries > protocol.MAX_LOG_ENTRIES:
            self.dropped_bytes += len(message)
            return None, f"[logs truncated: over {protocol.MAX_LOG_ENTRIES} entries; later output is dropped]"
        # A cut inside a character leaves bytes that are no UTF-8; "ignore" drops that one character.
        kept = message[: self._left].decode("utf-8", "ignore").encode()
        self.dropped_bytes += len(message) - len(kept)
        note = f"[logs truncated: over maxLogBytes = {self._max} bytes; later output is dropped]"
        return kept or None, note


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
        self._run: protocol.Run | None = None
        self._since = 0.0
        self._notices = 0
        self.logs = LogBudget(0)
        self.cost_seconds = 0.0

    def begin(self, run: protocol.Run, now: float) -> None:
        """Puts the caps of the worker's run in force, from this monotonic time on."""
        self._run, self._since = run, now
        self._notices, self.cost_seconds = 0, 0.0
        self.logs = LogBudget(run.log_bytes)

    def hear(self, data: bytes, accept: Callable[[protocol.FromWorker, Frame], None]) -> float:
        """Takes output of the worker in.

        Returns:
            Seconds for which no more of it should be read: it has cost this process more than its share.

        Raises:
            FrameError: The worker has broken the protocol.
        """
        before = thread_time()
        try:
            for frame in self._decoder.feed(data):
                message = protocol.parse_from_worker(frame.header)
                protocol.check_canonical(message, frame.raw_header)
                if isinstance(message, protocol.Notice):
                    self._notices += 1
                    if self._notices > protocol.MAX_NOTICES:
                        raise FrameError(f"over {protocol.MAX_NOTICES} notices")
                accept(message, frame)
        finally:
            self.cost_seconds += thread_time() - before
        return self._rest()

    def _admits(self, raw_header: bytes, body_bytes: int) -> bool:
        cap = protocol.worker_body_cap(raw_header)
        if self.logs.truncated and cap == "log_bytes":
            # An entry that `LogBudget.take` would drop: its bytes need not be decoded for that.
            self.logs.dropped_bytes += body_bytes
            return False
        if cap == 0 and body_bytes == 0:
            return True
        message_bytes, log_bytes = (self._run.message_bytes, self._run.log_bytes) if self._run else (0, 0)
        most = protocol.body_cap(cap, message_bytes=message_bytes, log_bytes=log_bytes)
        if body_bytes > most:
            raise FrameError(f"a body of {body_bytes} bytes is over {most}")
        return True

    def _rest(self) -> float:
        over = self.cost_seconds - HOST_ALLOWANCE_SECONDS
        if over <= 0 or not self.logs.truncated:
            return 0.0
        return min(over / HOST_SHARE - (monotonic() - self._since), LONGEST_REST_SECONDS)
