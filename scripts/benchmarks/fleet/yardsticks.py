"""Yardsticks are what the same machine does without Cellblock: the SDK's own server behind the same client, and
a bare Deno process."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.fleet.books import Books, Look, spent
from benchmarks.fleet.client import Load, request_of
from benchmarks.fleet.core import CLIENTS, LEAD_SECONDS, SETTLE_SECONDS, figures, windows_of
from benchmarks.fleet.stage import BROKERS_CORE, OTHER_CORE
from benchmarks.harness import say, seconds_of
from benchmarks.load.fronts import RAW_SERVER
from benchmarks.load.yardsticks import BareDeno

DENO_RUNS: Final = 10


async def measure(*, quick: bool, pinned: bool) -> dict[str, Any]:
    """Returns both."""
    server = await _sdk_server(quick=quick, pinned=pinned)
    say(f"the SDK's server alone: {server['per_second']:.0f}/s, {server['us_a_run']['broker']:.0f} µs each")
    return {"sdk_server": server, "bare_deno_ms": await _bare_deno()}


async def _bare_deno() -> float:
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        bare = BareDeno(Path(folder))
        await bare()
        return round(1000 * statistics.median([await seconds_of(bare()) for _ in range(DENO_RUNS)]), 1)


async def _sdk_server(*, quick: bool, pinned: bool) -> dict[str, Any]:
    """Returns what a server of the SDK does whose tool does nothing, on the brokers' core; its part is called
    `broker`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    before = os.sched_getaffinity(0)
    process = await asyncio.create_subprocess_exec(sys.executable, str(RAW_SERVER), "http", str(port))
    load, looks = Load(("127.0.0.1", port), CLIENTS), list[Look]()
    books = Books({"broker": [process.pid], "client": [os.getpid()]})
    try:
        if pinned:
            psutil.Process(process.pid).cpu_affinity([BROKERS_CORE])
            os.sched_setaffinity(0, {OTHER_CORE})
        # It is tried again until the server listens.
        await load.open()
        asked = request_of(f"127.0.0.1:{port}", "nothing", {}, None)
        count, seconds = windows_of(quick)
        found = await load.hold(
            CLIENTS,
            seconds,
            asked,
            b'"result":1',
            lead=LEAD_SECONDS,
            windows=count,
            edge=lambda: looks.append(books.look()),
        )
        await load.settled(SETTLE_SECONDS)
        return figures(found, [spent(*pair) for pair in pairwise(looks)])
    finally:
        load.close()
        os.sched_setaffinity(0, before)
        process.terminate()
        await process.wait()
