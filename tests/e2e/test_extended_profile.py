"""The `extended` profile through the SDK's client: what the first run taught is there for the next script."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import ListToolsResult

from cellblock.types.check import compiler
from support.asking_client import stdio
from support.entries import plain_server, write_config
from support.public_servers import ServerEntry
from support.waits import within

TOOLS = ["codemode.run", "search_tools", "inspect_tool", "list_servers"]
VARIABLES = {"name": "Buy milk", "due": "2026-12-01"}
"""Environment of the public server "everything", whose tool get-env declares no output and answers with it as a text
that is JSON."""


def serving(config: Path) -> Client:
    """A client of `cellblock serve --stdio` with a configuration."""
    return Client(stdio(config, config.parent / "state"))


async def ask(client: Client, tool: str, *, fails: bool = False, **arguments: Any) -> str:
    """The text of an answer."""
    result = await within(client.call_tool(tool, arguments))
    assert result.is_error == fails, result.content
    (block,) = result.content
    return block.text


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    result = await within(client.call_tool("codemode.run", {"code": code, **arguments}))
    assert result.structured_content is not None
    return result.structured_content


async def listed(client: Client) -> ListToolsResult:
    return await within(client.list_tools())


def script(use: str) -> str:
    return (
        'import { get_env } from "@codemode/servers/everything";\n'
        "const text = await get_env({});\n"
        f"globalThis.__codemode_result__ = {use};\n"
    )


async def test_one_call_and_the_next_script_is_typed(tmp_path: Path, server_everything: ServerEntry) -> None:
    server_everything["env"] = VARIABLES
    extended = {"profile": "extended"}
    config = write_config(
        tmp_path, {"everything": server_everything}, typecheck_timeout_ms=20_000, frontend=extended
    )
    async with serving(config) as client:
        before = await listed(client)
        assert [tool.name for tool in before.tools] == TOOLS
        unknown = await ask(client, "search_tools", query="environment variables", limit=1)
        assert "get_env(input" in unknown and "Promise<McpToolOutput>" in unknown
        inspected = json.loads(await ask(client, "inspect_tool", tool_name="mcp__everything__get-env"))
        assert inspected["outputSchema"] is None and "observedOutputSchema" not in inspected
        assert inspected["note"].startswith(
            "No output schema defined by the upstream server. Inspect the return value in your script"
        )

        assert (await run(client, script("text.length")))["result"] > 0

        # Same session, at once: the type is there.
        typed = await ask(client, "search_tools", query="environment variables", limit=1)
        assert 'declare module "@codemode/servers/everything"' in typed
        assert "JsonText<" in typed and "due: string" in typed and "Observed from 1 result" in typed
        inspected = json.loads(await ask(client, "inspect_tool", tool_name="get-env"))
        assert inspected["name"] == "mcp__everything__get-env"
        assert inspected["outputSchema"] is None and "observedOutputSchema" in inspected["note"]
        assert {"name", "due"} <= set(inspected["observedOutputSchema"]["contentSchema"]["properties"])
        assert inspected["output"]["samples"] == 1
        (server,) = json.loads(await ask(client, "list_servers"))["servers"]
        assert server["module"] == "@codemode/servers/everything"

        if compiler.why_absent() is None:
            # One result refuses nothing.
            assert (await run(client, script("text.length")))["result"] > 0
            wrong = await run(client, script("JSON.parse(text).title.trim()"), typecheck="before")
            assert wrong["diagnostics"][0]["code"] == "TYPE_ERROR" and wrong["toolTrace"] == []
            assert "Did you mean `name`?" in wrong["diagnostics"][0]["hint"]
        second = await run(client, script("JSON.parse(text).name"), typecheck="before")
        found = [diagnostic for diagnostic in second["diagnostics"] if diagnostic["severity"] != "info"]
        assert (second["result"], found) == ("Buy milk", [])

        assert (await listed(client)).model_dump_json() == before.model_dump_json()
        assert client.instructions is not None and "Observed" not in client.instructions
    # A new session, which knows more, shows a client the same bytes.
    async with serving(config) as client:
        assert (await listed(client)).model_dump_json() == before.model_dump_json()
        again = await ask(client, "search_tools", query="environment variables", limit=1)
        provenance = re.compile(r"Observed from [^;]*;")
        assert provenance.sub("", again) == provenance.sub("", typed) != again


async def test_what_cannot_be_answered_says_why(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()}, frontend={"profile": "extended"})
    async with serving(config) as client:
        # A script waits for the server that it imports; what only asks does so for half a second.
        await run(client, 'import "@codemode/servers/plain";')
        first, hint = (await ask(client, "inspect_tool", tool_name="mcp__plain__ecko")).split("\n")
        assert first == "[Tool not found] 'mcp__plain__ecko' is not available in codemode.run"
        assert hint.startswith("Did you mean plain.echo")
        unknown = await ask(client, "inspect_tool", tool_name="qqqqqqqq")
        assert unknown.split("\n")[1] == "Try search_tools."
        for tool, arguments, expected in [
            ("inspect_tool", {}, "tool_name"),
            ("search_tools", {"query": "x", "limit": 0}, "limit"),
            ("search_tools", {"query": "x", "server": "plane"}, "Did you mean plain?"),
            ("list_servers", {"all": True}, "all"),
        ]:
            assert expected in await ask(client, tool, fails=True, **arguments)
        assert await ask(client, "search_tools", query="qqqqqqqq") == "// nothing found\n"
        with pytest.raises(MCPError, match="search_tools"):
            await within(client.call_tool("search", {"query": "x"}))
