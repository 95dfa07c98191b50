"""Runs under load, beside bare `deno run` processes and the raw MCP SDK client (`bash scripts/loadtest`)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import peers
from benchmarks.harness import MIB, add_output, machine, parser, say
from benchmarks.load import floor, fronts, report, stages, sweep, targets, tree
from benchmarks.load.scenarios import TRIVIAL
from benchmarks.load.yardsticks import BareDeno
from cellblock.cli.serve import own_process
from cellblock_worker.confinement import confinement

MODES: Final = (targets.NEVER, "principal")
"""Lists the values of `pool.reuse` that are measured in turns unless told otherwise."""

EPILOG = """examples:
  bash scripts/loadtest --quick                    three minutes
  bash scripts/loadtest --out docs/benchmarks      everything, with 20,000 runs for memory; 25 minutes
  bash scripts/loadtest --quick --compare OLD.json beside an earlier result
  bash scripts/loadtest --result NEW.json --compare OLD.json   two results, and how far they agree
  bash scripts/loadtest --only sweep --front http  the load through one way in
  bash scripts/loadtest --peers                    other systems, in turns, and what loops they survive
  bash scripts/loadtest --fleet --quick            several brokers and hosts behind a balancer, two minutes
"""


def main(arguments: Sequence[str]) -> int:
    """Reads the arguments and measures; 0 when it has, 1 when a run of the load had an unexpected outcome."""
    arguing = parser("load", __doc__, epilog=EPILOG)
    arguing.prog = "scripts/loadtest"
    arguing.add_argument("--quick", action="store_true", help="a tenth of the samples")
    arguing.add_argument(
        "--peers", action="store_true", help="measure other systems instead (installs them once)"
    )
    arguing.add_argument(
        "--fleet", action="store_true", help="measure several brokers and hosts behind a balancer instead"
    )
    arguing.add_argument(
        "--beside", default="", metavar="WORDS", help="for --fleet: what else the machine does"
    )
    arguing.add_argument(
        "--reuse",
        type=lambda text: text.split(","),
        default=[*MODES],
        metavar="MODE,...",
        help=f"values of pool.reuse to measure in turns ({','.join(MODES)})",
    )
    add_output(arguing, "load")
    arguing.add_argument("--compare", type=Path, metavar="FILE", help="an earlier JSON result")
    arguing.add_argument(
        "--result", type=Path, metavar="FILE", help="a JSON result to show and compare instead of measuring"
    )
    arguing.add_argument(
        "--flat", type=int, metavar="N", help="runs for the memory curve (20000; 0 with --quick)"
    )
    arguing.add_argument("--only", choices=["targets", "sweep", "stages", "floor"], help="measure one part")
    arguing.add_argument(
        "--front",
        choices=["embedded", "stdio", "http"],
        default="embedded",
        help="way in for the sweep (embedded)",
    )
    options = arguing.parse_args(arguments)
    if options.peers:
        return asyncio.run(peers.main(options))
    if options.fleet:
        # It needs the tests' PostgreSQL, which others do without.
        from benchmarks.fleet import measure

        return asyncio.run(measure.main(options))
    try:
        old = report.read(options.compare) if options.compare else None
        result = report.read(options.result) if options.result else asyncio.run(_measure(options))
    except report.NoResult as error:
        arguing.error(str(error))
    text = report.markdown(result)
    print(text)
    if options.out:
        for file in report.write(result, options.out, options.name):
            say(f"wrote {file}")
    if old is not None:
        print(report.compare(result, old))
    return 1 if any(row["latency"]["errors"] for row in result["sweep"]) else 0


async def _measure(options: argparse.Namespace) -> report.Result:
    result: report.Result = {
        "machine": machine(),
        "quick": options.quick,
        "targets": [],
        "stages": {},
        "worker": {},
        "sweep": [],
        "flat": [],
    }
    found: list[targets.Verdict] = []
    # As in a daemon's: what this harness has imported is in no garbage collection of the broker.
    own_process()
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
    _add_stages(result)
    return result


def _setting(mode: str) -> dict[str, str]:
    """Of the pool; the default is not said, for versions that have no other."""
    return {} if mode == targets.NEVER else {"reuse": mode}


async def _sweep(bare: BareDeno, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The load through one way in, a daemon for each mode: idle ones take next to nothing of the other's turn."""
    async with contextlib.AsyncExitStack() as running:
        ways: dict[str, fronts.Front] = {sweep.BARE: bare}
        for mode in options.reuse:
            place = folder / f"sweep-{mode}"
            place.mkdir()
            opened = fronts.FRONTS[options.front](place, **_setting(mode))
            ways[mode] = await running.enter_async_context(opened)
        return await sweep.measure(ways, quick=options.quick, say=say)


async def _alone(
    mode: str, bare: BareDeno, folder: Path, options: argparse.Namespace, result: report.Result
) -> list[targets.Verdict]:
    """What is measured of one daemon by itself; of workers that serve one run also the stages and the floor."""
    quick, only = options.quick, options.only
    flat = options.flat if options.flat is not None else (0 if quick or only else 20_000)
    found: list[targets.Verdict] = []
    (folder / mode).mkdir()
    async with fronts.embedded(folder / mode, **_setting(mode)) as front:
        for _ in range(10):
            await front.run(TRIVIAL)
        if mode == targets.NEVER and only in (None, "stages"):
            say("stages of one run")
            result["stages"] = await stages.of_broker(front.broker, 20 if quick else 200)
            confinement.use_isolation("auto")
            result["worker"] = await stages.of_worker(5 if quick else 40)
        if mode == targets.NEVER and (only == "floor" or (only is None and not quick)):
            say("the thinnest chain of the same parts, in turns with Cellblock")
            try:
                result["floor"] = await floor.measure(front, bare, folder, quick=quick)
            except floor.NoFloor as error:
                say(f"left out: {error}")
        if only in (None, "targets"):
            found += await targets.Targets(folder, bare, quick=quick, say=say).embedded(front, mode)
            if mode == targets.NEVER:
                found += await _fronts(front, folder, quick=quick)
        if flat:
            result["flat"] += [{"reuse": mode, **row} for row in await _flat(front, flat)]
    return found


async def _fronts(front: fronts.Embedded, folder: Path, *, quick: bool) -> list[targets.Verdict]:
    found: list[targets.Verdict] = []
    for name, opened in (("stdio", fronts.over_stdio), ("http", fronts.over_http)):
        say(f"target: 4. front-end {name}")
        (folder / name).mkdir()
        try:
            async with opened(folder / name) as served:
                await served.run(TRIVIAL)
                found += await targets.front_cost(served, front, count=20 if quick else 200)
        except TimeoutError:
            say("the front-end did not start; left out")
    return found


def _add_stages(result: report.Result) -> None:
    """The parts of a run with a call through a front-end that only the targets have measured."""
    for row in result["targets"]:
        if row["target"] == "4":
            name, _, how = row["what"].partition(" over the embedding API, p50")
            result["worker"][f"front-end: {name}{how}"] = row["measured"]
        elif row["target"] == "3a" and "reuse" not in row["what"]:
            result["worker"]["tool round trip, in-process tool"] = row["measured"]


async def _flat(front: fronts.Embedded, runs: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    done, step = 0, max(1, runs // 20)

    async def loop(until: int) -> None:
        nonlocal done
        while done < until:
            done += 1
            await front.run(TRIVIAL)

    while done < runs:
        await asyncio.gather(*(loop(done + step) for _ in range(4)))
        broker, host = (tree.private_bytes(pid) / MIB for pid in (os.getpid(), front.pid))
        worker = max((tree.private_bytes(pid) for pid in tree.workers()), default=0) / MIB
        rows.append(
            {
                "runs": done,
                "broker_mib": round(broker, 1),
                "host_mib": round(host, 1),
                "worker_mib": round(worker, 1),
            }
        )
        said = f"broker {broker:.1f} MiB, host {host:.1f} MiB, the largest worker {worker:.1f} MiB"
        say(f"memory after {done} runs: {said}")
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
