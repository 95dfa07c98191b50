"""`/metrics`: the tally and the state of the pool in the text format of Prometheus, made by its own client library.

The library is imported at the first request (30 ms): counting needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cellblock.telemetry.tally import Histogram, Tally
from cellblock.telemetry.view import Observed

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Gives the page.

    Args:
        tally: Numbers since the start.
        observed: The state now.
    """

    def __init__(self, tally: Tally, observed: Observed) -> None:
        self._tally = tally
        self._observed = observed
        self._registry: Any = None

    def page(self) -> bytes:
        """The whole page, UTF-8."""
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            # A registry of our own: another one in this process may have collectors of an embedder.
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is known before it is collected (part of the library's collector protocol)."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics (part of the library's collector protocol)."""
        yield from self._of_runs()
        yield from self._of_pool()
        yield from self._of_upstreams()

    def _of_runs(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        tally = self._tally
        runs = CounterMetricFamily("cellblock_runs", "Runs that have ended, by outcome.", labels=["outcome"])
        for outcome, count in (tally.runs or {"ok": 0}).items():
            runs.add_metric([outcome], count)
        yield runs
        seconds = HistogramMetricFamily(
            "cellblock_run_duration_seconds", "From request to response.", labels=[]
        )
        _add(seconds, [], tally.run_seconds)
        yield seconds
        waited = HistogramMetricFamily(
            "cellblock_queue_wait_seconds", "Wait of a run for its place.", labels=[]
        )
        _add(waited, [], tally.queue_seconds)
        yield waited
        calls = CounterMetricFamily(
            "cellblock_tool_calls", "Tool calls that have ended.", labels=["server", "tool", "outcome"]
        )
        for labels, count in tally.calls.items():
            calls.add_metric(labels, count)
        yield calls
        took = HistogramMetricFamily(
            "cellblock_tool_call_duration_seconds",
            "Tool calls, from the script's to its answer.",
            labels=["server"],
        )
        for server, histogram in tally.call_seconds.items():
            _add(took, [server], histogram)
        yield took
        ends = CounterMetricFamily(
            "cellblock_worker_ends",
            "Workers that had a script and were killed, by reason; `finished`: after its end.",
            labels=["reason"],
        )
        for reason, count in tally.worker_ends.items():
            ends.add_metric([reason], count)
        yield ends

    def _of_pool(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        pool = self._observed.pool()
        for name, help_text, key in (
            ("cellblock_pool_places", "Runs that may run at the same time.", "capacity"),
            ("cellblock_pool_running", "Places that are taken.", "running"),
            ("cellblock_pool_queued", "Runs that wait for a place.", "queued"),
            ("cellblock_pool_warm_workers", "Workers that are booted and wait.", "warm"),
            ("cellblock_pool_booting_workers", "Workers that are being booted.", "booting"),
            ("cellblock_worker_hosts", "Worker hosts that are connected.", "hostCount"),
        ):
            yield GaugeMetricFamily(name, help_text, value=pool[key])

    def _of_upstreams(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = GaugeMetricFamily("cellblock_upstream_up", "Whether a server is connected.", labels=["server"])
        tools = GaugeMetricFamily(
            "cellblock_upstream_tools", "Tools that scripts can call.", labels=["server"]
        )
        tried = CounterMetricFamily(
            "cellblock_upstream_connects", "Attempts to connect to a server.", labels=["server"]
        )
        for upstream in self._observed.upstreams():
            up.add_metric([upstream["id"]], 1.0 if upstream["state"] == "ready" else 0.0)
            tools.add_metric([upstream["id"]], upstream["tools"])
            tried.add_metric([upstream["id"]], upstream["attempts"])
        yield from (up, tools, tried)


def _add(family: Any, labels: list[str], histogram: Histogram) -> None:
    total, buckets = 0, list[tuple[str, float]]()
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((str(bound), total))
    family.add_metric(labels, buckets, histogram.sum)
