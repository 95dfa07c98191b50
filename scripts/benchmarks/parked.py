"""What parked runs cost: to wake one, and the memory and processes of many that wait.

Targets (exit code 1 where one is missed): from an answer to the response of a run with 20 recorded calls 60 ms by the
median, beside the same script that never waits; and of many parked runs no process each, and less than 1,000 bytes of
the broker's memory each: what its allocator keeps.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import MIB, parser, say
from cellblock import Broker, tool
from cellblock.config.settings import parse_settings

CALLS: Final = 20
MOST_WAKE_MS: Final = 60.0
MOST_BYTES: Final = 1_000
AT_ONCE: Final = 4

SCRIPT: Final = f"""import {{ add, pay }} from "@codemode/servers/local";
let sum = 0;
for (let i = 0; i < {CALLS}; i++) sum += (await add({{ a: i, b: 1 }})).result;
globalThis.__codemode_result__ = [sum, await pay({{ sum }})];
"""
WAITS: Final = 'import { pay } from "@codemode/servers/local";\nawait pay({ sum: 1 });'


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool()
def pay(sum: int) -> int:
    """Pays."""
    return sum


def broker(folder: Path, **policy: Any) -> Broker:
    """Makes a broker on a state directory, whose clients are asked about `pay` unless told otherwise."""
    section = {"policy": policy, "auth": {"keyring": "off"}, "typecheck": "off", "pool": {"warm": AT_ONCE}}
    return Broker(parse_settings({"cellblock": section}), tools=[add, pay], state_dir=folder)


def memory(of: psutil.Process) -> int:
    """Returns the private memory of a process, in bytes."""
    gc.collect()
    return of.memory_full_info().uss


async def woken(folder: Path, runs: int) -> tuple[float, float]:
    """Returns the medians in milliseconds: from an answer to the response, and of the same script without a wait."""
    asks = {"default": {"approve": ["local.pay"]}}
    wake: list[float] = []
    plain: list[float] = []
    async with broker(folder / "asks", **asks) as asking, broker(folder / "plain") as other:
        for _ in range(runs):
            response = await asking.run(SCRIPT, durable=True)
            assert response.parked, response
            run_id = response.usage.run_id or ""
            # The next worker is warm by then, as it is after a person's answer.
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            response = await asking.resume(run_id, "accepted")
            wake.append((time.perf_counter() - began) * 1000)
            assert response.ok and not response.parked, response
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            assert (await other.run(SCRIPT)).ok
            plain.append((time.perf_counter() - began) * 1000)
    return statistics.median(wake), statistics.median(plain)


async def many(folder: Path, count: int) -> tuple[float, int]:
    """Parks so many runs; returns the broker's growth for each, in bytes, and the processes that there are more."""
    me = psutil.Process()
    async with broker(folder / "many", default={"approve": ["local.pay"]}) as made:

        async def park(number: int) -> None:
            for _ in range(number):
                response = await made.run(WAITS, durable=True)
                assert response.parked, response

        # Half of them first: what a broker has anyway, and what its allocator keeps for the next.
        began = time.perf_counter()
        await asyncio.gather(*(park(count // 2 // AT_ONCE) for _ in range(AT_ONCE)))
        before, processes = memory(me), len(me.children(recursive=True))
        await asyncio.gather(*(park(count // 2 // AT_ONCE) for _ in range(AT_ONCE)))
        say(f"{count} runs are parked, {count / (time.perf_counter() - began):.0f} a second")
        # Those that boot and die at this moment are no parked runs'.
        await asyncio.sleep(2)
        after, left = memory(me), len(me.children(recursive=True))
        say(f"the broker has {before / MIB:.1f} MiB with half of them, {after / MIB:.1f} MiB with all")
        return (after - before) / (count / 2), left - processes


async def measure(runs: int, count: int) -> bool:
    """Prints the figures; says whether the targets are met."""
    with tempfile.TemporaryDirectory() as name:
        wake, plain = await woken(Path(name), runs)
        print(
            f"from an answer to the response, {CALLS} recorded calls: {wake:.1f} ms; without a wait {plain:.1f} ms"
        )
        each, more = await many(Path(name), count)
        print(f"{count} parked runs: {each:.0f} bytes of the broker's memory each, {more} processes more")
    return wake <= MOST_WAKE_MS and each <= MOST_BYTES and more <= AT_ONCE


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parser("parked", __doc__)
    options.add_argument("--runs", type=int, default=100, help="that are woken")
    options.add_argument("--parked", type=int, default=10_000, help="that wait at once")
    found = options.parse_args(arguments)
    return 0 if asyncio.run(measure(found.runs, found.parked)) else 1
