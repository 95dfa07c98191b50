"""A bucket says how often something may happen: so often at once, and then at a rate."""

from __future__ import annotations

import time
from collections.abc import Callable


class Bucket:
    """Begins full.

    Args:
        burst: How often at once.
        per_second: How often in a second after that.
        clock: Gives seconds.

    Attributes:
        refused: How often there was no room since this was set to 0.
    """

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._level, self._since = burst, clock()

    def has_room(self) -> bool:
        """Takes room for one, if there is any."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._since) * self._per_second)
        self._since = now
        if self._level < 1:
            self.refused += 1
            return False
        self._level -= 1
        return True
