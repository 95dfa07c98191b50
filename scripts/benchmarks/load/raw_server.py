"""An MCP server of the SDK alone, with one tool that does nothing: what a front-end costs before it has any work.

Usage: raw_server.py stdio | raw_server.py http, which prints its port
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

SCHEMA: dict[str, Any] = {"type": "object"}
TOOL = types.Tool(name="nothing", input_schema=SCHEMA)
Context = ServerRequestContext[Any, Any]


async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """The one tool."""
    return types.ListToolsResult(tools=[TOOL])


async def call_tool(_: Context, __: types.CallToolRequestParams) -> types.CallToolResult:
    """As much of an answer as a trivial run gives."""
    text = types.TextContent(text='{"result": 1}')
    return types.CallToolResult(content=[text], structured_content={"result": 1})


def main() -> None:
    """Serves until it is killed."""
    server = Server[Any](
        "nothing",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda _: SCHEMA,
    )

    async def over_stdio() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    if sys.argv[1] == "stdio":
        anyio.run(over_stdio)
    else:
        # The socket is made here, so that its port can be told before anybody asks.
        listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
