"""A quiet client beside noisy ones at their caps: target 7."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.load import fronts
from benchmarks.load.drive import spaced
from benchmarks.load.scenarios import TRIVIAL, Scenario

NEIGHBOURS: Final = 8
KNOWN_SECONDS: Final = 1.0
"""From the first noisy run to the first quiet one beside them."""
STOP_SECONDS: Final = 30.0

CPU_BOMB: Final = Scenario("CPU bomb", "for (;;);", {"timeoutMs": 2000, "maxCpuMs": 1000})
MEMORY_BOMB: Final = Scenario(
    "allocation bomb",
    "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(7));",
    {"timeoutMs": 2000},
)


async def quiet_p99(front: fronts.Embedded, *, count: int, pause: float) -> tuple[float, float]:
    """The p99 of a quiet client in milliseconds, alone and beside noisy ones, each over `count` runs."""
    alone = await spaced(lambda: front.run(TRIVIAL, client="quiet"), count=count, pause=pause)
    over = asyncio.Event()

    async def noise(number: int) -> None:
        bomb = CPU_BOMB if number % 2 else MEMORY_BOMB
        while not over.is_set():
            await front.run(bomb, client=f"noisy {number}")

    tasks = [asyncio.create_task(noise(number)) for number in range(NEIGHBOURS)]
    await asyncio.sleep(KNOWN_SECONDS)
    beside = await spaced(lambda: front.run(TRIVIAL, client="quiet"), count=count, pause=pause)
    over.set()
    await asyncio.wait(tasks, timeout=STOP_SECONDS)
    return alone.latencies.at(99), beside.latencies.at(99)
