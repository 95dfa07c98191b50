"""One thread for the files of a front-end, none that the process has to wait for.

`ThreadPoolExecutor` is not used because the interpreter joins its threads at exit: a disk that hangs would keep the
broker alive for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

_NAME: Final = "cellblock-outputs"


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: Future[Any]


_Inbox = queue.SimpleQueue[_Job | None]


class DiskThread:
    """Does what it is given in that order. Belongs to one event loop; the thread starts with the first work."""

    def __init__(self) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        self._started = False
        self._closed = False

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """The future of `work(*args)`; cancelled before its turn, it is not done.

        Raises:
            RuntimeError: It is closed, or no thread can be started.
        """
        if self._closed:
            raise RuntimeError("the thread is closed")
        return self._put(lambda: work(*args))

    async def close(self, last: Callable[[], object], bound: float) -> bool:
        """Cancels what waits its turn, does `last`, and ends the thread.

        Args:
            last: Done behind what is under way.
            bound: Longest wait in seconds; what is not done then goes on without anybody who waits for it.

        Returns:
            Whether `last` was done in time.
        """
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while (waiting := self._inbox.get_nowait()) is not None:
                waiting.future.cancel()
        try:
            done = asyncio.wrap_future(self._put(last))
        except RuntimeError:
            return False
        self._inbox.put(None)
        await asyncio.wait({done}, timeout=bound)
        return done.done()

    def _put(self, work: Callable[[], T]) -> Future[T]:
        if not self._started:
            threading.Thread(target=_serve, args=(self._inbox,), name=_NAME, daemon=True).start()
            self._started = True
        future: Future[T] = Future()
        self._inbox.put(_Job(work, future))
        return future


def _serve(inbox: _Inbox) -> None:
    while True:
        job = inbox.get()
        if job is None:
            return
        if job.future.set_running_or_notify_cancel():
            try:
                job.future.set_result(job.work())
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                job.future.set_exception(error)
        # Held while the thread is idle otherwise, and with it what was written.
        del job
