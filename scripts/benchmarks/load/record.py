"""Latencies of a measurement: an HDR histogram in microseconds, three significant digits."""

from __future__ import annotations

import importlib
from typing import Any, Final

_hdr: Any = importlib.import_module("hdrh.histogram")  # untyped

HIGHEST_US: Final = 120_000_000
POINTS: Final = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)


class Latencies:
    """Takes seconds, gives milliseconds."""

    def __init__(self) -> None:
        self._histogram: Any = _hdr.HdrHistogram(1, HIGHEST_US, 3)
        self.errors = 0

    def add(self, seconds: float) -> None:
        """Records one latency."""
        self._histogram.record_value(max(1, min(HIGHEST_US, int(seconds * 1e6))))

    @property
    def count(self) -> int:
        """Recorded values."""
        return int(self._histogram.get_total_count())

    def at(self, percentile: float) -> float:
        """Milliseconds at a percentile; 0.0 when nothing was recorded."""
        return int(self._histogram.get_value_at_percentile(percentile)) / 1000 if self.count else 0.0

    def as_json(self) -> dict[str, Any]:
        """Count, errors, mean and the usual percentiles in milliseconds, and points of the whole distribution."""
        return {
            "count": self.count,
            "errors": self.errors,
            "mean_ms": round(float(self._histogram.get_mean_value()) / 1000, 3) if self.count else 0.0,
            **{f"p{str(p).replace('.', '_')}_ms": round(self.at(p), 3) for p in (50, 90, 99, 99.9)},
            "distribution_ms": [[p, round(self.at(p), 3)] for p in POINTS],
        }
