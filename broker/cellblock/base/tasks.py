"""Work in the background is held by whoever starts it. Tasks are: the event loop may forget one that is not done.
Daemon threads do blocking work beside the loop, and the process waits for none of them at its exit.

`ThreadPoolExecutor` is not used because the interpreter joins its threads: one piece of work that hangs would keep the
broker alive for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


_Inbox = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
"""Has pieces of work, each with what waits for it; None is the end."""


class TaskSet:
    """Holds tasks until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter([*self._tasks])

    def start(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Begins work as a task."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancels the tasks that are under way, without waiting for them."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Waits until what is under way is done, however it ends."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels those tasks that there are, and waits until they are done, however they end."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], *, name: str | None = None) -> AsyncGenerator[None]:
    """Has work done as a task while the block runs, and waits for the end of that task."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await end_tasks(task)


@contextlib.asynccontextmanager
async def at_most(seconds: float) -> AsyncGenerator[None]:
    """Cuts the block off after so many seconds; what stands behind it is done all the same."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


class DaemonThread:
    """Does pieces of work one after the other; its thread starts with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: _Inbox = queue.SimpleQueue()
        self._started = False
        self._ended = False

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Returns the future of `work(*args)`; work whose future is cancelled before its turn is not done.

        Raises:
            RuntimeError: It has been ended, or no thread can be started.
        """
        if self._ended:
            raise RuntimeError("the thread is closed")
        if not self._started:
            threading.Thread(target=_serve, args=(self._inbox,), name=self._name, daemon=True).start()
            self._started = True
        future: Future[T] = Future()
        self._inbox.put((lambda: work(*args), future))
        return future

    def end(self) -> None:
        """Ends the thread once it has done what was submitted before."""
        self._ended = True
        self._inbox.put(None)

    async def close(self, last: Callable[[], object], bound: float) -> bool:
        """Cancels the work that has not begun, does `last` behind what is under way, and ends the thread.

        Args:
            last: The last piece of work.
            bound: The longest wait in seconds; what is not done then goes on without anybody who waits for it.

        Returns:
            Whether `last` was done in time.
        """
        with contextlib.suppress(queue.Empty):
            while (waiting := self._inbox.get_nowait()) is not None:
                waiting[1].cancel()
        try:
            done = self.submit(last)
        except RuntimeError:
            return False
        finally:
            self.end()
        return await is_done_within(done, bound)


def start_daemon(name: str, work: Callable[..., T], *args: object) -> Future[T]:
    """Returns the future of `work(*args)`, which has a thread of its own. Raises RuntimeError as `submit` does."""
    thread = DaemonThread(name)
    future = thread.submit(work, *args)
    thread.end()
    return future


def call_when_done(future: Future[Any], callback: Callable[[], object]) -> None:
    """Has `callback` called in the running event loop when the future is done, unless the loop is closed by then."""
    loop = asyncio.get_running_loop()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    future.add_done_callback(tell)


async def is_done_within(future: Future[Any], bound: float) -> bool:
    """Waits for a future, at most `bound` seconds, and says whether it is done; it is not cancelled in any case.

    Unlike an asyncio future, it can hold a StopIteration.
    """
    done = asyncio.Event()
    call_when_done(future, done.set)
    async with at_most(bound):
        await done.wait()
    return done.is_set()


def _serve(inbox: _Inbox) -> None:
    while True:
        job = inbox.get()
        if job is None:
            return
        work, future = job
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - work's SystemExit must not end the thread either
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # Held while the thread is idle otherwise, and with it what the work has returned.
        del job, work, future
