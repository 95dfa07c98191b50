"""Metrics makes `/metrics`: the tally and the state of the pool in the text format of Prometheus, by its own library.

The library is imported at the first request (30 ms): counting needs none of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from cellblock.run.events import CallFacts, RunFacts, Watcher, call_outcome

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from cellblock.observe.facts import BrokerFacts

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
        self.call_seconds = defaultdict[str, Histogram](lambda: Histogram(CALL_SECONDS))
        """Holds the durations of calls by server."""

    def run_leased(self, run: RunFacts) -> None:
        if run.leased is not None and run.queued is not None:
            self.queue_seconds.add(run.leased - run.queued)

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        server, tool = self._labels(call)
        self.calls[server, tool, call_outcome(call)] += 1
        self.call_seconds[server].add(call.duration_ms / 1000)

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


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_POOL: Final = (
    ("pool_places", "Runs that may run at the same time.", "capacity"),
    ("pool_running", "Places that are taken.", "running"),
    ("pool_queued", "Runs that wait for a place.", "queued"),
    ("pool_warm_workers", "Workers that are booted and wait.", "warm"),
    ("pool_booting_workers", "Workers that are being booted.", "booting"),
    ("worker_hosts", "Worker hosts that are connected.", "hostCount"),
)

_CALLS: Final = ("server", "tool", "outcome")
_CALL_TIME: Final = "Tool calls, from the script's to its answer."
_ENDS: Final = "Workers that had a script and were killed, by reason; `finished`: after its end."
_CONNECTS: Final = "Attempts to connect to a server."


class Metrics:
    """Makes the page `/metrics`.

    Args:
        tally: What is counted.
        facts: Of the broker; None while it does not run.
    """

    def __init__(self, tally: Tally, facts: BrokerFacts | None) -> None:
        self._tally = tally
        self._facts = facts
        self._registry: Any = None

    def page(self) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            # A registry of our own: another one in this process may have collectors of an embedder.
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics (part of the library's collector protocol)."""
        from prometheus_client.core import (
            CounterMetricFamily as Counter,
            GaugeMetricFamily as Gauge,
            HistogramMetricFamily as Durations,
        )

        tally, facts = self._tally, self._facts

        def family(kind: Any, name: str, text: str, labels: Sequence[str], rows: Iterable[Any]) -> Metric:
            metric = kind(f"cellblock_{name}", text, labels=labels)
            for row in rows:
                metric.add_metric(*row)
            return metric

        def counted(counts: Mapping[str, int]) -> list[Any]:
            return [([label], count) for label, count in counts.items()]

        ended, ends = counted(tally.runs or {"ok": 0}), counted(tally.worker_ends)
        yield family(Counter, "runs", "Runs that have ended, by outcome.", ["outcome"], ended)
        took, waited = _row([], tally.run_seconds), _row([], tally.queue_seconds)
        yield family(Durations, "run_duration_seconds", "From request to response.", [], [took])
        yield family(Durations, "queue_wait_seconds", "Wait of a run for its place.", [], [waited])
        calls = tally.calls.items()
        yield family(Counter, "tool_calls", "Tool calls that have ended.", _CALLS, calls)
        durations = [_row([server], histogram) for server, histogram in tally.call_seconds.items()]
        yield family(Durations, "tool_call_duration_seconds", _CALL_TIME, ["server"], durations)
        yield family(Counter, "worker_ends", _ENDS, ["reason"], ends)
        if facts is None:
            return
        pool, servers = facts.pool(), facts.upstreams()
        for name, text, key in _POOL:
            yield family(Gauge, name, text, [], [([], pool[key])])

        def by_server(key: str) -> list[Any]:
            return counted({server["id"]: server[key] for server in servers})

        up = counted({server["id"]: server["state"] == "ready" for server in servers})
        yield family(Gauge, "upstream_up", "Whether a server is connected.", ["server"], up)
        yield family(Gauge, "upstream_tools", "Tools that scripts can call.", ["server"], by_server("tools"))
        yield family(Counter, "upstream_connects", _CONNECTS, ["server"], by_server("attempts"))


def _row(labels: list[str], histogram: Histogram) -> tuple[Any, ...]:
    names = [str(bound) for bound in (*histogram.bounds, "+Inf")]
    return labels, list(zip(names, accumulate(histogram.counts), strict=True)), histogram.sum
