"""How exactly caps are kept: memory over the budget, and ends past the deadline with every place busy.

The budget's figures are the most anonymous memory of any worker, looked at from outside, over that of a worker that
idles; a deadline's are from the end of a run's `timeoutMs` to its response, its wait in the queue left out. The exit
code is 1 where a target is missed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import MIB, Targets, broker, median_and, parser, warmed
from benchmarks.processes import workers
from cellblock import Broker

BUDGET_MIB: Final = 64
MOST_OVER_MIB: Final = 16.0
DEADLINE_MS: Final = 300
MOST_P50_MS: Final = 25.0
MOST_P99_MS: Final = 75.0
POLL_SECONDS: Final = 0.0005

HOGS: Final = {
    "heap objects": "for (let i = 0; ; i++) kept.push({ a: i, b: [i] });",
    "ArrayBuffer": "for (;;) kept.push(new Uint8Array(65536).fill(1).buffer);",
    "strings": "for (let i = 0; ; i++) { const s = 'x'.repeat(100_000) + i; s.charCodeAt(3); kept.push(s); }",
    "Map": "const map = new Map(); for (let i = 0; ; i++) map.set(i, { i });",
    "typed arrays": "for (;;) kept.push(new Float64Array(20_000).fill(0.5));",
}


class Looking:
    """Looks at the anonymous memory of processes until it is left; `most` has the largest of any."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.most = 0
        self._files = [Path(f"/proc/{pid}/status") for pid in pids]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Looking:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        for file in self._files:
            try:
                status = file.read_bytes()
            except OSError:
                continue
            if (at := status.find(b"RssAnon:")) >= 0:
                kib = int(status[at + 8 : status.index(b"kB", at)])
                self.most = max(self.most, kib * 1024)


async def over_budget(of: Broker, code: str) -> tuple[float, str]:
    """MiB over what a worker has at rest and the budget, and how the run ended."""
    await warmed(of)
    with Looking(workers(of.host_pid)) as looking:
        idle = looking.most
        limits = {"maxMemoryBytes": BUDGET_MIB * MIB, "timeoutMs": 30_000}
        response = await of.run(f"const kept = [];\n{code}", limits=limits)
    ends = [entry.code for entry in response.diagnostics if entry.severity == "error"]
    return (looking.most - idle) / MIB - BUDGET_MIB, ends[0] if ends else "none"


async def late(of: Broker, rounds: int, places: int) -> list[float]:
    """Milliseconds from each deadline to the response, with all places busy."""
    found: list[float] = []

    async def one() -> None:
        for _ in range(rounds):
            began = time.perf_counter()
            response = await of.run("for (;;) {}", limits={"timeoutMs": DEADLINE_MS, "maxCpuMs": 60_000})
            taken = (time.perf_counter() - began) * 1000
            assert any("timeoutMs" in entry.message for entry in response.diagnostics), response
            found.append(taken - response.usage.queue_ms - DEADLINE_MS)

    await asyncio.gather(*(one() for _ in range(places)))
    return found


async def measure(runs: int, rounds: int) -> bool:
    """Prints the figures; says whether the targets are met."""
    targets, places = Targets(), 2 * (os.cpu_count() or 1)
    async with broker(pool={"warm": 2, "capacity": places}) as of:
        for name, code in HOGS.items():
            found = [await over_budget(of, code) for _ in range(runs)]
            ends = ", ".join(sorted({end for _, end in found}))
            what = f"{name}, over {BUDGET_MIB} MiB, ended by {ends}"
            targets.judge(what, max(over for over, _ in found), MOST_OVER_MIB, "MiB")
        p50, p99 = median_and(99, await late(of, rounds, places))
        targets.judge(f"past the deadline, {places} places busy, p50", p50, MOST_P50_MS, "ms")
        targets.judge("the same, p99", p99, MOST_P99_MS, "ms")
    return targets.are_met


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when every target is met, else 1."""
    arguing = parser("bench caps", __doc__)
    arguing.add_argument("--runs", type=int, default=5, help="of each kind that takes memory (5)")
    arguing.add_argument("--rounds", type=int, default=20, help="ends at a deadline in each place (20)")
    options = arguing.parse_args(arguments)
    return 0 if asyncio.run(measure(options.runs, options.rounds)) else 1
