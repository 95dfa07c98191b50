"""Computes how many workers to keep warm: more for a while after many runs were under way at once, fewer after a time
without any.
"""

from __future__ import annotations

import os
from typing import Final

MAX_WARM_SHARE: Final = 2
"""Caps the workers kept warm after bursts, where nothing else is said, at so many times those that always are."""

BURST_KEPT_SECONDS: Final = 300.0
"""Bounds how long a burst is remembered, and as many workers are kept warm as it took."""

BOOTS_PER_CORE: Final = 2
"""Sets how many workers boot at the same time: half of a boot is waiting."""


def boots_at_once() -> int:
    """Returns how many workers boot at the same time on this machine."""
    return BOOTS_PER_CORE * (os.cpu_count() or 1)


class WarmTarget:
    """Keeps the target of warm workers; times are seconds of one monotonic clock.

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
        self._most = most
        self._under_way: set[bytes] = set()
        self._burst = 0
        self._burst_until = now

    def came(self, now: float) -> None:
        """Takes note of a run that has come, and may need no warm worker."""
        self._last_run = now

    def began(self, run: bytes, now: float) -> None:
        """Takes note of a run, by its token, that has come and needs a warm worker."""
        self.came(now)
        self._under_way.add(run)
        at_once = min(len(self._under_way), max(self._most, 1))
        if at_once >= self._burst or now >= self._burst_until:
            self._burst = at_once
            self._burst_until = now + BURST_KEPT_SECONDS

    def ended(self, run: bytes) -> None:
        """Takes note of the end of a run, whether it needed a warm worker or not."""
        self._under_way.discard(run)

    def at(self, now: float) -> int:
        """Returns how many workers to keep warm now."""
        if now - self._last_run >= self._idle_after:
            return min(self.full, self._floor)
        return max(self.full, self._burst) if self.full and now < self._burst_until else self.full
