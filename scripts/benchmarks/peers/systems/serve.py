"""The pipe that every peer in Python is measured through: a line of JSON for each run and for each answer.

Usage: python peer.py ROWS_FILE TIMEOUT_MS
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROWS: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
TIMEOUT_MS = int(sys.argv[2])


async def serve(run: Callable[[str], Awaitable[Any]]) -> None:
    """Runs what comes on stdin, as many at a time as come, until stdin ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    running: set[asyncio.Task[None]] = set()

    async def one(number: int, code: str) -> None:
        try:
            _say({"id": number, "result": await run(code)})
        except Exception as error:  # noqa: BLE001 - whatever a peer says is its answer
            _say({"id": number, "error": f"{type(error).__name__}: {error}"})

    _say({"id": 0})
    async for line in lines:
        asked = json.loads(line)
        task = asyncio.create_task(one(asked["id"], asked["code"]))
        running.add(task)
        task.add_done_callback(running.discard)


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)
