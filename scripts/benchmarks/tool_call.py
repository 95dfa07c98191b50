"""What a tool call takes: of Python tools and stdio servers, beside the raw SDK, and the CPU of each process for one.

Medians and minima over rounds in turns. On a busy machine read the minima and the CPU.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from benchmarks.harness import PLAIN_SERVER, broker, parser, seconds_of, table, warmed
from benchmarks.load.calls import CALL_TIMES, CALLS, raw_p50
from benchmarks.load.scenarios import LOCAL, PLAIN, SCRIPTS, SERVERS, TRIVIAL, noop
from benchmarks.load.yardsticks import raw_sdk
from benchmarks.processes import cpu_seconds
from cellblock import Broker, tool

LIMITS: Final = {"maxToolCalls": 2 * CALLS, "timeoutMs": 30_000}


@tool()
def noop_in_thread() -> dict[str, Any]:
    """Answers at once, in a thread."""
    return {"ok": 1}


async def of_script(of: Broker, imports: str, call: str) -> tuple[float, float]:
    """p50 of a call in milliseconds, as the script sees it, and the CPU milliseconds of its worker."""
    response = await of.run(imports + CALL_TIMES.replace("CALL", call), limits=LIMITS)
    result: Any = response.result
    if not isinstance(result, dict):
        raise TypeError(f"the measuring script failed: {response.as_json()}")
    return cast("dict[str, float]", result)["p50"], response.usage.cpu_ms


async def in_a_row(of: Broker) -> float:
    """Milliseconds that a run with 20 calls in a row takes longer than a trivial one, each in a worker that is warm."""
    taken: list[float] = []
    for scenario in (SCRIPTS["20 calls in a row"], TRIVIAL):
        await warmed(of)
        await asyncio.sleep(0.06)
        taken.append(await seconds_of(of.run(scenario.code)))
    return (taken[0] - taken[1]) * 1000


async def measure(rounds: int) -> None:
    """Prints the table."""
    found: dict[str, list[float]] = {}
    async with (
        broker(SERVERS, tools=[noop, noop_in_thread]) as of,
        raw_sdk("-I", str(PLAIN_SERVER)) as raw,
    ):
        await of.settled()
        host = of.host_pid or 0
        for _ in range(rounds):
            await warmed(of)
            before, host_before = time.process_time(), cpu_seconds(host)
            p50, worker_ms = await of_script(of, LOCAL, "tools.noop({})")
            figures = {
                "Python tool, async": p50,
                "the same: CPU of the broker": (time.process_time() - before) * 1000 / CALLS,
                "the same: CPU of the host": (cpu_seconds(host) - host_before) * 1000 / CALLS,
                "the same: CPU of the worker": worker_ms / CALLS,
                "Python tool, a plain function": (await of_script(of, LOCAL, "tools.noop_in_thread({})"))[0],
                "stdio server": (await of_script(of, PLAIN, "echo({})"))[0],
                "raw SDK client at the same server": await raw_p50(raw, "echo"),
                "20 calls in a row over a trivial run": await in_a_row(of),
            }
            for name, value in figures.items():
                found.setdefault(name, []).append(value)
    rows = [(name, f"{statistics.median(all_):.3f}", f"{min(all_):.3f}") for name, all_ in found.items()]
    print(table(("of one call, ms", "median", "least"), rows))


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns 0."""
    arguing = parser("bench tool_call", __doc__)
    arguing.add_argument(
        "--rounds", type=int, default=15, help="rounds of 200 calls of each kind (default 15)"
    )
    asyncio.run(measure(arguing.parse_args(arguments).rounds))
    return 0
