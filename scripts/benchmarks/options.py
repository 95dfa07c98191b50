"""What each part costs a run that can be left out: type check, learning, journal, audit log and labels, in turns.
`nothing` is the yardstick: how far two that are alike differ.

The same script runs, warm, in brokers of which every other one has one part more: in turn and turn about, when all
have a warm worker again. Printed are medians of wall time, and of the CPU of this process with all its threads. A type
check has a process of its own, and a learner a thread: they do their work beside the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from benchmarks.harness import broker, in_turns_async, parser, table, warmed
from benchmarks.load.scenarios import SCRIPTS, noop, rows
from cellblock import Broker

BARE: Final[dict[str, Any]] = {
    "typecheck": "off",
    "schemas": {"learn": False},
    "journal": "off",
    "auth": {"keyring": "off"},
    "pool": {"warm": 2},
}
PARTS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "type check after the run": {"typecheck": "after"},
    "type check before the run": {"typecheck": "before"},
    "learning from results": {"schemas": {"learn": True, "sample_every": 1}},
    "journal in memory": {"journal": "failed"},
    "journal written as it goes": {"journal": "all"},
    "audit log": {"audit": ["calls"]},
    "flows, labelled": {
        "policy": {"flows": "guard", "labels": {"local.*": {"trust": "trusted", "sink": "private"}}}
    },
    "flows, unlabelled": {"policy": {"flows": [{"to": "local.*", "then": "allow"}, "guard"]}},
}


async def timed(of: Broker, made: Sequence[Broker], code: str) -> tuple[float, float]:
    """Milliseconds of one warm run: wall, and CPU of this process. A worker that boots for one broker takes a core from
    others, so all have theirs."""
    await asyncio.gather(*map(warmed, made))
    started, cpu = time.perf_counter(), time.process_time()
    response = await of.run(code)
    assert response.ok, response
    return (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000


async def measure(runs: int, part: Sequence[str]) -> None:
    """Prints a table for each part, or for some."""
    for name in part or PARTS:
        async with contextlib.AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(broker(tools=[noop, rows], **{**BARE, **more}))
                # Three of each: of two that are alike, one may need a fifth more than the other.
                for more in [{}, PARTS[name]] * 3
            ]
            lines: list[Sequence[str]] = []
            for kind in ("one call", "20 calls in a row", "100 KB filtered"):
                ways = {str(id(one)): partial(timed, one, made, SCRIPTS[kind].code) for one in made}
                await in_turns_async(ways, 10)
                found = [*(await in_turns_async(ways, runs)).values()]
                (wall, cpu), (more_wall, more_cpu) = [
                    map(statistics.median, zip(*chain(*of), strict=True)) for of in (found[::2], found[1::2])
                ]
                lines.append(
                    (
                        kind,
                        f"{wall:.2f}",
                        f"{more_wall / wall - 1:+.1%}",
                        f"{cpu:.2f}",
                        f"{more_cpu / cpu - 1:+.1%}",
                    )
                )
            print(f"## {name}\n\n{table(('', 'ms', 'more', 'CPU ms', 'more'), lines)}\n", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; returns 0."""
    arguing = parser("bench options", __doc__)
    arguing.add_argument("--runs", type=int, default=100, help="of each kind (100)")
    arguing.add_argument("--part", choices=[*PARTS], nargs="+", default=[], help="some of them alone")
    asyncio.run(measure(**vars(arguing.parse_args(arguments))))
    return 0
