"""What measurements share: places, arguments, turns, medians, a broker to measure, tables and results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import deno

if TYPE_CHECKING:
    from cellblock import Broker

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "scripts"
FIXTURES: Final = ROOT / "tests" / "fixtures"
CATALOGS: Final = FIXTURES / "catalogs"
CELLBLOCK: Final = Path(sys.executable).parent / "cellblock"
PLAIN_SERVER: Final = ROOT / "tests" / "servers" / "plain_server.py"
MIB: Final = 1 << 20
BOUND_SECONDS: Final = 60.0
"""Longest wait for anything that is over within a second on a quiet machine."""

_SERVING: Final = re.compile(rb"https?://[^\s/]+:(\d+)/mcp")
_T = TypeVar("_T")


def parser(name: str, doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """Makes the parser of `scripts/NAME`, or `scripts/bench NAME`, whose help is the module's docstring."""
    return argparse.ArgumentParser(
        prog=f"scripts/{name}",
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
            for package in ("cellblock", "mcp", "pyzmq", "msgspec", "pydantic", "psutil")
        },
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
    }


def write(folder: Path, name: str, result: Mapping[str, Any], text: str) -> list[Path]:
    """Writes NAME.json and NAME.md; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    files = {f"{name}.json": "{\n" + ",\n".join(lines) + "\n}\n", f"{name}.md": text}
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


def best_of(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the least seconds of a plain call."""

    def timed() -> float:
        began = clock()
        work()
        return clock() - began

    return min(timed() for _ in range(times))


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


async def in_turns_async(ways: Mapping[str, Callable[[], Awaitable[_T]]], rounds: int) -> dict[str, list[_T]]:
    """As `in_turns`, of what is awaited; the other way round every second time, as what one leaves to be done falls on
    the next."""
    found: dict[str, list[_T]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in [*ways][:: -1 if turn % 2 else 1]:
            found[name].append(await ways[name]())
    return found


class Targets:
    """Judges figures by their bounds, and says so."""

    def __init__(self) -> None:
        self.are_met = True

    def judge(self, what: str, measured: float, bound: float, unit: str) -> None:
        """Prints a figure beside its bound."""
        met = measured <= bound
        self.are_met &= met
        print(f"{what}: {measured:.3g} {unit}, at most {bound:g} ({'met' if met else 'MISSED'})")


def configured(folder: Path, servers: Mapping[str, Any] | None = None, **cellblock: Any) -> Path:
    """Writes a configuration; `cellblock` are the sections of that key."""
    file = folder / "cellblock.json"
    file.write_text(json.dumps({"mcpServers": dict(servers or {}), "cellblock": cellblock}), "utf-8")
    return file


@contextlib.asynccontextmanager
async def broker(
    servers: Mapping[str, Any] | None = None, *, tools: Sequence[Any] = (), **cellblock: Any
) -> AsyncGenerator[Broker]:
    """Serves in this process with a state directory of its own; `cellblock` are the sections of that key."""
    # Here, so that a measurement of something smaller does not wait for the import.
    from cellblock import Broker

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # As many from the start as `warmed` waits for.
        config = configured(Path(folder), servers, **{"pool": {"warm": 2}, **cellblock})
        async with Broker.from_config(config, tools=list(tools), state_dir=Path(folder)) as made:
            yield made


async def warmed(of: Broker) -> None:
    """Waits until all workers that the pool keeps are warm."""
    async with asyncio.timeout(BOUND_SECONDS):
        while of.warm_workers < of.settings.cellblock.pool.warm:  # noqa: ASYNC110 - hosts say it now and then
            await asyncio.sleep(0.005)


def as_daemon() -> None:
    """Sets this process up as a daemon's: what a harness has imported is in no garbage collection of the broker."""
    from cellblock.app.process_memory import own_process

    own_process()


class Daemon(NamedTuple):
    """A process that serves over HTTP, at a port of the loopback."""

    process: subprocess.Popen[bytes]
    port: int
    state: Path
    token: str


@contextlib.contextmanager
def daemon(
    config: Path,
    state: Path,
    *options: str,
    program: Sequence[str] = (str(CELLBLOCK),),
    environment: Mapping[str, str] | None = None,
) -> Generator[Daemon]:
    """Serves by `cellblock serve --http`, and ends it with SIGTERM.

    Args:
        config: The configuration.
        state: The state directory; its log goes beside it.
        options: More of the command line.
        program: Another `cellblock`, and what goes before it.
        environment: More of its own.

    Raises:
        RuntimeError: It does not serve.
    """
    words = [*program, "serve", "--http", "127.0.0.1:0", "--config", str(config), "--state-dir", str(state)]
    log = state.with_name(f"{state.name}.log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*words, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, **(environment or {})},
        )
    try:
        port = port_told_in(log, BOUND_SECONDS, process)
        token = "" if "--no-auth" in options else (state / "token").read_text("ascii").strip()
        yield Daemon(process, port, state, token)
    finally:
        process.terminate()
        try:
            process.wait(BOUND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_told_in(log: Path, bound: float, process: subprocess.Popen[bytes] | None = None) -> int:
    """Waits until a daemon has said where it serves. Raises RuntimeError."""
    deadline = time.monotonic() + bound
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        if (found := _SERVING.search(log.read_bytes())) is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"the daemon did not start: {log.read_bytes()[-2000:].decode(errors='replace')}")
