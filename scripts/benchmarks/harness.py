"""What measurements share: places, arguments, turns, medians, a broker to measure, tables and results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import deno

if TYPE_CHECKING:
    from cellblock import Broker

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "scripts"
FIXTURES: Final = ROOT / "tests" / "fixtures"
CATALOGS: Final = FIXTURES / "catalogs"
PLAIN_SERVER: Final = ROOT / "tests" / "servers" / "plain_server.py"
MIB: Final = 1 << 20
BOUND_SECONDS: Final = 60.0
"""Longest wait for anything that is over within a second on a quiet machine."""

_T = TypeVar("_T")


def parser(name: str, doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """Makes the parser of `scripts/bench NAME`, whose help is the module's docstring."""
    return argparse.ArgumentParser(
        prog=f"scripts/bench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def add_output(to: argparse.ArgumentParser, stem: str) -> None:
    """Adds `--out` and `--name`, for results that are kept."""
    to.add_argument("--out", type=Path, metavar="DIR", help="write the result there: NAME.md, NAME.json …")
    to.add_argument("--name", default=f"{stem}-{date.today().isoformat()}", help="base name of the files")


def say(text: str) -> None:
    """Prints progress on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Returns what the figures depend on."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "deno": version("deno"),
        "deno_binary": Path(deno.find_deno_bin()).name,
        **{
            package: version(package)
            for package in ("cellblock", "mcp", "pyzmq", "msgpack", "pydantic", "psutil")
        },
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
    }


def write(folder: Path, name: str, result: Mapping[str, Any], text: str, **pictures: str) -> list[Path]:
    """Writes NAME.json, NAME.md and a NAME-PART.svg for each picture (NAME.svg for `_`); returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    files = {f"{name}.json": "{\n" + ",\n".join(lines) + "\n}\n", f"{name}.md": text}
    files |= {f"{name}.svg" if part == "_" else f"{name}-{part}.svg": svg for part, svg in pictures.items()}
    for file, content in files.items():
        (folder / file).write_text(content, "utf-8")
    return [folder / file for file in files]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table; every column but the first is aligned to the right."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def median_and(percent: int, values: Iterable[float]) -> tuple[float, float]:
    """Returns the median and a percentile (nearest rank from below); the maximum for 100."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def median_of(
    work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the median seconds of a plain call."""
    return statistics.median(_timed(work, clock) for _ in range(times))


def best_of(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the least seconds of a plain call."""
    return min(_timed(work, clock) for _ in range(times))


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began


async def seconds_of(work: Awaitable[object]) -> float:
    """Returns the wall seconds of one awaited call."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def in_turns(ways: Mapping[str, Callable[[], _T]], rounds: int) -> dict[str, list[_T]]:
    """Measures each way once in every round, so that what else the machine does falls on all of them."""
    found: dict[str, list[_T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            found[name].append(measure())
    return found


def ratios(title: str, found: Mapping[str, Sequence[float]], unit: str = "ms") -> None:
    """Prints the median seconds of each way, and its ratio to the first."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    first = next(iter(medians.values()))
    factor = {"ms": 1e3, "µs": 1e6}[unit]
    print(title)
    for name, median in medians.items():
        print(f"  {name:46} {median * factor:9.2f} {unit}   ratio {median / first:.2f}")


@contextlib.asynccontextmanager
async def broker(
    servers: Mapping[str, Any] | None = None, *, tools: Sequence[Any] = (), **cellblock: Any
) -> AsyncGenerator[Broker]:
    """Serves in this process with a state directory of its own; `cellblock` are the sections of that key."""
    # Here, so that a measurement of something smaller does not wait for the import.
    from cellblock import Broker
    from cellblock.config.settings import parse_settings

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        raw = {"mcpServers": dict(servers or {}), "cellblock": {"state_dir": folder, **cellblock}}
        async with Broker(parse_settings(raw), tools=list(tools)) as made:
            yield made


async def warmed(of: Broker) -> None:
    """Waits until all workers that the pool keeps are warm."""
    async with asyncio.timeout(BOUND_SECONDS):
        while of.warm_workers < of.settings.cellblock.pool.warm:  # noqa: ASYNC110 - hosts say it now and then
            await asyncio.sleep(0.005)
