"""Runs under load, beside bare `deno run` processes and the raw MCP SDK client (`bash scripts/loadtest`)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import peers
from benchmarks.harness import add_output, as_daemon, machine, parser, say
from benchmarks.load import fronts, report, sweep, targets
from benchmarks.load.scenarios import TRIVIAL
from benchmarks.load.yardsticks import BareDeno

MODES: Final = (targets.NEVER, "principal")
"""Lists the values of `pool.reuse` that are measured in turns unless told otherwise."""

EPILOG = """examples:
  bash scripts/loadtest --quick                    three minutes
  bash scripts/loadtest --out docs/benchmarks      everything; 25 minutes
  bash scripts/loadtest --result OLD.json          shows an earlier result
  bash scripts/bench trees BEFORE                  another checkout and this one, in turns
  bash scripts/loadtest --only sweep --front http  the load through one way in
  bash scripts/loadtest --peers                    other systems, in turns, and what loops they survive
"""


def main(arguments: Sequence[str]) -> int:
    """Reads the arguments and measures; 0 when it has, 1 when a run of the load had an unexpected outcome."""
    arguing = parser("loadtest", __doc__, epilog=EPILOG)
    add = arguing.add_argument
    add("--quick", action="store_true", help="a tenth of the samples")
    add("--peers", action="store_true", help="measure other systems instead (installs them once)")
    add(
        "--reuse",
        type=lambda text: text.split(","),
        default=[*MODES],
        metavar="MODE,...",
        help=f"values of pool.reuse to measure in turns ({','.join(MODES)})",
    )
    add_output(arguing, "load")
    add("--result", type=Path, metavar="FILE", help="a JSON result to show instead of measuring")
    add("--only", choices=["targets", "sweep"], help="measure one part")
    add("--front", choices=[*fronts.FRONTS], default="embedded", help="way in for the sweep (embedded)")
    options = arguing.parse_args(arguments)
    if options.peers:
        return asyncio.run(peers.main(options))
    try:
        result = report.read(options.result) if options.result else asyncio.run(_measure(options))
    except report.NoResult as error:
        arguing.error(str(error))
    print(report.markdown(result))
    if options.out:
        for file in report.write(result, options.out, options.name):
            say(f"wrote {file}")
    return 1 if any(row["latency"]["errors"] for row in result["sweep"]) else 0


async def _measure(options: argparse.Namespace) -> report.Result:
    result: report.Result = {
        "machine": machine(),
        "quick": options.quick,
        "targets": [],
        "sweep": [],
    }
    found: list[targets.Verdict] = []
    as_daemon()
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        folder = Path(scratch)
        bare = BareDeno(folder)
        await bare()
        # First: what the load leaves in this process would count as the broker's memory.
        if options.only != "sweep":
            for mode in options.reuse:
                found += await _alone(mode, bare, folder, options, result)
        if options.only in (None, "sweep"):
            result["sweep"] = await _sweep(bare, folder, options)
            if options.front == "embedded":
                found += [one for mode in options.reuse for one in targets.of_sweep(result["sweep"], mode)]
    result["targets"] = report.verdict_rows(sorted(found, key=lambda one: one.number))
    return result


def _setting(mode: str) -> dict[str, str]:
    """Of the pool; the default is not said, for versions that have no other."""
    return {} if mode == targets.NEVER else {"reuse": mode}


async def _sweep(bare: BareDeno, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The load through one way in, a daemon for each mode: idle ones take next to nothing of the other's turn."""
    async with contextlib.AsyncExitStack() as running:
        ways: dict[str, fronts.Front] = {sweep.BARE: bare}
        for mode in options.reuse:
            opened = fronts.FRONTS[options.front](_made(folder / f"sweep-{mode}"), **_setting(mode))
            ways[mode] = await running.enter_async_context(opened)
        return await sweep.measure(ways, quick=options.quick, say=say)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _alone(
    mode: str, bare: BareDeno, folder: Path, options: argparse.Namespace, result: report.Result
) -> list[targets.Verdict]:
    """What is measured of one daemon by itself."""
    quick, setting, found = options.quick, _setting(mode), list[targets.Verdict]()
    async with fronts.embedded(_made(folder / mode), **setting) as front:
        for _ in range(10):
            await front.run(TRIVIAL)
        found += await targets.Targets(bare, quick=quick).embedded(front, mode)
        if mode == targets.NEVER:
            found += await _fronts(front, folder, quick=quick)
    return found


async def _fronts(front: fronts.Embedded, folder: Path, *, quick: bool) -> list[targets.Verdict]:
    found: list[targets.Verdict] = []
    for name, opened in (("stdio", fronts.over_stdio), ("http", fronts.over_http)):
        say(f"target: 4. front-end {name}")
        async with opened(_made(folder / name)) as served:
            await served.run(TRIVIAL)
            found += await targets.front_cost(served, front, count=20 if quick else 200)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
