"""Brokers hear that a run has a worker only where it lasts: most runs are over before, and their end says so, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LASTS_SECONDS: Final = 0.01
"""Sets when a run lasts, whose worker has said nothing yet. Most runs are over in half of it."""


class Untold:
    """Holds the runs that have a worker of which their brokers have not heard, and tells of those that last.

    Args:
        tell: Tells a broker, by the run's token, how many milliseconds its worker's clock has run.
    """

    def __init__(self, tell: Callable[[bytes, int], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._since: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, token: bytes) -> None:
        self._since[token] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(LASTS_SECONDS, self._look)

    def drop(self, token: bytes) -> None:
        """Forgets a run: its broker hears something of it, or its end."""
        self._since.pop(token, None)

    def tell(self, token: bytes) -> None:
        """Tells of a run now, unless its broker knows."""
        if (since := self._since.pop(token, None)) is not None:
            self._tell(token, int((self._loop.time() - since) * 1000))

    def _look(self) -> None:
        long_ago = self._loop.time() - LASTS_SECONDS
        for token in [token for token, since in self._since.items() if since <= long_ago]:
            self.tell(token)
        self._timer = self._loop.call_later(LASTS_SECONDS, self._look) if self._since else None
