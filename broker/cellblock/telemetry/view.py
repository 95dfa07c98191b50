"""What a person looks at: pool, queue, latencies, servers, runs and knowledge as one JSON object.

The dashboard, `cellblock top` and the metrics all read from here.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from cellblock.telemetry.board import Board
from cellblock.telemetry.tally import Histogram, Tally

SERIES_SECONDS: Final = 60

KNOWLEDGE_SECONDS: Final = 5.0
"""For so long, what is known of the tools is not counted anew."""

Data = dict[str, Any]


class Observed(Protocol):
    """What is asked of the broker; `daemon.Broker` implements it. Plain JSON data each."""

    def pool(self) -> Data:
        """`capacity`, `running`, `queued`, `warm`, `booting`, `warmWanted`, `hostCount`, `hosts`."""
        ...

    def upstreams(self) -> list[Data]:
        """For each server `id`, `name`, `state`, `reason` (safe text), `tools`, `attempts`."""
        ...

    def knowledge(self) -> list[Data]:
        """For each server `id`, and counts of its tools by where their output types come from."""
        ...


class View:
    """Makes the object.

    Args:
        observed: The broker.
        tally: Numbers since the start.
        board: Runs.
        version: Of Cellblock.
    """

    def __init__(self, observed: Observed, tally: Tally, board: Board, version: str) -> None:
        self._observed = observed
        self._tally = tally
        self.board = board
        self._version = version
        self._since = time.monotonic()
        self._knowledge: tuple[float, list[Data]] = (-KNOWLEDGE_SECONDS, [])

    def state(self) -> Data:
        """Everything but the details of single runs."""
        return {
            "version": self._version,
            "time": time.time(),
            "uptimeSeconds": round(time.monotonic() - self._since, 1),
            "pool": self._observed.pool(),
            "runs": {"total": self._tally.runs.total(), "byOutcome": dict(self._tally.runs)},
            "perSecond": self.board.per_second(SERIES_SECONDS),
            "latency": {
                "run": _latency(self._tally.run_seconds),
                "queue": _latency(self._tally.queue_seconds),
            },
            "workerEnds": dict(self._tally.worker_ends),
            "live": self.board.live(),
            "recent": self.board.recent(),
            "upstreams": self._upstreams(),
            "knowledge": self._known(),
        }

    def _upstreams(self) -> list[Data]:
        calls: dict[str, dict[str, int]] = {}
        for (server, _, outcome), count in self._tally.calls.items():
            counts = calls.setdefault(server, {})
            counts[outcome] = counts.get(outcome, 0) + count
        return [
            {
                **upstream,
                "calls": calls.pop(upstream["id"], {}),
                "latency": _latency(self._tally.call_seconds.get(upstream["id"])),
            }
            for upstream in self._observed.upstreams()
        ]

    def _known(self) -> list[Data]:
        at, known = self._knowledge
        now = time.monotonic()
        if now - at >= KNOWLEDGE_SECONDS:
            known = self._observed.knowledge()
            self._knowledge = (now, known)
        return known


def _latency(histogram: Histogram | None) -> Data:
    if histogram is None:
        return {"count": 0, "p50": None, "p95": None, "p99": None}
    p50, p95, p99 = (
        None if value is None else round(value * 1000, 2) for value in histogram.percentiles(0.5, 0.95, 0.99)
    )
    return {"count": histogram.count, "p50": p50, "p95": p95, "p99": p99}
