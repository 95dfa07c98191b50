"""What clients are shown. They are told when the tools behind a daemon change: by a server that says so, and by a
changed configuration. In the profile `extended`, what the first run taught is there for the next script. Approved
scripts are skills (SEP-2640), read by FastMCP's client, which knows the extension, over HTTP.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import yaml
from mcp import Client, MCPError
from mcp.server.subscriptions import ResourceUpdated, ToolsListChanged
from mcp.shared.subscriptions import ResourcesListChanged
from mcp_types import ListToolsResult

from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.record.scripts.library import Approval, Library, entry_of
from cellblock.record.scripts.script_file import CLOSING, OPENING, Header, format_script, read_script
from cellblock.serve.mcp.skills import skill_list, skill_text
from cellblock.tools.catalog.model import Catalog
from cellblock.types.check import compiler
from support.asking_client import connect, over_http, stdio
from support.entries import plain_server, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.public_servers import ServerEntry
from support.waits import until, until_found, within

GROW = 'import { grow } from "@codemode/servers/plain"; await grow({ name: "later" });'
PLAIN = "codemode://servers/plain.d.ts"


@dataclass
class Told:
    """A client, and what it was told."""

    client: Client
    modern: bool
    joined_late: bool
    """Whether the servers had started when it began to listen: only then is their start surely no news to it."""

    said: list[str]

    def forget(self) -> None:
        """All but how often the list of resources has changed."""
        self.said[:] = [one for one in self.said if one == "resources"]

    async def hears(self, *wanted: str) -> None:
        await until(lambda: set(wanted) <= set(self.said), f"{wanted}, of which came {self.said}")

    async def describes(self, name: str) -> bool:
        (tool,) = (await within(self.client.list_tools())).tools
        return name in (tool.description or "")


async def started(client: Client, declarations: str = PLAIN) -> None:
    """Waits until a server has started: its declarations are a resource then."""

    async def is_there() -> bool:
        return declarations in [str(one.uri) for one in (await within(client.list_resources())).resources]

    await until_found(is_there, declarations)


@asynccontextmanager
async def told(transport: Any, mode: str, *, joins_late: bool = False) -> AsyncGenerator[Told]:
    """A client that listens as its generation of the protocol does: the older one from its greeting on."""
    # Something may be said before the client is greeted.
    said: list[str] = []

    async def on_message(message: object) -> None:
        kinds = {
            types.ToolListChangedNotification: "tools",
            types.ResourceListChangedNotification: "resources",
        }
        # For the newer generation the stream below gives the same.
        if mode == "legacy":
            said.extend(name for kind, name in kinds.items() if isinstance(message, kind))

    client = Client(transport, mode=mode, message_handler=on_message, cache=None)
    async with client:
        asked = Told(client, mode == "auto", joins_late or mode == "auto", said)
        able = client.server_capabilities
        assert able.tools is not None and able.tools.list_changed
        assert able.resources is not None and able.resources.list_changed
        if mode == "legacy":
            assert not able.resources.subscribe
            yield asked
            return
        await started(client)
        async with client.listen(
            tools_list_changed=True, resources_list_changed=True, resource_subscriptions=[PLAIN]
        ) as changes:

            async def follow() -> None:
                names = {ToolsListChanged: "tools", ResourcesListChanged: "resources", ResourceUpdated: PLAIN}
                async for event in changes:
                    said.append(names[type(event)])  # noqa: PERF401 - as they come
                said.append("ended")

            following = asyncio.create_task(follow())
            try:
                yield asked
            finally:
                following.cancel()
                await asyncio.wait([following])


async def check(config: Path, asked: Told, *others: Told) -> None:
    """A tool more, and a server more: only that one changes the list of resources."""
    assert not (await within(asked.client.call_tool(TOOL, {"code": GROW}))).is_error
    for one in (asked, *others):
        await one.hears("tools", *([PLAIN] if one.modern else []))
        # The server's start may have been news to it, too, before its change was.
        await until_found(lambda client=one: client.describes("later"), "the tool that is new")
        one.forget()
    add_server(config)
    for one in (asked, *others):
        await one.hears("tools", "resources")
        await started(one.client, "codemode://servers/second.d.ts")
        assert PLAIN not in one.said
        assert one.said.count("resources") == 1 or not one.joined_late, one.said


def add_server(file: Path) -> None:
    content = json.loads(file.read_text())
    content["mcpServers"]["second"] = plain_server()
    made = file.with_name("new")
    made.write_text(json.dumps(content))
    made.replace(file)


@pytest.mark.parametrize("mode", mostly(["auto"], ["auto", "legacy"]))
async def test_over_stdio(tmp_path: Path, mode: str) -> None:
    config = write_config(tmp_path, {"plain": plain_server()})
    async with told(stdio(config, tmp_path / "s"), mode) as asked:
        await check(config, asked)


async def test_over_http_and_through_connect(tmp_path: Path) -> None:
    """Each of four clients is told, and streams that stay open hold neither readiness nor the end up."""
    async with (
        daemon(tmp_path, http={"drain_ms": 60_000}) as running,
        over_http(running) as modern,
        over_http(running) as older,
        # The others join when it listens, after the start.
        told(modern, "auto") as first,
        told(older, "legacy", joins_late=True) as second,
        told(connect(running), "auto") as third,
        told(connect(running), "legacy", joins_late=True) as fourth,
    ):
        await check(tmp_path / "cellblock.json", first, second, third, fourth)
        assert (await running.ask("GET", "/readyz")).status == 200
        # What a new session is shown is of now, not of the daemon's start.
        async with running.client("legacy") as late:
            assert "- plain" in ((await late.list_tools()).tools[0].description or "")
        began = time.monotonic()
        running.process.terminate()
        await within(running.process.wait())
        assert time.monotonic() - began < 40
        await first.hears("ended")
        await third.hears("ended")


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
    # A new session, which knows more, shows a client the same words, first the tool that its scripts have called.
    async with serving(config) as client:
        shown, earlier = (await listed(client)).model_dump_json(), before.model_dump_json()
        assert "everything: get_env, " in shown
        assert sorted(re.findall(r"\w+", shown)) == sorted(re.findall(r"\w+", earlier))
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


CODE = "globalThis.__codemode_result__ = { twice: 2 * input.count };\n"
INPUT = {"type": "object", "properties": {"count": {"type": "number"}}, "required": ["count"]}
DESCRIPTION = 'Doubles: "a count" — no more \N{SLIGHTLY SMILING FACE}.\nThen ends.'


def approve(served: Daemon, name: str, **header: Any) -> None:
    state = served.folder / "s"
    library = Library(LocalStore(state), AuthSettings(keyring="off"), None, state)
    library.approvals.approve(
        format_script(name, Header(description=DESCRIPTION, input=INPUT, **header), CODE)
    )


async def test_a_real_client_finds_and_reads_skills(tmp_path: Path) -> None:
    # Imported here: it takes long, and each process that collects tests would do it.
    fastmcp = pytest.importorskip("fastmcp")
    skills = pytest.importorskip("fastmcp.skills")
    async with daemon(tmp_path) as served:
        client = fastmcp.Client(served.url, auth=served.token, extensions=[skills.SkillsClientExtension()])
        async with client:
            assert await client.list_skills() == []
            approve(served, "twice_it")
            (listed,) = await until_found(client.list_skills, "the approved script is a skill")
            assert listed.uri == "skill://twice-it/SKILL.md"
            one = await client.get_skill(listed.uri)
            assert one == listed
            (resource,) = [one for one in await client.list_resources() if str(one.uri) == listed.uri]
            assert (resource.name, resource.description) == ("twice-it", DESCRIPTION)
            assert resource.mime_type == "text/markdown"
            (read,) = await client.read_resource(listed.uri)
            assert sha256(read.text.encode()).hexdigest() == one.resources[0].digest.removeprefix("sha256:")
            assert len(read.text.encode()) == one.resources[0].size
            assert yaml.safe_load(read.text.split("---\n")[1]) == one.frontmatter.root
            assert one.frontmatter.description == DESCRIPTION
            code = read.text.split("```js\n")[1].split("```")[0].replace("/* its input */", "count: 21")
            ran = await client.call_tool("codemode.run", {"code": code})
            assert ran.structured_content["result"] == {"twice": 42}
            with pytest.raises(Exception, match="no skill"):
                await client.get_skill("skill://other/SKILL.md")


@pytest.mark.parametrize("hidden", ["007f", "0085", "2028", "202e", "000a", "d83d\\ude42"])
def test_a_description_is_one_text_to_yaml_and_to_json(hidden: str) -> None:
    text = f'{OPENING}{{"description": "Odd\\u{hidden}: one"}}{CLOSING}{CODE}'
    script = read_script("odd", text.encode())
    catalog = Catalog(servers={"scripts": entry_of({"odd": Approval(script, "someone", 0.0)})})
    (listed,) = skill_list(catalog).skills
    text = skill_text(catalog, listed["uri"])
    assert yaml.safe_load(text.split("---\n")[1]) == listed["frontmatter"]
