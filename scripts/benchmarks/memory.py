"""What each process of a daemon holds: idle, after runs one after the other, and beside eight clients.

PSS by `/proc/PID/smaps_rollup`: what processes share counts once, also with others on the machine that run the same
Deno. In brackets the private part, which depends on nobody else. The runs are the trivial script of the load test.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.client import TOOL, PlainClient
from benchmarks.harness import MIB, daemon, parser, table
from benchmarks.load.fronts import ENVIRONMENT, arguments_of, write_config
from benchmarks.load.scenarios import TRIVIAL
from benchmarks.processes import private_bytes, pss_bytes, tree

KINDS: Final = {"launcher.py": "launcher", "cellblock_worker": "host", "deno": "workers", "tsc": "compiler"}
"""Names processes by the program or the module that they run."""

REST_SECONDS: Final = 5.0


async def runs(port: int, seconds: float, count: int) -> None:
    """One client's runs, so many or for so long, each after the other's answer."""
    until = time.monotonic() + seconds
    with contextlib.closing(PlainClient(port)) as client:
        while time.monotonic() < until and (count := count - 1) >= 0:
            await client.call(TOOL, arguments_of(TRIVIAL))


def held(broker: int) -> dict[str, str]:
    """MiB of each kind of process, and of all; upstream servers are not ours."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for process in tree(broker):
        with contextlib.suppress(psutil.Error):
            words = {process.name(), *(Path(word).name for word in process.cmdline())}
            kind = next((name for word, name in KINDS.items() if word in words), "")
            if process.pid == broker or kind:
                row = pss_bytes(process.pid), private_bytes(process.pid)
                found["broker" if process.pid == broker else kind].append(row)
    found["all"] = [row for rows in found.values() for row in rows]
    return {kind: _mib(rows) for kind, rows in found.items()}


def _mib(rows: list[tuple[int, int]]) -> str:
    pss, private = (sum(column) / MIB for column in zip(*rows, strict=True))
    return f"{pss:.0f} ({private:.0f})" + (f" ×{len(rows)}" if len(rows) > 1 else "")


async def measured(port: int, broker: int, count: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    await asyncio.sleep(REST_SECONDS)
    found["idle"] = held(broker)
    await runs(port, 3_600, count)
    found[f"after {count:,} runs"] = held(broker)
    clients = [asyncio.create_task(runs(port, 2 * REST_SECONDS, 1 << 30)) for _ in range(8)]
    await asyncio.sleep(REST_SECONDS)
    found["eight clients"] = await asyncio.to_thread(held, broker)
    await asyncio.gather(*clients)
    return found


def main(arguments: Sequence[str]) -> int:
    """Prints a table for each kind of reuse."""
    arguing = parser("bench memory", __doc__)
    arguing.add_argument("--runs", type=int, default=1_000, help="one after the other (1,000)")
    count = arguing.parse_args(arguments).runs
    columns = ("broker", "host", "launcher", "workers", "compiler", "all")
    rows: list[Sequence[str]] = []
    for reuse in ("never", "principal"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = write_config(folder, reuse=reuse)
            with daemon(config, folder / "state", "--no-auth", environment=ENVIRONMENT) as running:
                found = asyncio.run(measured(running.port, running.process.pid, count))
        for when, by_kind in found.items():
            rows.append((f"reuse {reuse}, {when}", *(by_kind.get(column, "") for column in columns)))
    print(table(("MiB: PSS (private)", *columns), rows))
    return 0
