"""What each process of a daemon holds: idle, after runs one after the other, and beside eight clients.

PSS in MiB: what processes share counts once, also with others on the machine that run the same Deno. The runs are the
trivial script of the load test; the workers of one kind are added up.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.client import TOOL, PlainClient
from benchmarks.harness import MIB, Daemon, daemon, parser, table
from benchmarks.load.fronts import ENVIRONMENT, arguments_of, write_config
from benchmarks.load.scenarios import TRIVIAL
from benchmarks.processes import pss_bytes, tree

# By a word of the command line, or by the program.
KINDS: Final = {
    "serve": "broker",
    "cellblock_worker": "host",
    "launcher.py": "launcher",
    "deno": "workers",
    "tsc": "compiler",
}

REST_SECONDS: Final = 5.0


def held(when: str, daemon: Daemon) -> list[str]:
    # Upstream servers are not ours.
    found = Counter[str]()
    for process in tree(daemon.process.pid):
        with contextlib.suppress(psutil.Error):
            words = {process.name(), *(Path(word).name for word in process.cmdline())}
            found.update({KINDS[word]: pss_bytes(process.pid) for word in words & KINDS.keys()})
    return [when, *(f"{found[kind] / MIB:.0f}" for kind in KINDS.values()), f"{found.total() / MIB:.0f}"]


async def runs(daemon: Daemon, count: int) -> None:
    with contextlib.closing(PlainClient(daemon.port, daemon.token)) as client:
        for _ in range(count):
            await client.call(TOOL, arguments_of(TRIVIAL))


async def measured(reuse: str, count: int) -> list[list[str]]:
    with (
        tempfile.TemporaryDirectory() as name,
        daemon(write_config(Path(name), reuse=reuse), Path(name) / "s", environment=ENVIRONMENT) as running,
    ):
        await asyncio.sleep(REST_SECONDS)
        rows = [held(f"reuse {reuse}: idle", running)]
        await runs(running, count)
        rows.append(held(f"after {count} runs", running))
        clients = asyncio.gather(*(runs(running, 250) for _ in range(8)))
        await asyncio.sleep(REST_SECONDS / 5)
        rows.append(held("eight clients", running))
        await clients
    return rows


def main(arguments: Sequence[str]) -> int:
    arguing = parser("bench memory", __doc__)
    arguing.add_argument("--runs", type=int, default=1_000, help="one after the other")
    count = arguing.parse_args(arguments).runs
    rows = [row for reuse in ("never", "principal") for row in asyncio.run(measured(reuse, count))]
    print(table(("PSS, MiB", *KINDS.values(), "all"), rows))
    return 0
