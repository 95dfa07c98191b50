"""How soon capacity is back after a fault: from SIGKILL of a worker, the host or an upstream to the next good answer.

`scripts/measure_recovery [--rounds N]` prints p50 and max beside yardsticks that are taken in turn with the faults: the
start of a bare Deno, and of a Python that imports what a host needs at the least. Then the stages of a host's start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import psutil

from cellblock import Broker, Observer
from cellblock.config.settings import parse_settings
from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.confinement.selftest import run_selftest

TARGET_SECONDS: Final = 1.0
BOUND_SECONDS: Final = 60.0
SERVER: Final = Path(__file__).parent.parent / "tests" / "servers" / "plain_server.py"
CALL: Final = """
    import { echo } from "@codemode/servers/plain";
    globalThis.__codemode_result__ = await echo({});
"""
IMPORTS: Final = "import zmq, pydantic, psutil, asyncio"


async def _until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not holds():  # noqa: ASYNC110 - another process is watched
            await asyncio.sleep(0.005)


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
    server = next(c for c in psutil.Process().children(recursive=True) if str(SERVER) in c.cmdline())
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


async def _timed(work: Awaitable[object]) -> float:
    since = time.perf_counter()
    await work
    return time.perf_counter() - since


def _row(name: str, values: list[float]) -> None:
    print(f"| {name} | {len(values)} | {statistics.median(values) * 1000:.0f} | {max(values) * 1000:.0f} |")


async def measure(rounds: int) -> bool:
    """Prints the tables. Returns whether worker and host meet the target."""
    names = ("worker", "host", "upstream", "deno", "python")
    seen: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.js"
        empty.write_text("")
        deno = [confinement.deno_binary(), *confinement.DENO_FLAGS, str(empty)]
        entry = {"command": sys.executable, "args": ["-I", str(SERVER)]}
        # Hosts are killed every second or two here: the pauses of hosts that do not last are no part of the question.
        raw = {"mcpServers": {"plain": entry}, "cellblock": {"state_dir": folder}}
        for _ in range(rounds):
            async with Broker(parse_settings(raw)) as broker:
                await broker.settled()
                for name, fault in (("worker", _worker), ("upstream", _upstream), ("host", _host)):
                    await _until(
                        lambda broker=broker: broker.warm_workers >= broker.settings.cellblock.pool.warm
                    )
                    seen[name].append(await fault(broker))
            seen["deno"].append(await _spawned(deno))
            seen["python"].append(await _spawned([sys.executable, "-c", IMPORTS]))
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"## From SIGKILL to the next good answer ({os.cpu_count()} cores, load {load})\n")
        print("| killed | times | p50 ms | max ms |\n|---|---|---|---|")
        for name in ("worker", "host", "upstream"):
            _row(name, seen[name])
        _row("yardstick: bare `deno run` of nothing", seen["deno"])
        _row(f'yardstick: bare `python -c "{IMPORTS}"`', seen["python"])
        await _stages(rounds)
    met = True
    for name in ("worker", "host"):
        slowest = max(seen[name])
        met &= slowest < TARGET_SECONDS
        verdict = "met" if slowest < TARGET_SECONDS else "MISSED"
        print(f"\n{name}: {verdict} (longest {slowest:.2f} s, target {TARGET_SECONDS:g} s)")
    return met


async def _stages(rounds: int) -> None:
    """The parts of a host's start, each alone."""
    print("\n## A host's start, stage by stage\n\n| stage | times | p50 ms | max ms |\n|---|---|---|---|")
    host_imports = [sys.executable, "-c", "import cellblock_worker.__main__"]
    _row("Python and the host's modules", [await _spawned(host_imports) for _ in range(rounds)])
    trials: list[float] = []
    for _ in range(rounds):
        bubblewrap.try_out.cache_clear()
        since = time.perf_counter()
        confinement.use_isolation("auto")
        trials.append(time.perf_counter() - since)
    _row("trial of bubblewrap", trials)
    _row("self-test", [await _timed(run_selftest(256)) for _ in range(rounds)])


def main() -> int:
    """Returns 0 when the targets are met, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/measure_recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="faults of each kind (default 10)")
    logging.getLogger("cellblock").setLevel(logging.CRITICAL)
    return 0 if asyncio.run(measure(parser.parse_args().rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
