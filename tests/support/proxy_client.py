"""A client of `cellblock serve --profile proxy`, over stdio."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from support.cellblock_zygote import forked_cellblock
from support.entries import write_config


@asynccontextmanager
async def proxy_client(
    folder: Path, servers: dict[str, Any], *, mode: str = "auto", on_message: Any = None, **cellblock: Any
) -> AsyncGenerator[Client]:
    """A client whose servers' tools are each under one name; `cellblock` is the section of the configuration."""
    config = write_config(folder, servers, **cellblock)
    command = ["serve", "--profile", "proxy", "--config", str(config), "--state-dir", str(folder / "state")]
    async with Client(
        StdioServerParameters(command=str(forked_cellblock()), args=command),
        mode=mode,
        message_handler=on_message,
        cache=None,
    ) as client:
        yield client
