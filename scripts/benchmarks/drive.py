"""Arrivals: closed (each client starts its next run with the last answer), paced (at fixed times), and with rests.

What counts of a closed load is a window of it, after a lead in which it uses up the workers that were booted before:
else a system with a process for each run would be credited with those.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

_hdr: Any = importlib.import_module("hdrh.histogram")  # untyped

HIGHEST_US: Final = 120_000_000
POINTS: Final = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)

LEAD_SECONDS: Final = 0.5
"""Of a closed load before it counts: by then it keeps a daemon booting as fast as it uses up, or has what it uses
again."""

Work = Callable[[], Awaitable[Any]]
ClientsWork = Callable[[int], Awaitable[Any]]
"""Does one run of the client with that number, from 0 on."""


class Latencies:
    """An HDR histogram in microseconds, three significant digits: takes seconds, gives milliseconds."""

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


@dataclass
class Outcome:
    """What a load gave: the answers within a window of it, which is `seconds` long.

    Attributes:
        worker_ms: CPU of the workers in their runs, as the answers say.
        own_seconds: CPU that recording has cost this process, so that a broker in it is not charged with that.
        counts: Whether answers count now.
        edge: Called where the window begins, and where it ends.
    """

    latencies: Latencies = field(default_factory=Latencies)
    queue: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    worker_ms: float = 0.0
    own_seconds: float = 0.0
    counts: bool = True
    edge: Callable[[], None] = lambda: None

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.latencies.count / self.seconds if self.seconds else 0.0

    def take(self, seconds: float, response: Any) -> None:
        """Records one answer; `response` is a `codemode.run` response or something else that is no error."""
        before = time.thread_time()
        if self.counts:
            self.latencies.add(seconds)
            if isinstance(response, dict):
                usage = cast("dict[str, Any]", response).get("usage", {})
                self.queue.add(usage.get("queueMs", 0) / 1000)
                self.worker_ms += usage.get("cpuMs", 0)
        self.own_seconds += time.thread_time() - before

    def as_json(self) -> dict[str, Any]:
        """Latency and queue wait in milliseconds, and the throughput."""
        return {
            "seconds": round(self.seconds, 3),
            "per_second": round(self.per_second, 2),
            "latency": self.latencies.as_json(),
            "queue": self.queue.as_json(),
        }


async def closed(
    work: ClientsWork, *, clients: int, seconds: float, lead: float = 0.0, outcome: Outcome | None = None
) -> Outcome:
    """`clients` loops that each start the next run when the last is answered. What is answered in `seconds` counts, of
    which `lead` seconds of the same load come first."""
    outcome, now = outcome or Outcome(), asyncio.get_running_loop().time
    outcome.counts = False
    over = asyncio.Event()

    async def client(number: int) -> None:
        while not over.is_set():
            await _counted(work(number), now(), outcome)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
        await asyncio.sleep(lead)
        outcome.edge()
        began, outcome.counts = now(), True
        await asyncio.sleep(seconds)
        outcome.seconds += now() - began
        outcome.counts = False
        outcome.edge()
        over.set()
    return outcome


async def spaced(work: Work, *, count: int, pause: float, outcome: Outcome | None = None) -> Outcome:
    """One client that rests between runs: what a single agent sees."""
    outcome, now = outcome or Outcome(), asyncio.get_running_loop().time
    started = now()
    for _ in range(count):
        await asyncio.sleep(pause)
        at = now()
        response = await work()
        outcome.take(now() - at, response)
    outcome.seconds += now() - started
    return outcome


async def paced(
    work: ClientsWork, *, clients: int, period: float, seconds: float, outcome: Outcome | None = None
) -> Outcome:
    """Has a run of each client due every `period` seconds, the clients evenly apart. All that was due counts.

    A latency counts from the time at which the run was due, so a stall is paid by every client that was due in it. What
    becomes due while a client still waits is left out: the rate tells of it, and no backlog is taken for latency.
    """
    outcome, now = outcome or Outcome(), asyncio.get_running_loop().time
    outcome.edge()
    started = now()

    async def client(number: int) -> None:
        due = started + period * number / clients
        while due < started + seconds:
            await asyncio.sleep(max(0.0, due - now()))
            await _counted(work(number), due, outcome)
            due += period * max(1, math.ceil((now() - due) / period))

    await asyncio.gather(*(client(number) for number in range(clients)))
    outcome.seconds += now() - started
    outcome.edge()
    return outcome


async def _counted(run: Awaitable[Any], since: float, outcome: Outcome) -> None:
    now = asyncio.get_running_loop().time
    try:
        response = await run
    except Exception:  # noqa: BLE001 - a load counts failures, whatever they are, and whenever
        outcome.latencies.errors += 1
    else:
        outcome.take(now() - since, response)
