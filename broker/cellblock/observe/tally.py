"""Tally counts all runs since the daemon's start, in plain counters, which the metrics and the dashboard read.

The label values are few by construction: names of tools count only where the tool exists, and only so many of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from typing import Final

from cellblock.run.events import CallFacts, RunFacts, Watcher, call_outcome

OUTCOMES: Final = frozenset(
    (
        "ok",
        "parked",
        "cancelled",
        "host_lost",
        "import_failure",
        "overloaded",
        "protocol_violation",
        "result_not_json",
        "sandbox_limit",
        "script_too_complex",
        "script_too_large",
        "syntax_error",
        "type_error",
        "uncaught_exception",
        "worker_crashed",
        "worker_unavailable",
    )
)
"""Names the outcomes of runs; anything else counts as `other`."""

UNKNOWN: Final = "unknown"
"""Stands for server and tool of a call of what does not exist: the script can write any name there."""

OTHER: Final = "other"

MAX_TOOLS: Final = 1_000
"""Caps the tools that are counted separately: those called first."""

RUN_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
QUEUE_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
CALL_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

RECENT: Final = 1_000
"""Bounds the durations that percentiles are made of."""

CallKey = tuple[str, str, str]
"""Names what calls are counted by: server, tool, outcome."""


class Histogram:
    """Counts by upper bound, as Prometheus has them, and the newest values for percentiles.

    Args:
        bounds: Upper bounds in seconds, ascending; one more bucket takes what is over the last.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.newest: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds
        self.newest.append(seconds)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def percentiles(self, *shares: float) -> list[float | None]:
        """Returns percentiles of the newest values, in seconds; None where there are none."""
        ordered = sorted(self.newest)
        last = len(ordered) - 1
        return [ordered[min(last, int(share * len(ordered)))] if ordered else None for share in shares]


class Tally(Watcher):
    """Counts runs and calls, with numbers for `MAX_TOOLS` pairs of server and tool; later ones count as `other`."""

    def __init__(self) -> None:
        self._tools: set[tuple[str, str]] = set()
        self.runs: Counter[str] = Counter()
        self.calls: Counter[CallKey] = Counter()
        self.worker_ends: Counter[str] = Counter()
        self.run_seconds = Histogram(RUN_SECONDS)
        self.queue_seconds = Histogram(QUEUE_SECONDS)
        self.call_seconds: dict[str, Histogram] = {}
        """Holds the durations of calls by server."""

    def run_leased(self, run: RunFacts) -> None:
        if run.leased is not None and run.queued is not None:
            self.queue_seconds.add(run.leased - run.queued)

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        server, tool = self._labels(call)
        self.calls[server, tool, call_outcome(call)] += 1
        histogram = self.call_seconds.get(server)
        if histogram is None:
            histogram = self.call_seconds[server] = Histogram(CALL_SECONDS)
        histogram.add(call.duration_ms / 1000)

    def run_ended(self, run: RunFacts) -> None:
        outcome = run.outcome.lower()
        self.runs[outcome if outcome in OUTCOMES else OTHER] += 1
        if run.ended is not None:
            self.run_seconds.add(run.ended - run.accepted)
        if run.worker_end is not None:
            self.worker_ends[run.worker_end] += 1

    def _labels(self, call: CallFacts) -> tuple[str, str]:
        if call.export is None:
            return UNKNOWN, UNKNOWN
        labels = (call.server, call.tool)
        if labels not in self._tools:
            if len(self._tools) >= MAX_TOOLS:
                return OTHER, OTHER
            self._tools.add(labels)
        return labels
