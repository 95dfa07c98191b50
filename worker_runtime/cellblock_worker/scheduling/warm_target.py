"""How many workers to keep warm: more for a while after many runs came at once, fewer after a time without any."""

from __future__ import annotations

import os
from collections import deque
from typing import Final

BURST_SECONDS: Final = 0.25
"""Runs that come within this time come at once: a worker boots in about a tenth of it, several in some more."""

MAX_WARM_SHARE: Final = 2
"""Workers kept warm after bursts at most, where nothing else is said: so many times those that always are."""

BURST_KEPT_SECONDS: Final = 300.0
"""How long a burst is remembered, and as many workers are kept warm as it took."""

BOOTS_PER_CORE: Final = 2
"""Workers that boot at the same time: half of a boot is waiting."""


def boots_at_once() -> int:
    """How many workers boot at the same time on this machine."""
    return BOOTS_PER_CORE * (os.cpu_count() or 1)


class WarmTarget:
    """Times are seconds of one monotonic clock.

    Args:
        full: Workers kept warm while runs come.
        most: Workers kept warm after bursts; less than `full` counts as `full`.
        floor: Workers kept warm when no run has come for `idle_after` seconds; at most `full`.
        idle_after: Seconds without a run.
        now: When this host began.
    """

    def __init__(self, *, full: int, most: int, floor: int, idle_after: float, now: float) -> None:
        self.full = full
        self._floor = floor
        self._idle_after = idle_after
        self._last_run = now
        self._came: deque[float] = deque(maxlen=max(most, 1))
        self._burst = 0
        self._burst_until = now

    def used(self, now: float) -> None:
        """A run has come."""
        self._last_run = now
        came = self._came
        while came and now - came[0] > BURST_SECONDS:
            came.popleft()
        came.append(now)
        if len(came) >= self._burst or now >= self._burst_until:
            self._burst = len(came)
            self._burst_until = now + BURST_KEPT_SECONDS

    def at(self, now: float) -> int:
        """Workers to keep warm now."""
        if now - self._last_run >= self._idle_after:
            return min(self.full, self._floor)
        return max(self.full, self._burst) if self.full and now < self._burst_until else self.full
