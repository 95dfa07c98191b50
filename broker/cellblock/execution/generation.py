"""The runs between two changes of the configuration: what they use lives until the last of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Generation:
    """Counts those who are inside; `ended` waits until there are none."""

    def __init__(self) -> None:
        self._inside = 0
        self._waiters: list[asyncio.Future[None]] = []

    def __enter__(self) -> Generation:
        self._inside += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside -= 1
        if self._inside == 0:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def holding(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that may outlast who asked for it."""
        with self:
            return await work

    async def ended(self) -> None:
        """Waits until nobody is inside. No bound: runs have their own."""
        if self._inside:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
