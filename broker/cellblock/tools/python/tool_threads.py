"""Python tools that block run in daemon threads, which are bounded in number and used again."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from cellblock.base.threads import DaemonThread, call_when_done


class AllBusy(Exception):
    """Tells that all threads were busy for too long; the work was not started."""


class StillRunning(Exception):
    """Tells that work did not end in time; its thread goes on with it."""


class ToolThreads:
    """Runs blocking work beside the event loop.

    Args:
        maximum: Threads; a piece of work that nobody waits for any more holds its own until it ends.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._free = asyncio.Semaphore(maximum)
        self._idle: list[DaemonThread] = []
        self._closed = False
        self.busy = 0
        """Counts the threads that are at work."""

    async def run(self, work: Callable[[], Any], bound: float) -> Any:
        """Returns the result of `work()`, called in a thread with a copy of this context.

        Raises:
            AllBusy: `bound` seconds went by without a free thread, or none could be started.
            StillRunning: They went by before the work ended.
            BaseException: Whatever the work raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + bound
        if self._free.locked():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._free.acquire()
            except TimeoutError:
                raise AllBusy(f"All {self._maximum} threads for tools are busy.") from None
        else:
            await self._free.acquire()
        thread = self._idle.pop() if self._idle else DaemonThread("cellblock-tool")
        try:
            future = thread.submit(contextvars.copy_context().run, work)
        except RuntimeError:
            self._free.release()
            raise AllBusy("No thread can be started for a tool.") from None
        self.busy += 1
        in_time: asyncio.Future[bool] = loop.create_future()

        def ended() -> None:
            if not in_time.done():
                in_time.set_result(True)
            self.busy -= 1
            self._free.release()
            if self._closed:
                thread.end()
            else:
                self._idle.append(thread)

        # A tool that nobody waits for may end when the loop is closed.
        call_when_done(future, ended)
        overdue = loop.call_at(deadline, _give_up, in_time)
        try:
            if not await in_time:
                raise StillRunning
        finally:
            overdue.cancel()
        return future.result()

    def close(self) -> None:
        """Ends the idle threads; one at work ends after it."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()


def _give_up(in_time: asyncio.Future[bool]) -> None:
    if not in_time.done():
        in_time.set_result(False)
