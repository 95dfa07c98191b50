"""What it costs a run to be watched: warm runs in one broker, with nobody watching and with everything on, in turn;
and the steps of a run alone, as CPU time of the loop's thread, which other work on the machine disturbs least.

.venv/bin/python scripts/measure_events.py [--runs N] [--only-bare]

`--only-bare` needs nothing that is newer than the broker itself, so that it can be run on an older checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from cellblock import Broker, tool
from cellblock.config.settings import parse_settings

SCRIPT = "globalThis.__codemode_result__ = 1"
CALLING = 'import { add } from "@codemode/servers/local"; await add({ a: 1, b: 2 }); console.log("one");'
ROUND = 20
"""Runs of one kind before the other kind's turn: what else the machine does hits both."""


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def warm(broker: Any) -> None:
    """Waits for all warm workers."""
    while broker.warm_workers < broker.settings.cellblock.pool.warm:  # noqa: ASYNC110 - hosts say it now and then
        await asyncio.sleep(0.01)


async def timed(broker: Any, script: str) -> tuple[float, float]:
    """Milliseconds of one warm run: wall, and CPU of this process with all its threads."""
    await warm(broker)
    started, cpu = time.perf_counter(), time.process_time()
    response = await broker.run(script)
    taken = (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000
    assert response.ok, response
    return taken


async def measure(runs: int, only_bare: bool) -> None:
    """Prints medians."""
    with tempfile.TemporaryDirectory() as folder:
        settings = parse_settings({"cellblock": {"state_dir": folder, "pool": {"warm": 4}}})
        async with Broker(settings, tools=[add]) as broker:
            for script, name in ((SCRIPT, "nothing"), (CALLING, "one call, one log")):
                for _ in range(ROUND):
                    await timed(broker, script)
                times: dict[str, list[tuple[float, float]]] = {"bare": [], "watched": []}
                watchers = [] if only_bare else _watchers(settings.cellblock, Path(folder))
                for _ in range(runs // ROUND):
                    for kind in ("bare",) if only_bare else ("bare", "watched"):
                        for watcher in watchers if kind == "watched" else ():
                            broker.events.add(watcher)
                        times[kind] += [await timed(broker, script) for _ in range(ROUND)]
                        for watcher in watchers:
                            broker.events.remove(watcher)
                for kind, values in times.items():
                    if values:
                        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
                        print(
                            f"{name:20} {kind:8} wall {wall:.3f} ms, CPU {cpu:.3f} ms (medians of {len(values)})"
                        )


def alone(count: int = 3_000) -> None:
    """Prints what the steps of one run with one call and one log take, without a broker."""
    from cellblock.execution.events import CallFacts, RunEvents
    from cellblock.execution.response import LogEntry, RunResponse

    entry, response = LogEntry(level="log", message="one", time_ms=1), RunResponse(logs=[], diagnostics=[])

    def one_run(events: RunEvents) -> None:
        watch = events.open("me", SCRIPT)
        if watch is None:
            return
        watch.queued()
        watch.leased()
        watch.started()
        watch.logged(entry)
        call = CallFacts("files", "read", time.monotonic(), b"{}", export="read")
        watch.call_begun(call)
        call.ok = call.over = True
        watch.call_ended(call)
        watch.ended(response)

    with tempfile.TemporaryDirectory() as folder:
        settings = parse_settings({"cellblock": {"state_dir": folder}}).cellblock
        audit, *others = _watchers(settings, Path(folder))
        for name, watchers in (
            ("nobody", []),
            ("metrics and dashboard", others),
            ("and the audit log", [audit, *others]),
        ):
            events = RunEvents()
            for watcher in watchers:
                events.add(watcher)
            taken: list[float] = []
            for _ in range(count):
                started = time.thread_time()
                one_run(events)
                taken.append((time.thread_time() - started) * 1e6)
            print(f"steps of one run, {name:22} {statistics.median(taken):6.1f} µs (median of {count})")
        audit.close()


def _watchers(section: Any, folder: Path) -> list[Any]:
    from cellblock.telemetry.audit import AuditLog
    from cellblock.telemetry.board import Board
    from cellblock.telemetry.tally import Tally

    return [AuditLog(section.audit, folder), Tally(1000), Board(100)]


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--only-bare", action="store_true")
    arguments = parser.parse_args()
    if not arguments.only_bare:
        alone()
    asyncio.run(measure(arguments.runs, arguments.only_bare))


if __name__ == "__main__":
    main()
