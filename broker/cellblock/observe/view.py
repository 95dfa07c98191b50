"""View makes what a person looks at: pool, queue, latencies, servers, runs and knowledge as one JSON object.

The dashboard reads the whole of it, and the metrics the facts of the broker's parts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from cellblock.observe.facts import BrokerFacts, Data
from cellblock.observe.metrics import Histogram, Tally
from cellblock.run.board import Board

SERIES_SECONDS: Final = 60

KNOWLEDGE_SECONDS: Final = 5.0
"""Passes before what is known of the tools is counted anew."""


class View:
    """Makes the JSON object that the dashboard shows.

    Args:
        facts: The state of the broker's parts.
        tally: What was counted.
        board: The runs.
        version: Of Cellblock.
        waiting: Counts the runs that wait for a person.
    """

    def __init__(
        self,
        facts: BrokerFacts,
        tally: Tally,
        board: Board,
        version: str,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._waiting = waiting
        self._facts = facts
        self._tally = tally
        self.board = board
        self._version = version
        self._since = time.monotonic()
        self._knowledge: tuple[float, list[Data]] = (-KNOWLEDGE_SECONDS, [])

    def state(self) -> Data:
        """Returns everything but the details of single runs."""
        tally = self._tally
        return {
            "version": self._version,
            "time": time.time(),
            "uptimeSeconds": round(time.monotonic() - self._since, 1),
            "pool": self._facts.pool(),
            "runs": {"total": tally.runs.total(), "byOutcome": dict(tally.runs)},
            "perSecond": self.board.per_second(SERIES_SECONDS),
            "latency": {"run": _latency(tally.run_seconds), "queue": _latency(tally.queue_seconds)},
            "workerEnds": dict(tally.worker_ends),
            "parked": self._waiting(),
            "live": self.board.live(),
            "recent": self.board.recent(),
            "upstreams": self._upstreams(),
            "knowledge": self._known(),
        }

    def _upstreams(self) -> list[Data]:
        calls: dict[str, Counter[str]] = {}
        for (server, _, outcome), count in self._tally.calls.items():
            calls.setdefault(server, Counter())[outcome] += count
        return [
            {
                **upstream,
                "calls": calls.get(upstream["id"], Counter()),
                "latency": _latency(self._tally.call_seconds.get(upstream["id"])),
            }
            for upstream in self._facts.upstreams()
        ]

    def _known(self) -> list[Data]:
        now = time.monotonic()
        if now - self._knowledge[0] >= KNOWLEDGE_SECONDS:
            self._knowledge = (now, self._facts.knowledge())
        return self._knowledge[1]


def _latency(histogram: Histogram | None) -> Data:
    found = [None] * 3 if histogram is None else histogram.percentiles(0.5, 0.95, 0.99)
    p50, p95, p99 = (None if value is None else round(value * 1000, 2) for value in found)
    return {"count": 0 if histogram is None else histogram.count, "p50": p50, "p95": p95, "p99": p99}
