"""What the servers that are made with the SDK share: transports, answers, and a ledger of what has happened."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

Context = ServerRequestContext[dict[str, Any]]

ANY_OBJECT = {"type": "object"}


def said(text: str, **more: Any) -> types.CallToolResult:
    """A result with one text."""
    return types.CallToolResult(content=[types.TextContent(text=text)], **more)


def listed(*names: str) -> types.ListToolsResult:
    """A list of tools with these names, which take any object."""
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=ANY_OBJECT) for name in names])


def note(ledger: Path | None, event: str, **details: Any) -> None:
    """Adds a line to a ledger, where there is one."""
    if ledger is not None:
        with ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")


async def over_stdio(server: Server[dict[str, Any]], stdin: Any = None) -> None:
    """Serves stdin and stdout, and announces that it tells of changes of its tools."""
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server(stdin=stdin) as (read, write):
        await server.run(read, write, options)


def over_sse(
    server: Server[dict[str, Any]], path: str, guard: Callable[[ASGIApp], ASGIApp] = lambda app: app
) -> list[BaseRoute]:
    """The older HTTP transport: `path` for the stream, `/messages/` for what the client sends."""
    transport = SseServerTransport("/messages/")

    class Stream:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            options = server.create_initialization_options(NotificationOptions(tools_changed=True))
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, options)

    return [
        Route(path, endpoint=guard(Stream())),
        Mount("/messages/", app=guard(transport.handle_post_message)),
    ]


def listener() -> tuple[socket.socket, int]:
    """A free loopback port that listens already, so that a client is never refused."""
    made = socket.create_server(("127.0.0.1", 0))
    return made, made.getsockname()[1]


async def over_http(app: ASGIApp, where: socket.socket | None = None) -> None:
    """Serves a port; one of its own is told on stdout."""
    if where is None:
        where, port = listener()
        print(f"port {port}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[where])
