"""Cellblock through the same pipe as its peers, or the bare process. Usage: ours.py ROWS_FILE TIMEOUT_MS bare|MODE"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from serve import TIMEOUT_MS, serve

from benchmarks.harness import as_daemon
from benchmarks.load import fronts
from benchmarks.load.scenarios import importing
from benchmarks.load.yardsticks import BareDeno

LIMITS = {"timeoutMs": TIMEOUT_MS, "maxCpuMs": TIMEOUT_MS, "maxMemoryBytes": 128 << 20}


async def main(way: str, folder: Path) -> None:
    """Serves."""

    async def run(code: str) -> Any:
        response = await front.run(importing(code, code, limits=LIMITS))
        if problems := [one for one in response["diagnostics"] if one["severity"] == "error"]:
            raise RuntimeError(problems[0]["message"])
        return response["result"]

    if way == "bare":
        front: fronts.Front = BareDeno(folder)
        await serve(run)
        return
    as_daemon()
    async with fronts.embedded(folder, **({} if way == "never" else {"reuse": way})) as front:
        await serve(run)


with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
    asyncio.run(main(sys.argv[3], Path(scratch)))
