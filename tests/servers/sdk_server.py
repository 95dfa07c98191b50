"""An MCP server made with the SDK that pages its tool list and can change it, over stdio, HTTP or SSE.

Run as ``python sdk_server.py [stdio|http|sse] [--tools N] [--page N] [--require-header NAME=VALUE
[--revoked FILE]] [--flood] [--app FILE] [--json]``. Over HTTP and SSE it listens on a free
loopback port and writes ``port N`` as its first line on stdout.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from sdk import ANY_OBJECT, Context, over_http, over_sse, over_stdio, said


def make_server(parsed: argparse.Namespace) -> Server[dict[str, Any]]:
    """A server with numbered tools, listed some at a time, with `grow`, `sleep`, `headers` and maybe `flood`, and with
    the tool and the pages of `app`."""
    bus = InMemorySubscriptionBus()
    given: dict[str, Any] = json.loads(parsed.app.read_text(encoding="utf-8")) if parsed.app else {}
    own = {given["tool"]["name"]: types.Tool.model_validate(given["tool"], by_name=False)} if given else {}
    names = [f"numbered_{number:03}" for number in range(parsed.tools)]
    names += ["grow", "headers", "sleep", *(["flood"] if parsed.flood else []), *own]

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + parsed.page
        tools = [own.get(name) or types.Tool(name=name, input_schema=ANY_OBJECT) for name in names[start:end]]
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
        return said(text)

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
        on_list_resources=list_resources if given else None,
        on_read_resource=read_resource if given else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )


def guarded(app: ASGIApp, header: str, value: str, revoked: Path | None) -> ASGIApp:
    """Refuses HTTP requests that do not carry the header with 401, and all once the file `revoked` exists."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): text.decode() for name, text in scope.get("headers", [])}
        gone = revoked is not None and revoked.exists()  # noqa: ASYNC240 - one stat in a test server
        is_valid = headers.get(header.lower()) == value and not gone
        refusal = PlainTextResponse("who are you?", status_code=401)
        await (app if is_valid or scope["type"] != "http" else refusal)(scope, receive, send)

    return check


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http", "sse"), nargs="?", default="stdio")
    parser.add_argument("--tools", type=int, default=3)
    parser.add_argument("--page", type=int, default=100)
    parser.add_argument("--require-header", metavar="NAME=VALUE")
    parser.add_argument("--revoked", type=Path, metavar="FILE")
    parser.add_argument("--flood", action="store_true", help="have a tool that answers with `bytes` bytes")
    parser.add_argument("--app", type=Path, metavar="FILE", help='{"tool": {…}, "pages": {URI: contents}}')
    parser.add_argument("--json", action="store_true", help="answer over HTTP with JSON, not with events")
    parsed = parser.parse_args()
    server = make_server(parsed)
    if parsed.transport == "stdio":
        asyncio.run(over_stdio(server))
        return
    app: ASGIApp = Starlette(routes=over_sse(server, "/sse"))
    if parsed.transport == "http":
        app = server.streamable_http_app(json_response=parsed.json)
    if parsed.require_header:
        app = guarded(app, *parsed.require_header.split("=", 1), parsed.revoked)
    asyncio.run(over_http(app))


main()
