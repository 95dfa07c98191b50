"""What it costs a run to be journaled, in memory and written down.

The same scripts run without a journal, with one in memory, and with one that is written as it goes (`"journal":
"all"`), in turns.

Targets (exit code 1 where one is missed), of the journal in memory: a run with 20 calls takes at most 5 % longer, and a
call at most 0.05 ms, by the medians of wall time. The written one is measured apart, and has no target.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final, Literal

from benchmarks.harness import broker, parser, warmed
from cellblock import Broker, Grantee, tool
from cellblock.execution.caller import Caller
from cellblock.journal.journal import Journal

CALLS: Final = 20
MOST_PERCENT: Final = 5.0
MOST_MS_A_CALL: Final = 0.05
ROUND: Final = 10
"""Runs of one kind before the next kind's turn: what else the machine does hits all."""

IMPORT: Final = 'import { add } from "@codemode/servers/local";\n'
SCRIPTS: Final = {
    "no call": "globalThis.__codemode_result__ = 1",
    "20 calls in a row": f"{IMPORT}for (let i = 0; i < {CALLS}; i++) await add({{ a: i, b: 1 }});",
    "20 calls at once": f"{IMPORT}const all = Array.from({{ length: {CALLS} }}, (_, i) => add({{ a: i, b: 1 }}));\n"
    "await Promise.all(all);",
}

Kind = Literal["none", "in memory", "written"]
KINDS: Final[tuple[Kind, ...]] = ("none", "in memory", "written")
KEPT: Final = Grantee("bench:kept")
OTHERS: Final = Grantee("bench:others")


@tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def timed(of: Broker, script: str, kind: Kind) -> tuple[float, float, float]:
    """Milliseconds of one warm run: wall, CPU of this process, CPU of the worker."""
    await warmed(of)
    journal = Journal.recording() if kind == "in memory" else None
    grantee = KEPT if kind == "written" else OTHERS
    started, cpu = time.perf_counter(), time.process_time()
    response = await of.run_request({"code": script}, Caller(grantee=grantee), journal=journal)
    taken = (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000
    assert response.ok, response
    assert (response.usage.run_id is not None) == (kind == "written")
    return *taken, response.usage.cpu_ms


async def measure(runs: int) -> bool:
    """Prints medians; says whether the targets are met."""
    met = True
    kept = {"clients": {KEPT.principal: "all"}}
    async with broker(tools=[add], pool={"warm": 4}, journal=kept, auth={"keyring": "off"}) as made:
        for name, script in SCRIPTS.items():
            times: dict[Kind, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
            for _ in range(ROUND):
                for kind in KINDS:
                    await timed(made, script, kind)
            for turn in range(runs // ROUND):
                for kind in KINDS if turn % 2 else reversed(KINDS):
                    times[kind] += [await timed(made, script, kind) for _ in range(ROUND)]
            plain = statistics.median(wall for wall, _, _ in times["none"])
            print(f"{name:<18} {plain:7.3f} ms{cpu(times['none'])}")
            for kind in KINDS[1:]:
                wall = statistics.median(wall for wall, _, _ in times[kind])
                more, percent = wall - plain, 100 * (wall - plain) / plain
                said = f"  {kind:<16} {wall:7.3f} ms: {more:+.3f} ms, {percent:+.1f} %"
                if "calls" in name:
                    said += f", {more / CALLS:+.4f} ms a call"
                    if kind == "in memory":
                        fine = more / CALLS <= MOST_MS_A_CALL and percent <= MOST_PERCENT
                        met = met and fine
                        said += f" ({'met' if fine else 'not met'})"
                print(f"{said}{cpu(times[kind])}")
    return met


def cpu(times: Sequence[tuple[float, float, float]]) -> str:
    """Says the CPU of broker and worker; the worker's is known in whole milliseconds."""
    own = statistics.median(one for _, one, _ in times)
    return f"; CPU {own:.2f} + {statistics.fmean(one for _, _, one in times):.2f} ms"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parser("journal", __doc__)
    options.add_argument("--runs", type=int, default=400, help="of each kind")
    return 0 if asyncio.run(measure(options.parse_args(arguments).runs)) else 1
