"""What each part costs a run that can be left out: type check, learning, journal, audit log and labels, in turns.

The same script runs, warm, in brokers of which each has one part more than the first. Printed are medians of wall time,
and of the CPU of this process with all its threads. A type check has a process of its own, and a learner a thread: they
do their work beside the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.harness import broker, in_turns_async, parser, table, warmed
from benchmarks.load.scenarios import SCRIPTS, noop, rows
from cellblock import Broker

KINDS: Final = ("one call", "20 calls in a row", "100 KB filtered")
BARE: Final[dict[str, Any]] = {
    "typecheck": "off",
    "schemas": {"learn": False},
    "journal": "off",
    "auth": {"keyring": "off"},
    "pool": {"warm": 2},
}
PARTS: Final[dict[str, dict[str, Any]]] = {
    "none of them": {},
    "type check after the run": {"typecheck": "after"},
    "type check before the run": {"typecheck": "before"},
    "learning from results": {"schemas": {"learn": True, "sample_every": 1}},
    "journal in memory": {"journal": "failed"},
    "journal written as it goes": {"journal": "all"},
    "audit log": {"audit": ["calls"]},
    "labels of flows": {"policy": {"flows": "guard", "labels": {"local.*": {"sink": "private"}}}},
}


async def timed(of: Broker, code: str) -> tuple[float, float]:
    """Milliseconds of one warm run: wall, and CPU of this process."""
    await warmed(of)
    started, cpu = time.perf_counter(), time.process_time()
    response = await of.run(code)
    taken = (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000
    assert response.ok, response
    return taken


async def measure(runs: int) -> None:
    """Prints a table for each script."""
    async with contextlib.AsyncExitStack() as stack:
        made = {
            name: await stack.enter_async_context(broker(tools=[noop, rows], **{**BARE, **part}))
            for name, part in PARTS.items()
        }
        for kind in KINDS:
            ways = {name: partial(timed, of, SCRIPTS[kind].code) for name, of in made.items()}
            await in_turns_async(ways, 5)
            found = await in_turns_async(ways, runs)
            medians = {
                name: [*map(statistics.median, zip(*times, strict=True))] for name, times in found.items()
            }
            (wall, cpu), *_ = medians.values()
            lines = [
                (name, f"{one[0]:.2f}", f"{one[0] - wall:+.2f}", f"{one[1]:.2f}", f"{one[1] - cpu:+.2f}")
                for name, one in medians.items()
            ]
            print(f"## {kind}\n\n{table(('with', 'ms', 'more', 'CPU ms', 'more'), lines)}\n")


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; returns 0."""
    arguing = parser("bench options", __doc__)
    arguing.add_argument("--runs", type=int, default=100, help="of each kind (100)")
    asyncio.run(measure(arguing.parse_args(arguments).runs))
    return 0
