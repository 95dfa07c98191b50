"""How soon capacity is back after a fault: from SIGKILL of a worker, the host or an upstream to the next good answer.

Prints p50 and max beside yardsticks that are taken in turn with the faults: the
start of a bare Deno, and of a Python that imports what a host needs at the least.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import deno
import psutil

from benchmarks.harness import (
    BOUND_SECONDS,
    PLAIN_SERVER,
    Targets,
    broker,
    median_and,
    parser,
    table,
    warmed,
)
from cellblock import Broker, Observer

TARGET_SECONDS: Final = 1.0
CALL: Final = """
    import { echo } from "@codemode/servers/plain";
    globalThis.__codemode_result__ = await echo({});
"""
IMPORTS: Final = "import zmq, pydantic, psutil, asyncio"


async def _answered(broker: Broker, code: str) -> None:
    """Asks until there is a good answer, at once again after each that is not."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not (await broker.run(code)).ok:  # noqa: ASYNC110 - asking is the measurement
            await asyncio.sleep(0.001)


def _descendants(pid: int, name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.name() == name]


async def _worker(broker: Broker) -> float:
    started = asyncio.Event()
    observer = Observer(on_log=lambda _: started.set())
    run = asyncio.create_task(broker.run("console.log(1); for (;;) {}", observer=observer))
    async with asyncio.timeout(BOUND_SECONDS):
        await started.wait()
    assert broker.host_pid is not None
    await asyncio.sleep(0.3)
    busiest = max(_descendants(broker.host_pid, "deno"), key=lambda child: sum(child.cpu_times()[:2]))
    since = time.perf_counter()
    busiest.kill()
    await _answered(broker, "globalThis.__codemode_result__ = 1;")
    taken = time.perf_counter() - since
    await run
    return taken


async def _host(broker: Broker) -> float:
    assert broker.host_pid is not None
    since = time.perf_counter()
    os.kill(broker.host_pid, signal.SIGKILL)
    await _answered(broker, "globalThis.__codemode_result__ = 1;")
    return time.perf_counter() - since


async def _upstream(broker: Broker) -> float:
    server = next(c for c in psutil.Process().children(recursive=True) if str(PLAIN_SERVER) in c.cmdline())
    since = time.perf_counter()
    server.kill()
    await _answered(broker, CALL)
    return time.perf_counter() - since


async def _spawned(argv: list[str]) -> float:
    since = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"},
    )
    assert await process.wait() == 0
    return time.perf_counter() - since


def _table(head: str, found: Mapping[str, Sequence[float]]) -> None:
    def row(name: str, values: Sequence[float]) -> tuple[object, ...]:
        return name, len(values), *(f"{one * 1000:.0f}" for one in median_and(100, values))

    rows = [row(name, values) for name, values in found.items()]
    print(table((head, "times", "p50 ms", "max ms"), rows))


async def measure(rounds: int) -> bool:
    """Prints the tables. Returns whether worker and host meet the target."""
    names = ("worker", "host", "upstream", "deno", "python")
    seen: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.js"
        empty.write_text("")
        deno_run = [deno.find_deno_bin(), "run", "--no-config", str(empty)]
        entry = {"command": sys.executable, "args": ["-I", str(PLAIN_SERVER)]}
        # One broker a round: the pauses of hosts that do not last are no part of the question.
        for _ in range(rounds):
            async with broker({"plain": entry}) as made:
                await made.settled()
                for name, fault in (("worker", _worker), ("upstream", _upstream), ("host", _host)):
                    await warmed(made)
                    seen[name].append(await fault(made))
            seen["deno"].append(await _spawned(deno_run))
            seen["python"].append(await _spawned([sys.executable, "-c", IMPORTS]))
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"## From SIGKILL to the next good answer ({os.cpu_count()} cores, load {load})\n")
        rows = {name: seen[name] for name in ("worker", "host", "upstream")}
        rows["yardstick: bare `deno run` of nothing"] = seen["deno"]
        rows[f'yardstick: bare `python -c "{IMPORTS}"`'] = seen["python"]
        _table("killed", rows)
    targets = Targets()
    for name in ("worker", "host"):
        targets.judge(f"{name}, the longest", max(seen[name]), TARGET_SECONDS, "s")
    return targets.are_met


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when the targets are met, else 1."""
    arguing = parser("bench recovery", __doc__)
    arguing.add_argument("--rounds", type=int, default=10, help="faults of each kind (default 10)")
    rounds = arguing.parse_args(arguments).rounds
    logging.getLogger("cellblock").setLevel(logging.CRITICAL)
    return 0 if asyncio.run(measure(rounds)) else 1
