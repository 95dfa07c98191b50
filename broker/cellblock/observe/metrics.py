"""Metrics makes `/metrics`: the tally and the state of the pool in the text format of Prometheus, by its own library.

The library is imported at the first request (30 ms): counting needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from cellblock.observe.tally import Histogram, Tally

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from cellblock.observe.view import BrokerFacts

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

    def describe(self) -> list[Metric]:
        """Names no metric before it is collected (part of the library's collector protocol)."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics (part of the library's collector protocol)."""
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge
        from prometheus_client.core import HistogramMetricFamily as Durations

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
