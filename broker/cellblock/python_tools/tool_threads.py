"""Threads for Python tools that block: a bounded number, reused, and none that the process has to wait for.

`ThreadPoolExecutor` is not used because the interpreter joins its threads at exit: one tool that hangs would keep
the broker alive for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cellblock.base.errors import CellblockError


class AllBusy(CellblockError):
    """No thread was to be had in time; the work was not started."""


class StillRunning(CellblockError):
    """The work did not end in time; its thread goes on with it."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[Any, BaseException | None], None]


_Inbox = queue.SimpleQueue[_Job | None]

_NAME: Final = "cellblock-tool"


class ToolThreads:
    """Runs blocking work beside the event loop.

    Args:
        maximum: Threads; a piece of work that nobody waits for any more holds its own until it ends.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._free = asyncio.Semaphore(maximum)
        self._idle: list[_Inbox] = []
        self._closed = False
        self.busy = 0
        """Threads that are at work."""

    async def run(self, work: Callable[[], Any], bound: float) -> Any:
        """The result of `work()`, called in a thread with a copy of this context.

        Raises:
            AllBusy: `bound` seconds went by without a free thread, or none could be started.
            StillRunning: They went by before the work ended.
            BaseException: Whatever the work raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + bound
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise AllBusy(
                f"All {self._maximum} threads for tools are busy.", hint="Try again later."
            ) from None
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        try:
            inbox = self._idle.pop() if self._idle else self._start()
        except RuntimeError:
            self._free.release()
            raise AllBusy("No thread can be started for a tool.", hint="Try again later.") from None
        self.busy += 1

        def ended(value: Any, error: BaseException | None) -> None:
            self.busy -= 1
            self._free.release()
            if self._closed:
                inbox.put(None)
            else:
                self._idle.append(inbox)
            if not future.done():
                future.set_result((value, error))

        def done(value: Any, error: BaseException | None) -> None:
            # The loop may be closed by the time a tool that nobody waits for ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended, value, error)

        context = contextvars.copy_context()
        inbox.put(_Job(lambda: context.run(work), done))
        # Not `wait_for`: nothing is to be cancelled, the thread cannot be.
        await asyncio.wait({future}, timeout=max(0.0, deadline - loop.time()))
        if not future.done():
            raise StillRunning(f"Not done within {bound:g} s.", hint="Ask for less at a time.")
        # As a value: a future can carry no StopIteration.
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Ends the idle threads; one at work ends after it."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> _Inbox:
        inbox: _Inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name=_NAME, daemon=True).start()
        return inbox


def _serve(inbox: _Inbox) -> None:
    while True:
        job = inbox.get()
        if job is None:
            return
        try:
            value, error = job.work(), None
        except BaseException as raised:  # noqa: BLE001 - a tool's SystemExit must not end the thread either
            value, error = None, raised
        job.done(value, error)
        # Held while the thread is idle otherwise, and with them what a tool has returned.
        del job, value, error
