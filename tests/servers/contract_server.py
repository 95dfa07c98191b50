"""An MCP server made with the SDK whose tools are every hard case of the Code Mode contract, over stdio.

Run as ``python contract_server.py [--name NAME] [--odd] [--ledger FILE]``. Its tools are the rows of
``contract_tools.json``: the raw definition, and either the raw answer or what to do. ``--odd`` serves, in place of the
others, the rows whose input schemas are none of type object, which the SDK itself can neither write nor read.
``--ledger`` gets a JSON line for each call, each cancel notification that ended one, and each list of tools given.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

Context = ServerRequestContext[dict[str, Any]]
Row = dict[str, Any]

ROWS: list[Row] = json.loads(Path(__file__).with_name("contract_tools.json").read_text(encoding="utf-8"))

DEFINED: dict[str, Row] = {row["tool"]["name"]: row["tool"] for row in ROWS}

ANY_OBJECT = {"type": "object"}

NO_OBJECT = "$arguments"
"""Where an input that is no object travels through the SDK, whose type for it is an object."""


class Contract:
    """The tools there are, and what they do."""

    def __init__(self, ledger: Path | None, odd: bool) -> None:
        self.ledger = ledger
        self.rows = {row["tool"]["name"]: row for row in ROWS if row.get("odd", False) == odd}
        self.bus = InMemorySubscriptionBus()

    def note(self, event: str, **details: Any) -> None:
        """Append one line to the ledger."""
        if self.ledger is not None:
            with self.ledger.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **details}) + "\n")

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """All tools; `as_defined` puts the schemas of the rows in."""
        self.note("list")
        tools = [
            types.Tool.model_validate({**row["tool"], "inputSchema": ANY_OBJECT}, by_name=False)
            for row in self.rows.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answer as the tool's row says."""
        arguments: Any = params.arguments
        if isinstance(arguments, dict) and NO_OBJECT in arguments:
            arguments = arguments[NO_OBJECT]
        self.note("call", tool=params.name, arguments=arguments)
        row = self.rows.get(params.name)
        if row is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")
        if "answer" in row:
            return types.CallToolResult.model_validate(row["answer"], by_name=False)
        match row.get("does", "echo"):
            case "echo":
                return answer(tool=params.name, arguments=arguments)
            case "fail":
                text = types.TextContent(text=arguments.get("text", "it failed"))
                return types.CallToolResult(content=[text], is_error=True)
            case "refuse":
                raise MCPError(types.INVALID_PARAMS, "refused, as told")
            case "slow":
                return await self.sleep(arguments["ms"])
            case "grow":
                name = arguments["name"]
                self.rows[name] = {"tool": {"name": name, "inputSchema": {"type": "object"}}}
            case "shrink":
                self.rows.pop(arguments["name"])
            case other:
                raise AssertionError(other)
        await self.bus.publish(ToolsListChanged())
        await context.session.send_tool_list_changed()
        return answer(changed=True)

    async def sleep(self, ms: int) -> types.CallToolResult:
        """Answer later, unless the client cancels."""
        try:
            await asyncio.sleep(ms / 1000)
        except asyncio.CancelledError:
            self.note("cancelled", tool="slow")
            raise
        self.note("slept")
        return answer(slept=ms)


def answer(**value: Any) -> types.CallToolResult:
    """A result with structured content."""
    return types.CallToolResult(content=[], structured_content=value)


def with_object_arguments(message: Any) -> Any:
    """A call whose input is no object, in the form that the SDK can carry to the handler."""
    request = getattr(message, "message", None)
    if isinstance(request, types.JSONRPCRequest) and request.method == "tools/call" and request.params:
        arguments = request.params.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            request.params["arguments"] = {NO_OBJECT: arguments}
    return message


def as_defined(message: Any) -> Any:
    """A list of tools with the schemas as the rows have them; the SDK writes none but of type object."""
    response = getattr(message, "message", None)
    if isinstance(response, types.JSONRPCResponse):
        for tool in response.result.get("tools", ()):
            tool.pop("inputSchema", None)
            defined = DEFINED.get(tool["name"], {"inputSchema": ANY_OBJECT})
            tool.update({key: defined[key] for key in ("inputSchema", "outputSchema") if key in defined})
    return message


async def pump(source: Any, sink: Any, change: Any) -> None:
    """Carry messages from one stream to the next, each changed on its way."""
    async with sink:
        async for message in source:
            await sink.send(change(message))


async def serve(name: str, ledger: Path | None, odd: bool) -> None:
    """Serve stdin and stdout until stdin ends."""
    contract = Contract(ledger, odd)
    server: Server[dict[str, Any]] = Server(
        name,
        version="1.2.3",
        instructions=f"Hard cases, served as {name}.",
        on_list_tools=contract.list_tools,
        on_call_tool=contract.call_tool,
        on_subscriptions_listen=ListenHandler(contract.bus),
    )
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    inbound: tuple[MemoryObjectSendStream[Any], MemoryObjectReceiveStream[Any]]
    outbound: tuple[MemoryObjectSendStream[Any], MemoryObjectReceiveStream[Any]]
    inbound = anyio.create_memory_object_stream(0)
    outbound = anyio.create_memory_object_stream(0)
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        tasks.start_soon(pump, read, inbound[0], with_object_arguments)
        tasks.start_soon(pump, outbound[1], write, as_defined)
        await server.run(inbound[1], outbound[0], options)
        tasks.cancel_scope.cancel()


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="contract-server")
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--ledger", type=Path)
    options = parser.parse_args()
    asyncio.run(serve(options.name, options.ledger, options.odd))


if __name__ == "__main__":
    main()
