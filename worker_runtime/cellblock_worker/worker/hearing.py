"""Hears one worker: frames in canonical form, each within its cap, and what hearing them costs.

A worker can make the host work for it by sending: that work is counted, billed to the run, and kept to a share of the
host's time. A frame that has begun must go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import Frame, FrameDecoder, FrameError
from cellblock_worker.worker.log_budget import LogBudget
from cellblock_worker.worker.states import MAX_NOTICES

HOST_SHARE: Final = 0.03
"""Caps the share of one core that hearing a run may take whose logs are dropped; its output waits in the pipe
meanwhile. Messages of every other kind are counted, and few."""

HOST_ALLOWANCE_SECONDS: Final = 0.05
"""Allows the host to spend so much CPU time on a run whose logs are dropped, beside its share: tens of thousands of
entries at once."""

LONGEST_REST_SECONDS: Final = 0.1
"""Sets the pause between two looks at the output of a run that floods: its exit, too, is only seen by looking."""

SILENCE_TICK_SECONDS: Final = 1.0
"""Sets the pause from one look at a frame that is not whole to the next."""

SILENT_TICKS: Final = 10
"""Counts looks in a row at which nothing had come of it, and the worker was not waiting for a core either: the sandbox
writes each frame at once. Looks are counted, not time, so that a host that stands still does not count against a
worker."""


class Hearing:
    """Hears one worker.

    Args:
        max_message_bytes: The largest cap on messages that a run may have.
        kill: Ends the worker for a breach, which it is told.
        is_runnable: Whether the worker has something to do and waits for a core.

    Attributes:
        logs: The run's log cap.
        cost_seconds: CPU time of this process that the run's output has taken.
    """

    def __init__(
        self, max_message_bytes: int, *, kill: Callable[[str], None], is_runnable: Callable[[], bool]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(protocol.part_cap(max_message_bytes), self._admits)
        self._kill = kill
        self._is_runnable = is_runnable
        self._run: protocol.Run | None = None
        self._since = 0.0
        self._notices = 0
        self._pieces = 0
        self._seen_pieces = 0
        self._silent_ticks = 0
        self._tick: asyncio.TimerHandle | None = None
        self._closed = False
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
                    self._count_notice()
                accept(message, frame)
        finally:
            self.cost_seconds += thread_time() - before
        self._pieces += 1
        if self._tick is None and self._decoder.within_frame and not self._closed:
            self._look_later()
        return self._rest()

    def close(self) -> None:
        """Ends the watch for silence: the worker is killed, and what it still says is heard, what it does not say is
        not missed.
        """
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    # ---- inside --------------------------------------------------------------------------------------

    def _admits(self, raw_header: bytes, body_bytes: int) -> bool:
        if self.logs.truncated and self.logs.drops(raw_header, body_bytes):
            return False
        cap = protocol.worker_body_cap(raw_header)
        if cap == 0 and body_bytes == 0:
            return True
        message_bytes, log_bytes = (self._run.message_bytes, self._run.log_bytes) if self._run else (0, 0)
        most = protocol.body_cap(cap, message_bytes=message_bytes, log_bytes=log_bytes)
        if body_bytes > most:
            raise FrameError(f"a body of {body_bytes} bytes is over {most}")
        return True

    def _count_notice(self) -> None:
        self._notices += 1
        if self._notices > MAX_NOTICES:
            raise FrameError(f"over {MAX_NOTICES} notices")

    def _rest(self) -> float:
        over = self.cost_seconds - HOST_ALLOWANCE_SECONDS
        if over <= 0 or not self.logs.truncated:
            return 0.0
        return min(over / HOST_SHARE - (monotonic() - self._since), LONGEST_REST_SECONDS)

    def _look_later(self) -> None:
        self._tick = self._loop.call_later(SILENCE_TICK_SECONDS, self._look)

    def _look(self) -> None:
        self._tick = None
        silent = self._pieces == self._seen_pieces
        self._seen_pieces = self._pieces
        if not self._decoder.within_frame:
            self._silent_ticks = 0
            return
        if not silent:
            self._silent_ticks = 0
        elif not self._is_runnable():
            self._silent_ticks += 1
        if self._silent_ticks >= SILENT_TICKS:
            self._kill(f"half a frame, and then nothing for over {SILENT_TICKS * SILENCE_TICK_SECONDS:g} s")
        else:
            self._look_later()
