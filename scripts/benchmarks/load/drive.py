"""Arrivals: closed (each client starts its next run with the last answer), paced (at fixed times), and with rests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.record import Latencies

Work = Callable[[], Awaitable[Any]]
ClientsWork = Callable[[int], Awaitable[Any]]
"""Does one run of the client with that number, from 0 on."""


@dataclass
class Outcome:
    """What a load gave. `seconds` runs from the first start to the last answer."""

    latencies: Latencies = field(default_factory=Latencies)
    queue: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.latencies.count / self.seconds if self.seconds else 0.0

    def take(self, seconds: float, response: Any) -> None:
        """Records one answer; `response` is a `codemode.run` response or something else that is no error."""
        self.latencies.add(seconds)
        if isinstance(response, dict):
            self.queue.add(response.get("usage", {}).get("queueMs", 0) / 1000)  # pyright: ignore

    def as_json(self) -> dict[str, Any]:
        """Latency and queue wait in milliseconds, and the throughput."""
        return {
            "seconds": round(self.seconds, 3),
            "per_second": round(self.per_second, 2),
            "latency": self.latencies.as_json(),
            "queue": self.queue.as_json(),
        }


async def closed(
    work: ClientsWork, *, clients: int, seconds: float, outcome: Outcome | None = None
) -> Outcome:
    """`clients` loops that each start the next run when the last is answered."""
    outcome = outcome or Outcome()
    started = time.perf_counter()

    async def client(number: int) -> None:
        while (at := time.perf_counter()) < started + seconds:
            await _counted(work(number), at, outcome)

    await asyncio.gather(*(client(number) for number in range(clients)))
    outcome.seconds += time.perf_counter() - started
    return outcome


async def spaced(work: Work, *, count: int, pause: float, outcome: Outcome | None = None) -> Outcome:
    """One client that rests between runs: what a single agent sees."""
    outcome = outcome or Outcome()
    started = time.perf_counter()
    for _ in range(count):
        await asyncio.sleep(pause)
        at = time.perf_counter()
        response = await work()
        outcome.take(time.perf_counter() - at, response)
    outcome.seconds += time.perf_counter() - started
    return outcome


async def paced(
    work: ClientsWork, *, clients: int, period: float, seconds: float, outcome: Outcome | None = None
) -> Outcome:
    """Has a run of each client due every `period` seconds, the clients evenly apart.

    A latency counts from the time at which the run was due, so a stall is paid by every client that was due in it. What
    becomes due while a client still waits is left out: the rate tells of it, and no backlog is taken for latency.
    """
    outcome = outcome or Outcome()
    started = time.perf_counter()

    async def client(number: int) -> None:
        due = started + period * number / clients
        while due < started + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await _counted(work(number), due, outcome)
            due += period * max(1, math.ceil((time.perf_counter() - due) / period))

    await asyncio.gather(*(client(number) for number in range(clients)))
    outcome.seconds += time.perf_counter() - started
    return outcome


async def _counted(run: Awaitable[Any], since: float, outcome: Outcome) -> None:
    try:
        response = await run
    except Exception:  # noqa: BLE001 - a load counts failures, whatever they are
        outcome.latencies.errors += 1
    else:
        outcome.take(time.perf_counter() - since, response)
