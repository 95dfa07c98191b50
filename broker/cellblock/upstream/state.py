"""Where a session is, and whether its first attempt to connect is over."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum


class State(Enum):
    """Where a session is."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    CLOSED = "closed"


class FirstAttempt:
    """The first attempt of a session to connect, which others wait for."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._began = 0.0

    @property
    def pending(self) -> bool:
        """Whether it is not over yet."""
        return not self._over.is_set()

    def begin(self) -> None:
        """The attempt begins: bounds count from now."""
        self._began = asyncio.get_running_loop().time()

    def end(self) -> None:
        """The attempt is over, whatever came of it."""
        self._over.set()

    async def over(self, bound: float, *, at_most: float | None = None) -> None:
        """Waits for its end.

        Args:
            bound: Seconds from its beginning, however late this is called.
            at_most: Seconds from now; None: `bound` alone counts.
        """
        now = asyncio.get_running_loop().time()
        until = self._began + bound if at_most is None else min(self._began + bound, now + at_most)
        if self.pending and until > now:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._over.wait()
