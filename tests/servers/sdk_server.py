"""An MCP server made with the SDK that pages its tool list and can change it, over stdio, HTTP or SSE.

Run as ``python sdk_server.py [stdio|http|sse] [--tools N] [--page N] [--require-header NAME=VALUE
[--revoked FILE]] [--description FILE] [--flood] [--app FILE] [--json]``. Over HTTP and SSE it listens on a free
loopback port and writes ``port N`` as its first line on stdout.
"""

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

Context = ServerRequestContext[dict[str, Any]]


def make_server(
    count: int, page: int, description: Path | None = None, flood: bool = False, app: Path | None = None
) -> Server[dict[str, Any]]:
    """A server with `count` numbered tools, listed `page` at a time, and `grow`, `sleep`, `headers`, maybe `flood`, and
    the tool and the pages of `app`."""
    bus = InMemorySubscriptionBus()
    names = [*(f"numbered_{number:03}" for number in range(count)), "grow", "headers", "sleep"]
    if flood:
        names.append("flood")
    given: dict[str, Any] = {"pages": {}} if app is None else json.loads(app.read_text(encoding="utf-8"))
    if app is not None:
        names.append(given["tool"]["name"])

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + page
        text = description.read_text(encoding="utf-8") if description is not None else None  # noqa: ASYNC240
        tools = [
            types.Tool.model_validate(given["tool"], by_name=False)
            if "tool" in given and name == given["tool"]["name"]
            else types.Tool(name=name, description=text, input_schema={"type": "object"})
            for name in names[start:end]
        ]
        return types.ListToolsResult(tools=tools, next_cursor=str(end) if end < len(names) else None)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        text = params.name
        if params.name == "grow":
            names.append(str(arguments["name"]))
            await bus.publish(ToolsListChanged())
            await context.session.send_tool_list_changed()
        elif params.name == "flood":
            text = "f" * int(arguments["bytes"])
        elif params.name == "sleep":
            print("sleeps", file=sys.stderr, flush=True)
            await asyncio.sleep(float(arguments["ms"]) / 1000)
        elif params.name == "headers" and context.request is not None:
            text = str(context.request.headers.get(str(arguments["name"])))
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def read_resource(
        context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return types.ReadResourceResult.model_validate(
            {"contents": given["pages"][params.uri]}, by_name=False
        )

    return Server(
        "sdk-server",
        version="1.0",
        on_list_resources=None if app is None else list_resources,
        on_read_resource=None if app is None else read_resource,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )


def sse_app(server: Server[dict[str, Any]]) -> Starlette:
    """The older HTTP transport: `/sse` for the stream, `/messages/` for what the client sends."""
    transport = SseServerTransport("/messages/")

    class Stream:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, options(server))

    routes = [Route("/sse", endpoint=Stream()), Mount("/messages/", app=transport.handle_post_message)]
    return Starlette(routes=routes)


def guarded(app: ASGIApp, header: str, value: str, revoked: Path | None) -> ASGIApp:
    """Refuses HTTP requests that do not carry the header with 401, and all once the file `revoked` exists."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): text.decode() for name, text in scope.get("headers", [])}
        gone = revoked is not None and revoked.exists()  # noqa: ASYNC240 - one stat in a test server
        valid = headers.get(header.lower()) == value and not gone
        if scope["type"] == "http" and not valid:
            refusal: Response = PlainTextResponse("who are you?", status_code=401)
            await refusal(scope, receive, send)
            return
        await app(scope, receive, send)

    return check


def options(server: Server[dict[str, Any]]) -> Any:
    """Initialization options that announce `tools.listChanged`."""
    return server.create_initialization_options(NotificationOptions(tools_changed=True))


async def over_stdio(server: Server[dict[str, Any]]) -> None:
    """Serves stdin and stdout."""
    async with stdio_server() as (read, write):
        await server.run(read, write, options(server))


async def over_http(app: ASGIApp) -> None:
    """Serves a free loopback port and tells it on stdout."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # before the port is told, so that a client is never refused
    print(f"port {listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http", "sse"), nargs="?", default="stdio")
    parser.add_argument("--tools", type=int, default=3)
    parser.add_argument("--page", type=int, default=100)
    parser.add_argument("--require-header", metavar="NAME=VALUE")
    parser.add_argument("--revoked", type=Path, metavar="FILE")
    parser.add_argument("--description", type=Path, metavar="FILE", help="with the description of every tool")
    parser.add_argument("--flood", action="store_true", help="have a tool that answers with `bytes` bytes")
    parser.add_argument("--app", type=Path, metavar="FILE", help='{"tool": {…}, "pages": {URI: contents}}')
    parser.add_argument("--json", action="store_true", help="answer over HTTP with JSON, not with events")
    parsed = parser.parse_args()
    server = make_server(parsed.tools, parsed.page, parsed.description, parsed.flood, parsed.app)
    if parsed.transport == "stdio":
        asyncio.run(over_stdio(server))
        return
    app: ASGIApp = (
        server.streamable_http_app(json_response=parsed.json)
        if parsed.transport == "http"
        else sse_app(server)
    )
    if parsed.require_header:
        app = guarded(app, *parsed.require_header.split("=", 1), parsed.revoked)
    asyncio.run(over_http(app))


if __name__ == "__main__":
    sys.exit(main())
