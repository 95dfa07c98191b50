"""FastMCP's code mode: a server with the tools, the transform, its Monty sandbox; a client in the same process."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

from serve import ROWS, TIMEOUT_MS, serve

fastmcp: Any = importlib.import_module("fastmcp")  # in an environment of its own, which the checks do not see
code_mode: Any = importlib.import_module("fastmcp.experimental.transforms.code_mode")


async def noop() -> dict[str, Any]:
    """Answers at once."""
    return {"ok": 1}


async def rows() -> dict[str, Any]:
    """A hundred kilobytes of rows."""
    return {"rows": ROWS}


async def nap(ms: int) -> dict[str, Any]:
    """Answers after `ms` milliseconds."""
    await asyncio.sleep(ms / 1000)
    return {"ok": 1}


async def main() -> None:
    """Serves."""
    limits = {"max_feed_duration_secs": TIMEOUT_MS / 1000, "max_memory": 128 << 20}
    sandbox = code_mode.MontySandboxProvider(limits=limits)
    server = fastmcp.FastMCP("peer", transforms=[code_mode.CodeMode(sandbox_provider=sandbox)])
    for tool in (noop, rows, nap):
        server.tool(tool)
    async with fastmcp.Client(server) as client:

        async def run(code: str) -> Any:
            answer = await client.call_tool("execute", {"code": code})
            return json.loads(answer.content[0].text)

        await serve(run)


asyncio.run(main())
