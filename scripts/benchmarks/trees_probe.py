"""Measures one checkout with its own interpreter, beside bare `deno run` processes; prints JSON. Run by `trees`.

It uses nothing but the public names, so that it runs in any version.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import deno

from cellblock import Broker, tool

CLIENTS = 8
PACE = 0.04
"""Seconds from the end of a run to the next: a fresh worker is ready by then."""
CALLS = 20
WORKERS = 8
BOOTED = 3.0
"""Seconds after which a host has booted its workers, and a few times as many."""
TRIVIAL = 'import { add } from "@codemode/servers/local"; globalThis.__codemode_result__ = typeof add;'
CALLING = (
    'import { add } from "@codemode/servers/local"; let sum = 0;'
    f"for (let n = 0; n < {CALLS}; n++) sum = (await add({{ a: sum, b: 1 }})).result ?? n;"
    "globalThis.__codemode_result__ = sum;"
)

Once = Callable[[], Awaitable[object]]


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def paced(kinds: dict[str, Once], rounds: int) -> dict[str, float]:
    """Returns the median time of each kind in ms, in turns."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, once in kinds.items():
            await asyncio.sleep(PACE)
            began = time.perf_counter()
            await once()
            times[kind].append((time.perf_counter() - began) * 1000)
    return {kind: statistics.median(values) for kind, values in times.items()}


async def rate(once: Once, runs: int, *, clients: int = CLIENTS) -> float:
    """Returns how many a second end, with so many at a time."""
    left = iter(range(runs))

    async def client() -> None:
        for _ in left:
            await once()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return runs / (time.perf_counter() - began)


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds of a process that lives, all threads of it, as clock_getcpuclockid(3) has it."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_of_children() -> float:
    """Returns the CPU seconds of all that has ended below this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def configured(folder: Path, **sections: object) -> Path:
    """Writes a configuration without servers, and returns the file."""
    file = folder / "config.json"
    settings = {"state_dir": str(folder / "state"), **sections}
    file.write_text(json.dumps({"mcpServers": {}, "cellblock": settings}))
    return file


async def hosting(folder: Path, warm: int) -> float:
    """Returns the CPU seconds of a worker host that boots so many workers, runs nothing and ends."""
    before = cpu_of_children()
    async with Broker.from_config(configured(folder, pool={"warm": warm})):
        await asyncio.sleep(BOOTED)
    return cpu_of_children() - before


async def costs(folder: Path, mode: str, runs: int) -> dict[str, float]:
    """Returns the CPU milliseconds of a trivial run by process, with rests and without, where `pool.reuse` is `mode`.
    Below the broker: all processes, with boots and deaths."""
    config = configured(folder, pool={"reuse": mode} if mode != "never" else {})
    before = cpu_of_children()
    async with Broker.from_config(config, tools=[add]):
        await asyncio.sleep(BOOTED)
    idle = cpu_of_children() - before
    before, found, taken = cpu_of_children(), dict[str, float](), list[float]()
    async with Broker.from_config(config, tools=[add]) as broker:
        await asyncio.sleep(BOOTED)
        host, all_runs = broker.host_pid or 0, 0

        async def once() -> None:
            response = await broker.run(TRIVIAL)
            assert not response.diagnostics, response
            taken.append(response.usage.cpu_ms)

        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "with rests": lambda: rested(once, runs // 2),
            "in a row": lambda: rate(once, runs, clients=1),
            "eight": lambda: rate(once, runs * 2),
        }
        for way, work in ways.items():
            await rate(once, CLIENTS)
            all_runs += len(taken)
            taken.clear()
            own, hosts = time.process_time(), cpu_of(host)
            result = await work()
            own, hosts = time.process_time() - own, cpu_of(host) - hosts
            if way == "with rests":
                found[f"reuse {mode}, {way}: p50, ms"] = result
            found |= {
                f"reuse {mode}, {way}: broker, CPU ms": own * 1000 / len(taken),
                f"reuse {mode}, {way}: host, CPU ms": hosts * 1000 / len(taken),
                f"reuse {mode}, {way}: worker in its run, CPU ms": statistics.mean(taken),
            }
        all_runs += len(taken)
    below = (cpu_of_children() - before - idle) * 1000 / all_runs
    return {**found, f"reuse {mode}: all below the broker, CPU ms a run": below}


async def crowded(folder: Path, places: int, clients: int, runs: int) -> float:
    """Returns how many runs of one principal end in a second where there are no more places for processes than this."""
    config = configured(folder, pool={"reuse": "principal", "capacity": places})
    async with Broker.from_config(config, tools=[add]) as broker:
        await asyncio.sleep(BOOTED)

        async def once() -> None:
            response = await broker.run(TRIVIAL)
            assert not response.diagnostics, response

        await rate(once, runs, clients=clients)
        return await rate(once, runs * 2, clients=clients)


async def rested(once: Once, runs: int) -> float:
    """Returns the median time of runs after rests, in ms."""
    return (await paced({"": once}, runs))[""]


async def measured(folder: Path, runs: int) -> dict[str, float]:
    """Returns the figures of this checkout."""
    config = configured(folder)
    script = folder / "bare.js"
    script.write_text("console.log(typeof 1);")
    argv = [deno.find_deno_bin(), "run", "--no-remote", "--no-npm", "--no-config", str(script)]
    environment = {"DENO_DIR": str(folder / "deno"), "DENO_NO_UPDATE_CHECK": "1", "PATH": os.environ["PATH"]}

    async def bare() -> None:
        process = await asyncio.create_subprocess_exec(*argv, env=environment, stdout=subprocess.DEVNULL)
        assert await process.wait() == 0

    def running(broker: Broker, code: str) -> Once:
        async def once() -> None:
            response: Any = await broker.run(code)
            assert not response.diagnostics, response

        return once

    async with Broker.from_config(config, tools=[add]) as broker:
        trivial, calling = running(broker, TRIVIAL), running(broker, CALLING)
        await paced({"bare": bare, "trivial": trivial, "calling": calling}, 10)
        warm = await paced({"bare": bare, "trivial": trivial, "calling": calling}, runs)
        await rate(trivial, CLIENTS * 5)
        busy = await rate(trivial, runs * 2)
    await rate(bare, CLIENTS * 5)
    bare_busy = await rate(bare, runs * 2)
    spent = {**await costs(folder, "never", runs), **await costs(folder, "principal", runs)}
    for places, clients in ((1, 1), (16, 1), (2, CLIENTS), (4, CLIENTS), (16, CLIENTS)):
        rates = await crowded(folder, places, clients, runs)
        spent[f"reuse principal, {clients} clients in {places} places: runs a second"] = rates
    boots: list[float] = []
    bares: list[float] = []
    for _ in range(3):
        boots.append(await hosting(folder, 1 + WORKERS) - await hosting(folder, 1))
        before = cpu_of_children()
        await asyncio.gather(*(bare() for _ in range(WORKERS)))
        bares.append(cpu_of_children() - before)
    boot_cpu, bare_cpu = statistics.median(boots) / WORKERS, statistics.median(bares) / WORKERS
    return {
        "warm p50, ms": warm["trivial"],
        "warm p50 / bare": warm["trivial"] / warm["bare"],
        "bare rate / runs a second, 8 clients": bare_busy / busy,
        "CPU of a worker without a run, ms": boot_cpu * 1000,
        "CPU of a worker without a run / of a bare process": boot_cpu / bare_cpu,
        "a call of a Python tool, ms": (warm["calling"] - warm["trivial"]) / CALLS,
        **spent,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cellblock-trees-") as made:
        print(json.dumps(asyncio.run(measured(Path(made), int(sys.argv[1])))))
