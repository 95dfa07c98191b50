"""Tasks that nobody waits for are held by whoever starts them: the event loop may forget one that is not done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any


class TaskSet:
    """Holds tasks until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

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
