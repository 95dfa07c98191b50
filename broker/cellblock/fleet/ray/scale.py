"""Says how many hosts there should be, from what brokers report."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

FULL_SHARE: Final = 0.75
"""Sets the share of a host's places that are in use when there are as many hosts as runs need: another takes
seconds."""

REPORT_SECONDS: Final = 10.0
"""Bounds how long a broker's last report counts; it reports every second."""


class Scale:
    """Says how many hosts there should be: more at once, and fewer when fewer were enough for a while.

    Args:
        least: The hosts that there are at least.
        most: The hosts that there are at most.
        capacity: Runs at the same time at one host.
        shrink_seconds: How long fewer must have been enough.
        have: The hosts that there are already: they count as needed until now.
        now: The time of a clock, as for the methods.
    """

    def __init__(
        self, *, least: int, most: int, capacity: int, shrink_seconds: float, have: int, now: float
    ) -> None:
        self._least, self._most = least, most
        self._full = FULL_SHARE * capacity
        self._shrink_seconds = shrink_seconds
        self._reports: dict[str, tuple[float, int]] = {}
        self._needs: deque[tuple[float, int]] = deque([(now, have)])

    def note(self, broker: str, load: int, now: float) -> None:
        """Takes a broker's report: how many of its runs have a place or wait for one."""
        self._reports[broker] = (now, load)

    def leave(self, broker: str) -> None:
        """Takes note that a broker stops."""
        self._reports.pop(broker, None)

    def brokers(self, now: float) -> int:
        """Returns how many brokers there are."""
        self._reports = {
            broker: (when, load)
            for broker, (when, load) in self._reports.items()
            if now - when <= REPORT_SECONDS
        }
        return len(self._reports)

    def wanted(self, now: float) -> int:
        """Returns how many hosts there should be."""
        self.brokers(now)
        load = sum(load for _, load in self._reports.values())
        need = min(self._most, max(self._least, math.ceil(load / self._full)))
        # What is as much or more is the answer as long as the earlier one would have been.
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while now - self._needs[0][0] > self._shrink_seconds:
            self._needs.popleft()
        return self._needs[0][1]
