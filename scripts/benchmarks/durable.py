"""What runs that wait for people cost: to wake one, and the memory and processes of many that wait.

Targets (exit code 1 where one is missed): from an answer to the response of a run with 20 recorded calls 60 ms by the
median, beside the same script that never waits; and of many parked runs no process each, and less than 1,000 bytes of
the broker's memory each: what its allocator keeps.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.harness import Targets, broker, parser, seconds_of, warmed
from benchmarks.processes import private_bytes, tree
from cellblock import Broker, tool

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
ASKS: Final[dict[str, Any]] = {"policy": {"default": {"approve": ["local.pay"]}}}
SECTION: Final[dict[str, Any]] = {"auth": {"keyring": "off"}, "typecheck": "off", "pool": {"warm": AT_ONCE}}


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool()
def pay(sum: int) -> int:
    """Pays."""
    return sum


async def woken(runs: int) -> tuple[float, float]:
    """Returns the medians in milliseconds: from an answer to the response, and of the same script without a wait."""
    wake: list[float] = []
    plain: list[float] = []
    async with (
        broker(tools=[add, pay], **SECTION, **ASKS) as asking,
        broker(tools=[add, pay], **SECTION) as other,
    ):
        for _ in range(runs):
            response = await asking.run(SCRIPT, durable=True)
            assert response.parked, response
            # The next worker is warm by then, as it is after a person's answer.
            await warmed(asking)
            wake.append(1000 * await seconds_of(asking.resume(response.usage.run_id or "", "accepted")))
            await warmed(other)
            plain.append(1000 * await seconds_of(other.run(SCRIPT)))
    return statistics.median(wake), statistics.median(plain)


async def parked(of: Broker, count: int) -> None:
    """Parks so many runs."""

    async def some() -> None:
        for _ in range(count // AT_ONCE):
            response = await of.run(WAITS, durable=True)
            assert response.parked, response

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def many(count: int) -> tuple[float, int]:
    """Parks so many runs; returns the broker's growth for each, in bytes, and the processes that there are more."""
    async with broker(tools=[add, pay], **SECTION, **ASKS) as made:
        looks: list[tuple[int, int]] = []
        # Half of them first: what a broker has anyway, and what its allocator keeps for the next.
        for _ in range(2):
            await parked(made, count // 2)
            await warmed(made)
            gc.collect()
            looks.append((private_bytes(os.getpid()), len([*tree()])))
    (before, processes), (after, left) = looks
    return (after - before) / (count / 2), left - processes


async def measure(runs: int, count: int) -> bool:
    """Prints the figures; says whether the targets are met."""
    targets = Targets()
    wake, plain = await woken(runs)
    said = f"from an answer to the response, {CALLS} recorded calls ({plain:.1f} ms without a wait)"
    targets.judge(said, wake, MOST_WAKE_MS, "ms")
    each, more = await many(count)
    targets.judge(f"the broker's memory for each of {count} parked runs", each, MOST_BYTES, "bytes")
    targets.judge("processes more with all of them", more, AT_ONCE, "processes")
    return targets.are_met


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parser("bench durable", __doc__)
    options.add_argument("--runs", type=int, default=100, help="that are woken (100)")
    options.add_argument("--parked", type=int, default=10_000, help="that wait at once (10000)")
    found = options.parse_args(arguments)
    return 0 if asyncio.run(measure(found.runs, found.parked)) else 1
