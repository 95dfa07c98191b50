"""An MCP server made with the SDK whose tools are every hard case of the Code Mode contract, over stdio.

Run as ``python contract_server.py [--ledger FILE]``. Its tools are the rows of ``contract_tools.json``: the raw
definition, and either the raw answer or what to do. ``--ledger`` gets a JSON line for each call and each cancel
notification that ended one.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from sdk import ANY_OBJECT, Context, note, over_stdio, said

LEDGER = Path(sys.argv[2]) if sys.argv[1:2] == ["--ledger"] else None

ROWS: dict[str, dict[str, Any]] = {
    row["tool"]["name"]: row
    for row in json.loads(Path(__file__).with_name("contract_tools.json").read_text(encoding="utf-8"))
}

BUS = InMemorySubscriptionBus()


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[types.Tool.model_validate(row["tool"], by_name=False) for row in ROWS.values()]
    )


async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Answers as the tool's row says."""
    arguments: Any = params.arguments
    note(LEDGER, "call", tool=params.name, arguments=arguments)
    row = ROWS.get(params.name)
    if row is None:
        raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")
    if "answer" in row:
        return types.CallToolResult.model_validate(row["answer"], by_name=False)
    match row.get("does", "echo"):
        case "echo":
            return answer(tool=params.name, arguments=arguments)
        case "fail":
            return said(arguments.get("text", "it failed"), is_error=True)
        case "refuse":
            raise MCPError(types.INVALID_PARAMS, "refused, as told")
        case "slow":
            try:
                await asyncio.sleep(arguments["ms"] / 1000)
            except asyncio.CancelledError:
                note(LEDGER, "cancelled", tool="slow")
                raise
            return answer(slept=arguments["ms"])
        case "grow":
            name = arguments["name"]
            ROWS[name] = {"tool": {"name": name, "inputSchema": ANY_OBJECT}}
        case "shrink":
            ROWS.pop(arguments["name"])
        case other:
            raise AssertionError(other)
    await BUS.publish(ToolsListChanged())
    await context.session.send_tool_list_changed()
    return answer(changed=True)


def answer(**value: Any) -> types.CallToolResult:
    """A result with structured content."""
    return types.CallToolResult(content=[], structured_content=value)


server: Server[dict[str, Any]] = Server(
    "contract-server",
    version="1.2.3",
    instructions="Hard cases, served as contract-server.",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_subscriptions_listen=ListenHandler(BUS),
)
asyncio.run(over_stdio(server))
