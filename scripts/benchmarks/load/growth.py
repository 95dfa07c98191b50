"""What one daemon takes and does as it gets more to do: memory of all its processes, and runs a second."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import processes
from benchmarks.client import TOOL, PlainClient
from benchmarks.drive import closed
from benchmarks.harness import MIB, daemon, say
from benchmarks.load import fronts
from benchmarks.load.scenarios import TRIVIAL
from benchmarks.load.sweep import CLIENTS

SETTLED_SECONDS: Final = 2.0
FIRST_SECONDS: Final = 1.0
"""The first second of a load counts by itself: there a pool has yet to grow."""

Row = dict[str, Any]


async def memory(folder: Path, mode: str, pool: dict[str, str], *, quick: bool) -> list[Row]:
    """Returns the PSS of a `cellblock serve --http` and of all below it: idle, after runs in a row, and with eight
    clients at work."""
    runs, seconds, most = (200 if quick else 1_000), (2.0 if quick else 8.0), max(CLIENTS)
    config, rows = fronts.write_config(folder, **pool), list[Row]()
    with (
        daemon(config, folder / "state", "--no-auth", environment=fronts.ENVIRONMENT) as served,
        contextlib.ExitStack() as closing,
    ):
        clients = [closing.enter_context(contextlib.closing(PlainClient(served.port))) for _ in range(most)]

        def note(when: str) -> None:
            pids = [one.pid for one in processes.tree(served.process.pid)]
            pss = processes.pss_bytes(pids) / MIB
            rows.append({"reuse": mode, "when": when, "processes": len(pids), "pss_mib": round(pss, 1)})
            say(f"reuse {mode}, {when}: {pss:.1f} MiB of {len(pids)} processes")

        async def run(number: int) -> object:
            return await clients[number].call(TOOL, fronts.arguments_of(TRIVIAL))

        await run(0)
        await fronts.calm(served.process.pid)
        await asyncio.sleep(SETTLED_SECONDS)
        note("idle")
        for _ in range(runs):
            await run(0)
        note(f"after {runs} runs in a row")
        group = asyncio.create_task(closed(run, clients=most, seconds=seconds))
        await asyncio.sleep(seconds * 3 / 4)
        note(f"with {most} clients")
        await group
    return rows


async def rates(front: fronts.Embedded, mode: str, *, quick: bool) -> list[Row]:
    """Returns the runs a second of one broker by number of clients: in the first second, and in what follows."""
    rows: list[Row] = []
    for clients in CLIENTS:
        await front.rested()
        load = partial(closed, lambda _: front.run(TRIVIAL), clients=clients)
        first, later = await load(seconds=FIRST_SECONDS), await load(seconds=2.0 if quick else 8.0)
        row = {"reuse": mode, "clients": clients, "processes": len(processes.workers())}
        row |= {"first_second": round(first.per_second, 1), "per_second": round(later.per_second, 1)}
        rows.append(row)
        say(f"reuse {mode}, {clients} clients: {row['first_second']}, then {row['per_second']} runs/s")
    return rows
