"""What the same work costs without Cellblock: a bare `deno run` of the script, and the raw SDK client."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import deno
from mcp import Client, StdioServerParameters, stdio_client

BARE_SCRIPT = "globalThis.__codemode_result__ = 1;\nconsole.log(globalThis.__codemode_result__);\n"


class BareDeno:
    """A `deno run` process for each script, its DENO_DIR warm, its end awaited."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bare.js"
        self._file.write_text(BARE_SCRIPT, "utf-8")
        self._argv = [deno.find_deno_bin(), "run", "--no-remote", "--no-npm", "--no-config", str(self._file)]
        self._environment = {
            "DENO_DIR": str(folder / "deno-dir"),
            "DENO_NO_UPDATE_CHECK": "1",
            "NO_COLOR": "1",
        }

    async def __call__(self) -> None:
        """One process from spawn to exit."""
        process = await asyncio.create_subprocess_exec(
            *self._argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out.strip() == b"1"

    async def cpu_seconds(self, count: int, *, rest: float) -> float:
        """CPU seconds of one process, over `count` of them with `rest` seconds before each: cold caches cost too."""

        def children() -> float:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        before = children()
        for _ in range(count):
            await asyncio.sleep(rest)
            await self()
        return (children() - before) / count


@contextlib.asynccontextmanager
async def raw_sdk(*server: str) -> AsyncGenerator[Client]:
    """The SDK's own client at a stdio server in Python, given as its arguments."""
    parameters = StdioServerParameters(command=sys.executable, args=list(server))
    async with Client(stdio_client(parameters)) as client:
        yield client


async def spawn_rate(bare: BareDeno, *, parallel: int, seconds: float) -> float:
    """Bare processes per second, `parallel` at a time."""
    done = 0
    started = time.perf_counter()
    until = started + seconds

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await bare()
            done += 1

    await asyncio.gather(*(loop() for _ in range(parallel)))
    return done / (time.perf_counter() - started)
