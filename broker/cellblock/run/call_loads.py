"""Bounds how much of one run's calls is held in memory, and with them of its client's.

A worker's own cap does not hold here: what it has sent is no longer in it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cellblock.base.budget import Account, OverBudget
from cellblock.base.raw_json import LIGHT_BYTES

WAITING_FACTOR: Final = 4
"""Says how many times as many bytes of inputs may wait undecoded as may be decoded at once."""


class CallLoads:
    """Bounds the memory that one run's unanswered tool calls hold.

    Args:
        most: Bytes of JSON whose calls may be decoded and unanswered at the same time; one call may always be.
        account: Of the run, whose client may have so many bytes of large inputs; None for no such bound.
    """

    def __init__(self, most: int, account: Account | None = None) -> None:
        self._most = most
        self._account = account
        self._decoded = 0
        self._held = 0
        self._turn, self._left = asyncio.Lock(), asyncio.Event()

    def hold(self, size: int) -> bool:
        """Takes an input in, undecoded; False: with those that are held already it would be too much."""
        if self._held and self._held + size > WAITING_FACTOR * self._most:
            return False
        if size > LIGHT_BYTES and self._account is not None:
            try:
                self._account.take(size)
            except OverBudget:
                return False
        self._held += size
        return True

    def drop(self, size: int) -> None:
        """Lets go of an input that `hold` has taken in."""
        self._held -= size
        if size > LIGHT_BYTES and self._account is not None:
            self._account.give_back(size)

    def enters(self, size: int) -> bool:
        """Enters an input that may be decoded at once; if not, says so, and `enter` waits for it."""
        if self._turn.locked() or not self._fits(size):
            return False
        self._decoded += size
        return True

    async def enter(self, size: int) -> None:
        """Waits until an input may be decoded, first come, first served; `leave` must follow a wait that has ended
        well."""
        async with self._turn:
            while not self._fits(size):
                self._left.clear()
                await self._left.wait()
            self._decoded += size

    def leave(self, size: int) -> None:
        """Notes that a call is over, and lets in those inputs that wait."""
        self._decoded -= size
        self._left.set()

    def _fits(self, size: int) -> bool:
        return self._decoded == 0 or self._decoded + size <= self._most
