"""Holds the states of a connection, its first attempt, and the pauses between attempts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from enum import Enum
from typing import Final

STEADY_SECONDS: Final = 10.0
"""Sets how long a good connection holds; one that ended sooner counts as a failure."""

JITTER: Final = 0.5
"""Sets the share of each pause that is left to chance, so that many clients of one server do not come back at once."""


class Backoff:
    """Gives pauses that double from the first to the longest.

    Args:
        first: The first pause in seconds.
        longest: The longest pause in seconds.
        chance: Gives numbers from 0 to 1.
    """

    def __init__(self, first: float, longest: float, chance: Callable[[], float] = random.random) -> None:
        self._first = first
        self._longest = max(first, longest)
        self._chance = chance
        self._next = first

    def pause(self, held: float, *, served: bool = False) -> float:
        """Returns the pause after a connection that held so many seconds, and has answered a call (`served`); 0 for one
        that never was."""
        if held >= STEADY_SECONDS or served:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (1 - JITTER * self._chance())


class State(Enum):
    """Says in which state a session is."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    CLOSED = "closed"


class FirstAttempt:
    """The first attempt of a session to connect is what others wait for."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._began = 0.0

    @property
    def pending(self) -> bool:
        """Says whether the first attempt is not over yet."""
        return not self._over.is_set()

    def begin(self, since: float | None = None) -> None:
        """Begins the first attempt to connect: bounds count from `since`, on the loop's clock; None: from now."""
        self._began = asyncio.get_running_loop().time() if since is None else since

    def end(self) -> None:
        """Ends the attempt, whatever came of it."""
        self._over.set()

    async def over(self, bound: float, *, at_most: float | None = None) -> None:
        """Waits for the end of the first attempt.

        Args:
            bound: Seconds from what `begin` was given, however late this is called.
            at_most: Seconds from now; None: `bound` alone counts.
        """
        now = asyncio.get_running_loop().time()
        until = self._began + bound if at_most is None else min(self._began + bound, now + at_most)
        if self.pending and until > now:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._over.wait()
