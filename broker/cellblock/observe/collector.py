"""Collects a broker's metrics for a Prometheus registry of the program that embeds it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from prometheus_client.registry import Collector

from cellblock.base.internal import internal
from cellblock.observe.metrics import Metrics, Tally

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from cellblock.observe.facts import BrokerFacts

logger = logging.getLogger("cellblock")

BOUND_SECONDS: Final = 10.0
"""Bounds the wait for the broker's loop: as long as Prometheus waits for a whole page."""


class MetricsCollector(Collector):
    """Gives a registry what `/metrics` of the daemon has; `registry.register` takes it. Any thread may collect.

    While the broker does not run, there are only the counters.

    Args:
        tally: What is counted.
        running: Gives the broker's loop and parts while it runs.
    """

    @internal
    def __init__(
        self, tally: Tally, running: Callable[[], tuple[asyncio.AbstractEventLoop, BrokerFacts] | None]
    ) -> None:
        self._tally = tally
        self._running = running

    def describe(self) -> list[Metric]:
        """Names no metric before it is collected (part of the library's collector protocol)."""
        return []

    def collect(self) -> list[Metric]:
        """Returns all metrics (part of the library's collector protocol)."""
        running = self._running()
        if running is None:
            return list(Metrics(self._tally, None).collect())
        loop, facts = running
        metrics = Metrics(self._tally, facts)
        try:
            if asyncio.get_running_loop() is loop:
                return list(metrics.collect())
        except RuntimeError:
            pass  # a thread without a loop
        # Whatever is counted changes in that loop alone.
        waited = asyncio.run_coroutine_threadsafe(_collected(metrics), loop)
        try:
            return waited.result(BOUND_SECONDS)
        except TimeoutError:
            waited.cancel()
            logger.warning("metrics: the broker's event loop has not answered for %g s", BOUND_SECONDS)
            return []


async def _collected(metrics: Metrics) -> list[Metric]:
    return list(metrics.collect())
