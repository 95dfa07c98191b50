"""Counts the runs between two changes of the configuration: what they use lives until the last of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Generation:
    """Counts the runs of one generation; `ended` waits until there are none, here and in generations before.

    Args:
        before: The generation before: its runs may use what this one's do, and outlast them.

    Attributes:
        number: How many changes there were before it.
    """

    def __init__(self, before: Generation | None = None) -> None:
        self.number: int = before.number + 1 if before is not None else 0
        self._before = before._unfinished() if before is not None else None
        self._inside = 0
        self._empty = asyncio.Event()

    def __enter__(self) -> Generation:
        self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            # Wakes those that wait, and is no lasting word.
            self._empty.set()
            self._empty.clear()

    async def holding(self, work: Coroutine[Any, Any, T]) -> T:
        """Gives the result of work that may outlast who asked for it."""
        with self:
            return await work

    def until(self, task: asyncio.Task[None]) -> None:
        """Counts a task as inside until it is done: a call that goes on when its run has no process."""
        self.__enter__()
        task.add_done_callback(self.__exit__)

    async def ended(self, since: int = 0) -> None:
        """Waits until nobody is inside, nor in a generation before it from number `since` on. No bound: runs have their
        own."""
        if self._before is not None and self._before.number >= since:
            await self._before.ended(since)
        if self._inside:
            await self._empty.wait()

    def _unfinished(self) -> Generation | None:
        """Gives the latest generation up to this one that still has runs."""
        self._before = self._before._unfinished() if self._before is not None else None
        return self if self._inside else self._before
