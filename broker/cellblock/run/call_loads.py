"""Bounds how much of one run's calls is held in memory, and with them of its client's.

A worker's own cap does not hold here: what it has sent is no longer in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from cellblock.base.budget import Account, OverBudget
from cellblock.base.raw_json import LIGHT_BYTES

WAITING_FACTOR: Final = 4
"""Says how many times as many bytes of inputs may wait undecoded as may be decoded at once."""


class Turns:
    """Lets in as much as may be there at once, first come, first served; one may always be, whatever its size.

    Args:
        most: What all together may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enters(self, size: int) -> bool:
        """Enters what may be there at once; if it may not, says so, and `enter` waits for it."""
        if self._waiting or 0 < self._inside > self._most - size:
            return False
        self._inside += size
        return True

    async def enter(self, size: int) -> None:
        """Waits until it may be there; `leave` must follow a wait that has ended well."""
        if self.enters(size):
            return
        place = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            # Not whether it still waits: one that was cancelled may have been passed over before its turn came.
            if not place[1].cancelled():
                self.leave(size)
            elif place in self._waiting:
                self._waiting.remove(place)
                self._let_in()
            raise

    def leave(self, size: int) -> None:
        """Lets in what waits: something has gone."""
        self._inside -= size
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (not self._inside or self._inside + self._waiting[0][0] <= self._most):
            size, future = self._waiting.popleft()
            if not future.done():
                self._inside += size
                future.set_result(None)


class CallLoads(Turns):
    """Bounds the memory that one run's unanswered tool calls hold: what is inside is decoded.

    Args:
        most: Bytes of JSON whose calls may be decoded and unanswered at the same time; one call may always be.
        account: Of the run, whose client may have so many bytes of large inputs; None for no such bound.
    """

    def __init__(self, most: int, account: Account | None = None) -> None:
        super().__init__(most)
        self._account = account
        self._held = 0

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
