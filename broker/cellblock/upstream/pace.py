"""Makes whoever sends more than is read of it in a second wait for its own work."""

from __future__ import annotations

import asyncio


class Pace:
    """Of one stream.

    Args:
        rate: Read in a second.
        burst: May come at once, after a pause.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._ahead = burst / rate
        self._due = 0.0

    async def spend(self, amount: float) -> None:
        """Counts what has come, and waits until that is due."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self._ahead) + amount / self._rate
        if self._due > now:
            await asyncio.sleep(self._due - now)
