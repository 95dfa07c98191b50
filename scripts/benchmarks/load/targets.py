"""The targets, each a ratio (or a small difference) against a yardstick of the same run."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from benchmarks import processes
from benchmarks.drive import Outcome, spaced
from benchmarks.harness import MIB, in_turns_async, say, seconds_of
from benchmarks.load import calls, fronts, sweep, yardsticks
from benchmarks.load.scenarios import TRIVIAL, Scenario

REST_SECONDS: Final = 0.06
"""Between the runs of a single client: an agent thinks far longer."""

IDLE_SECONDS: Final = 10.0
QUICK_IDLE_SECONDS: Final = 4.0
REFILL_SECONDS: Final = 2.0
BOOT_SECONDS: Final = 0.25
"""From a run to the end of its worker's replacement."""

NEVER: Final = "never"
"""Names the mode that has a process for each run."""

BOUNDS: Final = {
    NEVER: {"1a": 0.30, "1b": 0.30, "1c": 1.0, "2a": 1.55, "2a, no import": 1.55, "3d": 7.0},
    "principal": {"1a": 0.30, "1b": 0.30, "1c": 1 / 5, "2a": 1 / 5, "2a, no import": 1 / 6, "3d": 6.0},
}
CPU_MS: Final = {"broker": 0.7, "host": 0.4, "worker": 1.0}

NEIGHBOURS: Final = 8
QUIET_RUNS: Final = 100
"""Of a round alone, and of one beside the noisy clients: their p99 is not the slowest."""

QUIET_ROUNDS: Final = 4
KNOWN_SECONDS: Final = 1.0
"""From the first noisy run to the first quiet one beside them, and from the last one to the next quiet one alone."""
STOP_SECONDS: Final = 30.0

CPU_BOMB: Final = Scenario("CPU bomb", "for (;;);", {"timeoutMs": 2000, "maxCpuMs": 1000})
MEMORY_BOMB: Final = Scenario(
    "allocation bomb",
    "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(7));",
    {"timeoutMs": 2000},
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table: what was measured, against what, and whether it is within the target."""

    number: str
    what: str
    measured: float
    bound: float
    unit: str
    detail: str

    @property
    def met(self) -> bool:
        """Whether the measured value is within the bound."""
        return self.measured <= self.bound


class Targets:
    """Measures the targets one after the other.

    Args:
        bare: The bare process yardstick.
        quick: A tenth of the samples.
    """

    def __init__(self, bare: yardsticks.BareDeno, *, quick: bool) -> None:
        self._bare, self._quick = bare, quick

    async def embedded(self, front: fronts.Embedded, mode: str) -> list[Verdict]:
        """Targets 3, 5, 6 and 7, through the embedding API; what a warm worker costs, of workers that serve one run."""
        found: list[Verdict] = []
        plain = [self._memory, self._burst] if mode == NEVER else []
        for step in (self._calls, *plain, self._neighbours):
            say(f"target, reuse {mode}: {(step.__doc__ or '').splitlines()[0]}")
            found += await step(front)
            await asyncio.sleep(1.0)
        return [replace(one, what=_in(mode, one.what)) for one in found]

    async def _calls(self, front: fronts.Embedded) -> list[Verdict]:
        """3. Tool calls: in-process, of stdio servers beside the raw SDK, and twenty at once."""
        found = await calls.measure(front, rounds=2 if self._quick else 9)
        return [
            Verdict("3a", "call of an in-process Python tool, p50", found.local, 0.2, "ms", ""),
            *(
                Verdict("3b", f"call of a stdio server / raw SDK call, {what}", one.ours / one.raw, 1.5, "",
                        f"{one.ours:.2f} ms / {one.raw:.2f} ms")
                for what, one in (("a plain server", found.plain), ("a server of the SDK", found.sdk))
            ),
            Verdict("3c", "(20 calls at once - 1 ms) / the slowest", found.parallel, 1.3, "", ""),
        ]  # fmt: skip

    async def _memory(self, front: fronts.Embedded) -> list[Verdict]:
        """5. What a worker, the host and the broker take."""
        await asyncio.sleep(REFILL_SECONDS)
        known = set(processes.workers())
        boots: list[float] = []
        bare: list[float] = []
        # In turns: an hour, or another's work on the machine, changes either by more than what they differ by.
        for _ in range(8 if self._quick else 40):
            await front.run(TRIVIAL)
            await asyncio.sleep(BOOT_SECONDS)
            fresh = set(processes.workers()) - known
            known |= fresh
            boots += [cpu for pid in fresh if (cpu := processes.cpu_seconds(pid))]
            bare.append(await self._bare.cpu_seconds(1, rest=REST_SECONDS))
        warm = processes.workers()
        memory = statistics.median(processes.private_bytes(pid) for pid in warm) / MIB if warm else 0.0
        pair = (processes.private_bytes(os.getpid()) + processes.private_bytes(front.pid)) / MIB
        boot, other = statistics.median(boots) * 1000, statistics.median(bare) * 1000
        said = f"{boot:.1f} ms against {other:.1f} ms, {len(boots)} times in turns"
        return [
            Verdict("5a", "CPU of a worker's boot / of a bare deno run", boot / other, 1.25, "", said),
            Verdict("5b", "private memory of an idle warm worker", memory, 12.0, "MiB", f"{len(warm)} workers"),
            Verdict("5c", "private memory of broker and host", pair, 120.0, "MiB", "with this harness in the broker"),
        ]  # fmt: skip

    async def _burst(self, front: fronts.Embedded) -> list[Verdict]:
        """6. A burst of twice the pool after idling, and what idling costs."""
        size = 2 * front.broker.settings.cellblock.pool.warm
        tails: list[float] = []
        idle: list[float] = []
        for _ in range(3 if self._quick else 5):
            # The last burst's workers have been replaced by then: their boots are not idling.
            await asyncio.sleep(REFILL_SECONDS)
            before, at = self._own_cpu(front), time.perf_counter()
            await asyncio.sleep(QUICK_IDLE_SECONDS if self._quick else IDLE_SECONDS)
            idle.append((self._own_cpu(front) - before) / (time.perf_counter() - at))
            burst = Outcome()

            async def one(burst: Outcome = burst) -> None:
                burst.latencies.add(await seconds_of(front.run(TRIVIAL)))

            await asyncio.gather(*(one() for _ in range(size)))
            tails.append(burst.latencies.at(99))
        bare = await spaced(self._bare, count=20, pause=REST_SECONDS)
        spawn, tail = bare.latencies.at(50), statistics.median(tails)
        return [
            Verdict("6a", f"p99 of a burst of {size} / bare deno run", tail / spawn, 2.5, "",
                    f"{tail:.0f} ms / {spawn:.0f} ms"),
            Verdict("6b", "CPU of an idle daemon", statistics.median(idle) * 100, 0.5, "%", "of one core"),
        ]  # fmt: skip

    def _own_cpu(self, front: fronts.Embedded) -> float:
        return sum(map(processes.cpu_seconds, (os.getpid(), front.pid, *processes.workers())))

    async def _neighbours(self, front: fronts.Embedded) -> list[Verdict]:
        """7. A quiet client beside noisy ones at their caps, and alone."""

        async def alone() -> float:
            quiet = partial(front.run, TRIVIAL, client="quiet")
            return (await spaced(quiet, count=QUIET_RUNS, pause=REST_SECONDS)).latencies.at(99)

        async def noise(number: int, over: asyncio.Event) -> None:
            while not over.is_set():
                await front.run(CPU_BOMB if number % 2 else MEMORY_BOMB, client=f"noisy {number}")

        async def beside() -> float:
            over = asyncio.Event()
            tasks = [asyncio.create_task(noise(number, over)) for number in range(NEIGHBOURS)]
            await asyncio.sleep(KNOWN_SECONDS)
            found = await alone()
            over.set()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
            await asyncio.sleep(KNOWN_SECONDS)
            return found

        # A ratio for each round: the machine changes from minute to minute.
        found = await in_turns_async({"alone": alone, "beside": beside}, 1 if self._quick else QUIET_ROUNDS)
        ratio = statistics.median(a / b for a, b in zip(found["beside"], found["alone"], strict=True))
        each = {name: ", ".join(f"{p99:.1f}" for p99 in p99s) for name, p99s in found.items()}
        return [
            Verdict("7", "p99 of a quiet client beside noisy ones / alone", ratio, 2.0, "",
                    f"{each['beside']} ms beside {NEIGHBOURS} noisy ones, {each['alone']} ms alone"),
        ]  # fmt: skip


def of_sweep(rows: list[dict[str, Any]], mode: str) -> list[Verdict]:
    """Targets 1, 2 and 3d, from the load that was in turns with bare processes."""

    def both(cell: sweep.Cell) -> tuple[dict[str, Any], dict[str, Any]]:
        return sweep.row_of(rows, cell, mode), sweep.row_of(rows, cell, sweep.BARE)

    def rate(number: str, what: str, cell: sweep.Cell, bound: float) -> Verdict:
        ours, bare = (row["per_second"] for row in both(cell))
        return Verdict(
            number, what, bare / ours, bound, "", f"{ours:.1f} runs/s against {bare:.1f} processes/s"
        )

    warm, bare = (row["latency"] for row in both(sweep.WARM))
    row, _ = both(sweep.IN_A_ROW)
    saturated, _ = both(sweep.SATURATED)
    said = f"{warm['p50_ms']:.2f} ms against {bare['p50_ms']:.1f}; "
    said += f"p99 {warm['p99_ms']:.1f} against {bare['p99_ms']:.1f}"
    calls = row["latency"]["p50_ms"]
    over = 0.0 if mode != NEVER else warm["p50_ms"]
    ideal = 1000 * sweep.SATURATED.clients / saturated["per_second"]
    bounds = BOUNDS.get(mode, BOUNDS[NEVER])
    found = [
        Verdict("1a", "warm p50 / bare deno p50", warm["p50_ms"] / bare["p50_ms"], bounds["1a"], "", said),
        Verdict("1b", "warm p99 / bare deno p99", warm["p99_ms"] / bare["p99_ms"], bounds["1b"], "", said),
        rate("1c", "bare rate / runs per second, one client", sweep.ONE, bounds["1c"]),
        rate("2a", "bare rate / runs per second, 8 clients", sweep.SATURATED, bounds["2a"]),
        rate("2a", "bare rate / runs per second, 8 principals", sweep.APART, bounds["2a"]),
        rate("2a", "bare rate / runs per second, 8 clients, no import", sweep.PLAIN, bounds["2a, no import"]),
        Verdict("2b", "p99 / ideal queueing time", saturated["latency"]["p99_ms"] / ideal, 3.0, "", ""),
        Verdict("3d", f"20 calls in a row{' over a trivial run' if over else ''}, p50", calls - over, bounds["3d"],
                "ms", f"{calls:.1f} ms and {over:.1f} ms"),
    ]  # fmt: skip
    if mode != NEVER:
        used = saturated["cpu_ms"]
        found += [
            Verdict("2c", f"CPU of a saturated run, {part}", used.get(part, 0.0), bound, "ms", "")
            for part, bound in CPU_MS.items()
        ]
    return [replace(one, what=_in(mode, one.what)) for one in found]


def _in(mode: str, what: str) -> str:
    return what if mode == NEVER else f"{what}; reuse {mode}"


async def front_cost(front: fronts.Served, embedded: fronts.Embedded, *, count: int) -> list[Verdict]:
    """4. What a front-end adds to the embedding API, in turns, beside a call of the SDK's own that does nothing; with
    the SDK's client, and where it can be with one that costs next to nothing itself."""
    outcomes = [Outcome() for _ in range(5)]
    for _ in range(max(1, count // 20)):
        turns: list[Callable[[], Awaitable[Any]]] = [
            lambda: front.run(TRIVIAL),
            lambda: embedded.run(TRIVIAL),
            front.nothing,
        ]
        if (plain := front.plain) is not None:
            turns += [partial(plain.run, TRIVIAL), plain.nothing]
        for work, outcome in zip(turns, outcomes, strict=False):
            if plain is not None:
                plain.renew()
            await spaced(work, count=20, pause=REST_SECONDS, outcome=outcome)
    a, b, c, d, e = (outcome.latencies.at(50) for outcome in outcomes)
    what, tool = f"{front.name} over the embedding API, p50", "for a tool that does nothing"
    said = f"{a:.2f} ms and {b:.2f} ms; the SDK alone takes {c:.2f} ms {tool}"
    found = [Verdict("4", what, a - b, 4.0, "ms", said)]
    if front.plain is not None:
        said = f"{d:.2f} ms and {b:.2f} ms; the SDK's server takes {e:.2f} ms {tool}"
        found.append(Verdict("4", f"{what}, plain client", d - b, 4.0, "ms", said))
    return found
