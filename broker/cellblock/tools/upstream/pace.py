"""Makes whoever sends more than is read of it in a second wait for its own work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from cellblock.base.budget import Budget
from cellblock.base.raw_json import next_step
from cellblock.tools.upstream.wire.framing import Cut
from cellblock.tools.upstream.wire.messages import SMALL_BYTES

MESSAGES_PER_SECOND: Final = 2_000
MESSAGES_AT_ONCE: Final = 1_000
MESSAGES_IN_STEP: Final = 50
MESSAGE_BYTES: Final = 16 * 1024
"""Bounds how fast one stream of messages is read: each costs the loop up to 0.2 ms, and so many bytes as much again."""

FLOOD_SECONDS: Final = 60.0
"""Sets for how long a server may be over that rate without a pause."""


class Pace:
    """Paces the reading of one stream."""

    def __init__(self) -> None:
        self._due = 0.0
        self._since: float | None = None
        self._in_step = 0.0

    async def spend(self, amount: float) -> None:
        """Counts so many messages, and waits until they are due; others have their turn between some of them.

        Raises:
            Cut: It has had to wait all the time for over `FLOOD_SECONDS`.
        """
        now = asyncio.get_running_loop().time()
        rested = now - MESSAGES_AT_ONCE / MESSAGES_PER_SECOND
        if self._due <= rested:
            # A pause: what comes at once after it, of whatever size, is no part of what came before.
            self._since = None
        self._due = max(self._due, rested) + amount / MESSAGES_PER_SECOND
        self._in_step += amount
        if self._due <= now:
            self._since = None
            if self._in_step > MESSAGES_IN_STEP:
                self._in_step = 0.0
                await next_step()
            return
        if self._since is None:
            self._since = now
        elif now - self._since > FLOOD_SECONDS:
            raise Cut(f"it sent over {MESSAGES_PER_SECOND} messages a second for {FLOOD_SECONDS:g} s")
        await asyncio.sleep(self._due - now)


class Holding:
    """Counts the bytes of large messages of one server that are in memory while they come.

    Args:
        budget: Of all servers.
        key: The server's.
    """

    def __init__(self, budget: Budget, key: str) -> None:
        self._budget = budget
        self._key = key

    @contextmanager
    def counting(self) -> Generator[Callable[[int], None]]:
        """Yields what to call with the bytes of the message under way that are in memory: a large one's are counted
        until the block ends. That raises OverBudget where they are too many, and counts none of them then."""
        held = 0

        def count(size: int) -> None:
            nonlocal held
            if held:
                self._budget.give_back(self._key, held)
                held = 0
            if size > SMALL_BYTES:
                self._budget.take(self._key, size)
                held = size

        try:
            yield count
        finally:
            count(0)
