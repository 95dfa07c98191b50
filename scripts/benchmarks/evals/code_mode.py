"""Serves the servers of a file through FastMCP's code mode, over stdio, in an environment of its own."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

fastmcp: Any = importlib.import_module("fastmcp")  # which the checks do not see
code_mode: Any = importlib.import_module("fastmcp.experimental.transforms.code_mode")


async def main(servers: Any) -> None:
    """Serves, with one session of each server: what they hold lasts from call to call."""
    async with fastmcp.Client(servers) as client:
        proxy = fastmcp.server.create_proxy(client, name="evals", transforms=[code_mode.CodeMode()])
        await proxy.run_async(show_banner=False, log_level="CRITICAL")


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
