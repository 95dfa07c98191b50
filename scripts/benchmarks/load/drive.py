"""Arrivals: closed (so many clients, each waits for its answer) and open (Poisson, nobody waits for anybody)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.load.record import Latencies

Work = Callable[[], Awaitable[Any]]

DRAIN_BOUND_SECONDS: Final = 60.0
"""For the answers that are still under way when the last run of an open load has been sent."""


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


async def closed(work: Work, *, clients: int, seconds: float) -> Outcome:
    """`clients` loops that each start the next run when the last is answered."""
    outcome = Outcome()
    started = time.perf_counter()
    until = started + seconds

    async def loop() -> None:
        while (at := time.perf_counter()) < until:
            try:
                response = await work()
            except Exception:  # noqa: BLE001 - a load counts failures, whatever they are
                outcome.latencies.errors += 1
                continue
            outcome.take(time.perf_counter() - at, response)

    await asyncio.gather(*(loop() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - started
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


async def poisson(work: Work, *, rate: float, seconds: float, seed: int = 1) -> Outcome:
    """Starts at random times, `rate` a second; each latency counts from the time at which the run was due.

    So a stall of the machine or of the daemon is paid by every run that was due in it (no coordinated omission).
    """
    outcome = Outcome()
    source = random.Random(seed)
    tasks: set[asyncio.Task[None]] = set()
    started = time.perf_counter()

    async def one(due: float) -> None:
        try:
            response = await work()
        except Exception:  # noqa: BLE001
            outcome.latencies.errors += 1
            return
        outcome.take(time.perf_counter() - due, response)

    due = started
    while True:
        due += source.expovariate(rate)
        if due > started + seconds:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=DRAIN_BOUND_SECONDS)
    outcome.seconds = time.perf_counter() - started
    return outcome
