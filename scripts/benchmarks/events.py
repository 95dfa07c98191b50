"""What it costs a run to be watched: warm runs in one broker, with nobody watching and with everything on, in turn.

Then the steps of a run alone, as CPU time of the loop's thread, which other work on the machine disturbs least.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import broker, median_of, parser, warmed
from cellblock import Broker, tool
from cellblock.config.settings import parse_settings
from cellblock.execution.events import CallFacts, RunEvents
from cellblock.execution.response import LogEntry, RunResponse
from cellblock.telemetry.audit import AuditLog
from cellblock.telemetry.board import Board
from cellblock.telemetry.tally import Tally

SCRIPT = "globalThis.__codemode_result__ = 1"
CALLING = 'import { add } from "@codemode/servers/local"; await add({ a: 1, b: 2 }); console.log("one");'
ROUND = 20
"""Runs of one kind before the other kind's turn: what else the machine does hits both."""


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def timed(of: Broker, script: str) -> tuple[float, float]:
    """Milliseconds of one warm run: wall, and CPU of this process with all its threads."""
    await warmed(of)
    started, cpu = time.perf_counter(), time.process_time()
    response = await of.run(script)
    taken = (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000
    assert response.ok, response
    return taken


async def measure(runs: int) -> None:
    """Prints medians."""
    async with broker(tools=[add], pool={"warm": 4}) as made:
        section = made.settings.cellblock
        for script, name in ((SCRIPT, "nothing"), (CALLING, "one call, one log")):
            for _ in range(ROUND):
                await timed(made, script)
            times: dict[str, list[tuple[float, float]]] = {"bare": [], "watched": []}
            watchers = _watchers(section, Path(section.state_dir or ""))
            for _ in range(runs // ROUND):
                for kind, values in times.items():
                    for watcher in watchers if kind == "watched" else ():
                        made.events.add(watcher)
                    values += [await timed(made, script) for _ in range(ROUND)]
                    for watcher in watchers:
                        made.events.remove(watcher)
            for kind, values in times.items():
                wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
                print(f"{name:20} {kind:8} wall {wall:.3f} ms, CPU {cpu:.3f} ms (medians of {len(values)})")


def alone(count: int = 3_000) -> None:
    """Prints what the steps of one run with one call and one log take, without a broker."""
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
            taken = median_of(lambda events=events: one_run(events), count, time.thread_time) * 1e6
            print(f"steps of one run, {name:22} {taken:6.1f} µs (median of {count})")
        audit.close()


def _watchers(section: Any, folder: Path) -> list[Any]:
    return [AuditLog(section.audit, folder), Tally(), Board(100)]


def main(arguments: Sequence[str]) -> int:
    """Reads the arguments and prints; returns 0."""
    arguing = parser("events", __doc__)
    arguing.add_argument("--runs", type=int, default=400)
    runs = arguing.parse_args(arguments).runs
    alone()
    asyncio.run(measure(runs))
    return 0
