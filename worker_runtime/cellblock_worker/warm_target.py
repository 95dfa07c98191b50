"""How many workers to keep warm: all of them while runs come, fewer when none has come for a while."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WarmTarget:
    """Times are seconds of one monotonic clock.

    Args:
        full: Workers kept warm while runs come.
        floor: Workers kept warm when none has come for `idle_after` seconds; at most `full`.
        idle_after: Seconds without a run.
        last_run: When the last run came, or this host began.
    """

    full: int
    floor: int
    idle_after: float
    last_run: float

    def used(self, now: float) -> None:
        """A run has come."""
        self.last_run = now

    def at(self, now: float) -> int:
        """Workers to keep warm now."""
        idle = now - self.last_run >= self.idle_after
        return min(self.full, self.floor) if idle else self.full
