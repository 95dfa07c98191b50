"""A server that hides something in every text that it has: nothing of it reaches a model, a terminal or a page,
whichever way the text goes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import plain_server
from support.http_daemon import TOOL, Daemon, daemon
from support.pseudo_terminal import in_terminal
from support.waits import within

HIDDEN = "\u202e\u200b\U000e0041\x1b[2J\x9b\r"
SAYS = f"Reads{HIDDEN}notes"

DEFINITION = {
    "name": "read",
    "title": SAYS,
    "description": SAYS,
    "annotations": {"title": SAYS},
    "icons": [{"src": "https://x.example/i.png", "mimeType": SAYS}],
    "inputSchema": {
        "type": "object",
        "title": SAYS,
        "description": SAYS,
        "properties": {"path": {"type": "integer", "title": SAYS, "description": SAYS, "$comment": SAYS}},
    },
    "outputSchema": {
        "type": "object",
        "description": SAYS,
        "properties": {"text": {"type": "integer", "description": SAYS}},
        "required": ["text"],
    },
}

# What a script returns, throws or logs is its own, and data.
SCRIPTS = {
    "a failed call": 'import { fail } from "@codemode/servers/evil"; await fail({});',
    "a wrong input": 'import { read } from "@codemode/servers/evil"; await read({ path: "x" });',
    "a server that has died": 'import * as dead from "@codemode/servers/dead"; dead;',
    "a wrong output": 'import { read } from "@codemode/servers/evil"; const { nothing } = await read({});',
    "a wrong name": f'import {{ raed }} from "@codemode/servers/evil"; await raed({json.dumps(HIDDEN)});',
    "discovery": """import { describeServer, listTools, searchTools, listServers } from "@codemode/discovery";
        globalThis.__codemode_result__ = [await listServers(), await describeServer("evil"),
            await listTools("evil", { detail: "full" }), await searchTools("read notes", { detail: "full" })];""",
}


def found_in(text: str) -> list[str]:
    """The places in which something is hidden; colours and the ends of a terminal's lines hide nothing."""
    plain = re.sub(r"\x1b\[[\d;]*m|\\u00[89]\d|\r(?=\n)", "", text)
    hidden = "[\u202e\u200b\U000e0041\x1b\x9b\r]|\\\\u00(1b|9b)|\\\\u20(2e|0b)|\\\\udb40"
    places = re.finditer(hidden, plain, re.IGNORECASE)
    return [plain[max(0, place.start() - 200) : place.end() + 100] for place in places]


async def read_by_models(served: Daemon, extended: bool) -> dict[str, str]:
    """All that a client can ask for, as it comes."""
    seen: dict[str, str] = {}

    async def ask(client: Client, tool: str, arguments: dict[str, Any], name: str) -> None:
        seen[name] = (await within(client.call_tool(tool, arguments))).model_dump_json()

    async with served.client() as client:
        seen["instructions"] = f"{client.server_info} {client.instructions}"
        seen["tools"] = (await client.list_tools()).model_dump_json()
        for one in (await client.list_resources()).resources:
            seen[f"resource {one.uri}"] = one.model_dump_json()
            if extended:
                seen[f"content {one.uri}"] = (await client.read_resource(one.uri)).model_dump_json()
        if extended:
            for name, code in SCRIPTS.items():
                await ask(client, TOOL, {"code": code}, name)
            await ask(client, "list_servers", {}, "list_servers")
            await ask(client, "search_tools", {"query": "read notes"}, "search_tools")
            await ask(client, "inspect_tool", {"tool_name": "evil.read"}, "inspect_tool")
        else:
            for tool in (await client.list_tools()).tools:
                if tool.name.endswith("read"):
                    try:
                        await ask(client, tool.name, {"path": "x"}, "a proxied call with a wrong input")
                    except MCPError as error:
                        seen["a proxied call with a wrong input"] = str(error)
            seen["prompts"] = (await client.list_prompts()).model_dump_json()
    return seen


@pytest.mark.parametrize("profile", ["extended", "proxy"])
async def test_nothing_hidden_is_shown(tmp_path: Path, profile: str) -> None:
    definitions, beside = tmp_path / "definitions.json", tmp_path / "beside.json"
    fails = {"name": "fail", "description": SAYS, "inputSchema": {"type": "object"}}
    answers = {"fail": {"content": [{"type": "text", "text": SAYS}], "isError": True}}
    introduction = {"serverInfo": {"name": SAYS, "title": SAYS, "version": SAYS}, "instructions": SAYS}
    definitions.write_text(
        json.dumps({"pages": [[DEFINITION, fails]], "introduction": introduction, "answers": answers})
    )
    prompt = {
        "name": "p",
        "title": SAYS,
        "description": SAYS,
        "arguments": [{"name": "a", "description": SAYS}],
    }
    listed = {"uri": "file:///x", "name": SAYS, "title": SAYS, "description": SAYS}
    beside.write_text(
        json.dumps(
            {
                "capabilities": {"prompts": {}, "resources": {}},
                "answers": {"prompts/list": {"prompts": [prompt]}, "resources/list": {"resources": [listed]}},
            }
        )
    )
    # The end of a line would hide the rest.
    dies = f"import sys; sys.stderr.buffer.write({SAYS.replace(chr(13), '').encode()!r}); sys.exit(1)"
    dead = {"command": sys.executable, "args": ["-IS", "-c", dies]}
    servers = {"evil": plain_server("--definitions", definitions, "--beside", beside), "dead": dead}
    async with daemon(tmp_path, "--profile", profile, servers=servers, journal="all") as served:
        seen = await read_by_models(served, profile == "extended")
        for path in ("/dashboard/state", "/dashboard/kept"):
            seen[path] = (await served.ask("GET", path, headers=served.auth)).body.decode()
        if profile == "extended":
            there = ("--config", str(tmp_path / "cellblock.json"), "--state-dir", str(tmp_path / "s"))
            for words in (
                ("types", "evil"),
                ("search", "read"),
                ("inspect", "evil.read"),
                ("status",),
                ("runs", "list"),
            ):
                async with in_terminal(str(forked_cellblock()), *words, *there) as terminal:
                    await within(terminal.process.wait())
                seen[f"cellblock {words[0]}, on a terminal"] = terminal.text
                assert len(terminal.text) > 20, words
            for words in ("status", "doctor"):
                seen[f"cellblock {words}, in a pipe"] = (await cellblock(words, *there)).out
    assert any("notes" in text for text in seen.values())
    found = {where: lines for where, text in seen.items() if (lines := found_in(text))}
    assert found == {}
