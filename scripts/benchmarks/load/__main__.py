"""Runs under load, beside bare `deno run` processes and the raw MCP SDK client (`bash scripts/loadtest`)."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import MIB, add_output, machine, parser, say
from benchmarks.load import floor, fronts, report, stages, targets, tree
from benchmarks.load.drive import Outcome, closed, poisson
from benchmarks.load.scenarios import BY_NAME, HONEST, TRIVIAL, Scenario, mixed
from benchmarks.load.yardsticks import BareDeno
from cellblock_worker.confinement import confinement

CLIENTS: Final = (1, 2, 4, 8, 16)
QUICK_CLIENTS: Final = (1, 4)
MEMORY_SECONDS: Final = 1.0
"""Between two looks at the memory of the process tree while a load runs."""

EPILOG = """examples:
  bash scripts/loadtest --quick                    a good minute
  bash scripts/loadtest --out docs/benchmarks      everything, with 20,000 runs for memory; 20 minutes
  bash scripts/loadtest --quick --compare OLD.json beside an earlier result
  bash scripts/loadtest --result NEW.json --compare OLD.json   two results, and how far they agree
  bash scripts/loadtest --only sweep --front http  the load through one way in
"""


def main(arguments: Sequence[str]) -> int:
    """Reads the arguments and measures; 0 when it has, 1 when a run of the load had an unexpected outcome."""
    arguing = parser("load", __doc__, epilog=EPILOG)
    arguing.prog = "scripts/loadtest"
    arguing.add_argument("--quick", action="store_true", help="a tenth of the samples")
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
        action="append",
        choices=[*fronts.FRONTS],
        help="way in for the sweep; may be given again (embedded)",
    )
    options = arguing.parse_args(arguments)
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
    return 1 if any(row["latency"]["errors"] for row in (*result["sweep"], *result["open"])) else 0


async def _measure(options: argparse.Namespace) -> report.Result:
    quick, only = options.quick, options.only
    flat = options.flat if options.flat is not None else (0 if quick or only else 20_000)
    result: report.Result = {
        "machine": machine(),
        "quick": quick,
        "targets": [],
        "stages": {},
        "worker": {},
        "sweep": [],
        "open": [],
        "flat": [],
    }
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        folder = Path(scratch)
        bare = BareDeno(folder)
        await bare()
        (folder / "embedded").mkdir()
        async with fronts.embedded(folder / "embedded") as front:
            for _ in range(10):
                await front.run(TRIVIAL)
            if only in (None, "stages"):
                say("stages of one run")
                result["stages"] = await stages.of_broker(front.broker, 20 if quick else 200)
                confinement.use_isolation("auto")
                result["worker"] = await stages.of_worker(5 if quick else 40)
            if only == "floor" or (only is None and not quick):
                say("the thinnest chain of the same parts, in turns with Cellblock")
                try:
                    result["floor"] = await floor.measure(front, bare, folder, quick=quick)
                except floor.NoFloor as error:
                    say(f"left out: {error}")
            if only in (None, "targets"):
                found = await targets.Targets(folder, bare, quick=quick, say=say).embedded(front)
                for number, opened in enumerate((fronts.over_stdio, fronts.over_http)):
                    say(f"target: 4. front-end {number + 1} of 2")
                    (folder / str(number)).mkdir()
                    try:
                        async with opened(folder / str(number)) as served:
                            await served.run(TRIVIAL)
                            found += await targets.front_cost(served, front, count=20 if quick else 200)
                    except TimeoutError:
                        say("the front-end did not start; left out")
                result["targets"] = report.verdict_rows(sorted(found, key=lambda one: one.number))
                _add_stages(result)
            ways = options.front or ["embedded"]
            if only in (None, "sweep") and "embedded" in ways:
                result["sweep"] += await _sweep(front, quick=quick)
                result["open"] += await _open(front, result["sweep"], quick=quick)
            if flat:
                result["flat"] = await _flat(front, flat)
        # Each way in by itself: two daemons at once would share the cores.
        for way in (way for way in ways if way != "embedded" and only in (None, "sweep")):
            (folder / way).mkdir()
            async with fronts.FRONTS[way](folder / way) as front:
                rows = await _sweep(front, quick=quick)
                result["sweep"] += rows
                result["open"] += await _open(front, rows, quick=quick)
    return result


def _add_stages(result: report.Result) -> None:
    """The parts of a run with a call through a front-end that only the targets have measured."""
    for row in result["targets"]:
        if row["target"] == "4":
            name, _, how = row["what"].partition(" over the embedding API, p50")
            result["worker"][f"front-end: {name}{how}"] = row["measured"]
        elif row["target"] == "3a":
            result["worker"]["tool round trip, in-process tool"] = row["measured"]


async def _sweep(front: fronts.Front, *, quick: bool) -> list[dict[str, Any]]:
    scenarios: Sequence[Scenario | None] = [TRIVIAL, BY_NAME["one call"], None] if quick else [*HONEST, None]
    rows: list[dict[str, Any]] = []
    for scenario in scenarios:
        for clients in QUICK_CLIENTS if quick else CLIENTS:
            name = scenario.name if scenario else "mixed, 2 % hostile"
            say(f"closed: {name}, {clients} clients")
            outcome, cost = await _load(front, scenario, clients=clients, seconds=1.0 if quick else 6.0)
            rows.append(
                {"front": front.name, "scenario": name, "clients": clients, **cost, **outcome.as_json()}
            )
    return rows


async def _load(
    front: fronts.Front, scenario: Scenario | None, *, clients: int, seconds: float
) -> tuple[Outcome, dict[str, float]]:
    load = closed(_work(front, scenario), clients=clients, seconds=seconds)
    return await _costed(load)


async def _costed(load: Coroutine[Any, Any, Outcome]) -> tuple[Outcome, dict[str, float]]:
    """A load, and what it took: CPU of the machine for each run, and the most private memory of the process tree."""
    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            # In a thread: reading some twenty processes' pages takes milliseconds, which runs would wait for.
            peak = max(peak, await asyncio.to_thread(tree.private_tree_bytes))
            await asyncio.sleep(MEMORY_SECONDS)

    watcher = asyncio.create_task(watch())
    before = tree.busy_seconds()
    try:
        outcome = await load
    finally:
        watcher.cancel()
    cpu = (tree.busy_seconds() - before) * 1000 / max(1, outcome.latencies.count)
    return outcome, {"cpu_ms_per_run": round(cpu, 2), "peak_mib": round(peak / MIB, 1)}


def _work(front: fronts.Front, scenario: Scenario | None) -> Any:
    source = random.Random(1)

    async def one() -> Any:
        chosen = scenario or mixed(source)
        response = await front.run(chosen)
        failed = any(entry["severity"] == "error" for entry in response["diagnostics"])
        if failed != chosen.fails:
            say(f"unexpected outcome of {chosen.name}: {response['diagnostics']}")
            raise RuntimeError(chosen.name)
        return response

    return one


async def _open(front: fronts.Front, sweep: list[dict[str, Any]], *, quick: bool) -> list[dict[str, Any]]:
    most = max(row["per_second"] for row in sweep if row["scenario"] == TRIVIAL.name)
    rows: list[dict[str, Any]] = []
    for share in (0.5, 0.8):
        say(f"open: {TRIVIAL.name} at {share:.0%} of {most:.0f} runs/s")
        load = poisson(_work(front, TRIVIAL), rate=most * share, seconds=2.0 if quick else 20.0)
        outcome, cost = await _costed(load)
        head = {"front": front.name, "scenario": TRIVIAL.name, "rate": most * share}
        rows.append({**head, **cost, **outcome.as_json()})
    return rows


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
        rows.append({"runs": done, "broker_mib": round(broker, 1), "host_mib": round(host, 1)})
        say(f"memory after {done} runs: broker {broker:.1f} MiB, host {host:.1f} MiB")
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
