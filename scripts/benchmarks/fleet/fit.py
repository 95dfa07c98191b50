"""A fit says how far throughput is from growing with the hosts: a line through nothing, and what is off it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RESIDUAL: Final = 0.10
"""Bounds how far a point may be off the line, as a share of what the line says."""

FULL: Final = 0.90
"""Says from which share of its time a core, or the machine, counts as full: beyond that, nothing grows."""

LEAST_POINTS: Final = 3
"""Says how few points would fit any line."""


@dataclass(frozen=True)
class Point:
    """Is one count of hosts.

    Attributes:
        hosts: So many.
        per_second: What they did.
        broker: The share of its core that the busiest broker used.
        machine: The share of all cores that everything used.
    """

    hosts: int
    per_second: float
    broker: float
    machine: float

    @property
    def limit(self) -> str | None:
        """Names what was full; None: nothing."""
        if self.broker >= FULL:
            return "a broker's core"
        return "this machine" if self.machine >= FULL else None


@dataclass(frozen=True)
class Fit:
    """Holds the line, and what is said by it.

    Attributes:
        per_host: Runs a second for each host.
        residuals: By the number of hosts, of the points that count: how far off the line, as a share of it.
        met: Whether all are within `RESIDUAL`; None where there are too few to say.
    """

    per_host: float
    residuals: dict[int, float]
    met: bool | None


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the line through nothing whose relative residuals are least, in squares."""
    parts = [(x / y) for x, y in points]
    return sum(parts) / sum(part * part for part in parts)


def fitted(points: Sequence[Point]) -> Fit:
    """Fits the points at which nothing was full, and judges them; where these are too few, fits all, and judges
    none."""
    able = [point for point in points if point.per_second > 0]
    free = [point for point in able if point.limit is None]
    is_judged = len(free) >= LEAST_POINTS
    counted = free if is_judged else able
    if not counted:
        return Fit(0.0, {}, None)
    slope = slope_of([(point.hosts, point.per_second) for point in counted])
    residuals = {point.hosts: point.per_second / (slope * point.hosts) - 1 for point in counted}
    return Fit(
        slope, residuals, all(abs(off) <= RESIDUAL for off in residuals.values()) if is_judged else None
    )
