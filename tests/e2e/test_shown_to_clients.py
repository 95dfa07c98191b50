"""What clients are shown. They are told when the tools behind a daemon change: by a server that says so, and by a
changed configuration. In the profile `extended`, what the first run taught is there for the next script. Approved
scripts are skills (SEP-2640), read by FastMCP's client, which knows the extension, over HTTP. Large results and logs:
over stdio, over HTTP and through `cellblock connect`, in both generations of the protocol.
"""

import asyncio
import base64
import contextlib
import json
import re
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator
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
from support.cellblock_zygote import with_constants
from support.commands import cellblock
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
    for one in (asked, *others):
        await started(one.client)
        # Who has not listed since a server's start is not told of what came with it.
        await one.describes("plain")
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

        # The result, and of what the description had what is known better.
        answer = await ask(client, "codemode.run", code=script("text.length"))
        assert re.fullmatch(
            r"\d+\n\ndeclarations:\neverything\.get_env\(…\): Promise<JsonText<\{.*due: string.*\}>>\n//.*",
            answer,
        )
        assert re.fullmatch(r"\d+", await ask(client, "codemode.run", code=script("text.length + 1")))

        # Same session, at once: the type is there.
        typed = await ask(client, "search_tools", query="environment variables", limit=1)
        assert 'declare module "@codemode/servers/everything"' in typed
        assert "JsonText<" in typed and "due: string" in typed and "Observed from 2 results" in typed
        inspected = json.loads(await ask(client, "inspect_tool", tool_name="get-env"))
        assert inspected["name"] == "mcp__everything__get-env"
        assert inspected["outputSchema"] is None and "observedOutputSchema" in inspected["note"]
        assert {"name", "due"} <= set(inspected["observedOutputSchema"]["contentSchema"]["properties"])
        assert inspected["output"]["samples"] == 2
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
    # A new session shows a client the same, first the tool that its scripts have called, and what that gave.
    async with serving(config) as client:
        tools = (await listed(client)).tools
        text, earlier = (one[0].description or "" for one in (tools, before.tools))
        assert "everything: get_env, " in text and tools[1:] == before.tools[1:]
        same, what = text.split("\n\nWhat functions that you have used gave so far:\n")
        assert sorted(re.findall(r"\w+", same)) == sorted(re.findall(r"\w+", earlier))
        assert re.search(r"^everything\.get_env\(…\): Promise<JsonText<\{.*due: string", what, re.M)
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


KIB = 1024
MIB = 1024 * KIB

INLINE = 20_000

TOTAL = 12 * MIB

SMALL = {"cellblock.base.settings.sections.TOTAL_BYTES": TOTAL}

SOON = {"cellblock.base.settings.sections.EXPIRE_MS": 1_500}

LOOKS_OFTEN = {"cellblock.serve.kept_outputs.TIDY_SECONDS": 0.5}

SECTION: dict[str, Any] = {
    "frontend": {"inline_bytes": INLINE},
    "limits": {"max_log_bytes": [100_000, 100_000]},
    "max_message_bytes": MIB,
    "pool": {"warm": 2},
}

FRONTS = mostly(
    [("stdio", "auto"), ("http", "legacy"), ("connect", "auto")],
    [(front, mode) for front in ("stdio", "http", "connect") for mode in ("auto", "legacy")],
)

ROWS = 4_000

LARGE = f"""
const name = "Zoë \\u202e𝄞".repeat(4);
globalThis.__codemode_result__ = Array.from({{ length: {ROWS} }}, (_, id) => ({{ id, name }}));
"""

CHATTY = """
for (let i = 0; i < 1500; i++) console.log(`line ${i} \\u001b[31m${"x".repeat(30)}`);
globalThis.__codemode_result__ = "small";
"""


def sized(size: int) -> str:
    return f"globalThis.__codemode_result__ = 'x'.repeat({size});"


@asynccontextmanager
async def client_of(front: str, mode: str, running: Daemon, config: Path) -> AsyncGenerator[Client]:
    if front == "http":
        async with running.client(mode) as client:
            yield client
        return
    transport = connect(running) if front == "connect" else stdio(config, config.parent / f"s-{mode}")
    async with Client(transport, mode=mode) as client:
        yield client


@pytest.fixture(scope="module")
async def outputs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Daemon, Path]]:
    """One daemon, and a configuration for a process at a client's pipes."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "daemon").mkdir()
    config = write_config(folder, {}, **SECTION)
    async with daemon(folder / "daemon", constants=SMALL, **SECTION) as running:
        yield running, config


async def made_by(client: Client, code: str) -> types.CallToolResult:
    result = await within(client.call_tool(TOOL, {"code": code}))
    assert not result.is_error, result.content
    return result


def links_of(result: types.CallToolResult) -> list[types.ResourceLink]:
    return [block for block in result.content if isinstance(block, types.ResourceLink)]


def response_of(result: types.CallToolResult) -> dict[str, Any]:
    """The structured content."""
    assert isinstance(result.content[0], types.TextContent) and result.structured_content is not None
    return result.structured_content


async def pages_of(client: Client, uri: str) -> list[str]:
    """All pages, by the address of the next that each one has."""
    texts: list[str] = []
    following: str | None = uri
    while following is not None:
        (contents,) = (await within(client.read_resource(following))).contents
        assert contents.uri == following
        texts.append(contents.text)
        following = contents.meta["cellblock/page"].get("next")
    return texts


async def sizes(client: Client) -> dict[str, int | None]:
    """The sizes of what a client is told of, by URI."""
    return {str(one.uri): one.size for one in (await within(client.list_resources())).resources}


async def refused(client: Client, uri: str) -> str:
    with pytest.raises(MCPError) as raised:
        await within(client.read_resource(uri))
    assert raised.value.error.code == types.INVALID_PARAMS
    return raised.value.error.message


def on_disk(state_dir: Path) -> list[int]:
    """The sizes of outputs in the file."""
    with contextlib.closing(sqlite3.connect(state_dir / "outputs.sqlite3")) as file:
        return [size for (size,) in file.execute("SELECT size FROM outputs")]


@pytest.mark.parametrize(("front", "mode"), FRONTS)
async def test_a_large_result_is_a_preview_and_pages(
    outputs: tuple[Daemon, Path], front: str, mode: str
) -> None:
    async with client_of(front, mode, *outputs) as client:
        result = await made_by(client, LARGE)
        response = response_of(result)
        shown = response["result"]
        assert shown.startswith('[{"id":0,"name":"Zoë \\u202e𝄞') and shown.endswith("…")
        assert len(shown.encode()) <= 2_000 + len("…".encode())
        (link,) = links_of(result)
        assert (link.name, link.mime_type) == ("result.json", "application/json")
        (note,) = response["diagnostics"]
        assert (note["severity"], note["code"]) == ("info", "OUTPUT_KEPT")
        assert f"over {INLINE:,} bytes" in note["message"] and link.uri in note["hint"]
        pages = await pages_of(client, link.uri)
        whole = "".join(pages)
        (facts,) = response["outputs"]
        assert (facts["uri"], facts["bytes"], facts["pages"]) == (link.uri, link.size, len(pages))
        assert len(pages) > 1 and len(whole.encode()) == link.size
        assert json.loads(whole) == [{"id": number, "name": "Zoë \u202e𝄞" * 4} for number in range(ROWS)]
        assert (await sizes(client))[link.uri] == link.size
        (template,) = (await within(client.list_resource_templates())).resource_templates
        assert template.uri_template == "cellblock://outputs/{id}{?page}"
        assert f"?page=1 to ?page={len(pages)}" in await refused(client, f"{link.uri}?page={len(pages) + 1}")
        assert "run the script again" in await refused(client, "cellblock://outputs/" + "A" * 32)
        for bad in (
            "cellblock://outputs/../../token",
            f"{link.uri}?page=0",
            f"{link.uri}?page=1&x",
            f"{link.uri}/lock",
        ):
            assert "no URI of an output" in await refused(client, bad)


@pytest.mark.parametrize(("front", "mode"), [("stdio", "auto"), ("http", "legacy")])
async def test_large_logs_end_with_what_is_left_out(
    outputs: tuple[Daemon, Path], front: str, mode: str
) -> None:
    async with client_of(front, mode, *outputs) as client:
        result = await made_by(client, CHATTY)
        response = response_of(result)
        assert response["result"] == "small"
        (link,) = links_of(result)
        *shown, last = response["logs"]
        assert last["level"] == "warn"
        assert link.uri in last["message"] and "1,500 entries" in last["message"]
        assert shown[0]["message"].startswith("line 0 ")
        assert shown[-1]["message"].startswith("line 1499 \\u001b[31mxxx")
        assert len(json.dumps(shown)) < 3_000
        assert (link.name, link.mime_type) == ("logs.jsonl", "application/x-ndjson")
        lines = "".join(await pages_of(client, link.uri)).splitlines()
        assert [json.loads(line)["message"] for line in lines] == [
            f"line {i} \u001b[31m{'x' * 30}" for i in range(1500)
        ]


async def test_other_sessions_and_principals_cannot_read(outputs: tuple[Daemon, Path]) -> None:
    """A session's outputs are its own, although the others show the same token."""
    running, config = outputs
    async with running.client("legacy") as one, running.client("legacy") as other, running.client() as modern:
        (link,) = links_of(await made_by(one, LARGE))
        for stranger in (other, modern):
            assert "not kept for this connection" in await refused(stranger, link.uri)
            assert link.uri not in await sizes(stranger)
        assert "".join(await pages_of(one, link.uri)).startswith('[{"id":0')
        async with client_of("connect", "legacy", running, config) as relayed:
            assert "not kept for this connection" in await refused(relayed, link.uri)


async def test_processes_with_one_state_folder_share_the_cap(tmp_path: Path) -> None:
    """Two editors that each start `serve --stdio` share one cap, and the oldest output has gone."""
    config = write_config(tmp_path, {}, **SECTION)
    state = tmp_path / "s"
    env = with_constants(SMALL)
    async with Client(stdio(config, state, env=env)) as one, Client(stdio(config, state, env=env)) as other:
        made = [
            links_of(await made_by(client, sized(900 * KIB)))[0].uri
            for client in (one, other, one, other, one, other)
        ]
        sizes = on_disk(state)
        # To policies both are one client.
        assert len(sizes) == 3 and sum(sizes) <= TOTAL // 4
        for client, uri in ((one, made[0]), (other, made[1])):
            assert "is not kept" in await refused(client, uri)
        assert len("".join(await pages_of(other, made[-1]))) == 900 * KIB + 2


async def test_outputs_expire_and_go_with_the_daemon(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    async with daemon(tmp_path, constants=SOON, **SECTION) as running, running.client() as client:
        (link,) = links_of(await made_by(client, LARGE))
        await until(lambda: not on_disk(state_dir), "it is removed when it has expired")
        assert "kept for 1.5 s" in await refused(client, link.uri)
        assert link.uri not in await sizes(client)
        assert links_of(await made_by(client, LARGE))
    assert on_disk(state_dir) == []


async def test_what_a_killed_daemon_leaves_expires_in_the_next(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    async with daemon(tmp_path, constants=SOON, **SECTION) as running, running.client("legacy") as client:
        (link,) = links_of(await made_by(client, LARGE))
        assert on_disk(state_dir) == [link.size]
        # The client's own farewell fails; that is its affair.
        running.process.send_signal(signal.SIGKILL)
        await within(running.process.wait())
    assert on_disk(state_dir) == [link.size]
    # Also when nothing is kept any more.
    async with daemon(tmp_path, constants=LOOKS_OFTEN) as running:
        await until(lambda: not on_disk(state_dir), "it is removed")
        async with running.client() as client:
            result = await made_by(client, LARGE)
            # Whole for a program; its model is shown a beginning, and where the rest is.
            assert len(response_of(result)["result"]) == ROWS
            (link,) = links_of(result)
            text = result.content[0]
            assert isinstance(text, types.TextContent) and link.uri in text.text
            assert 10_000 < len(text.text) < 15_000
            assert len(json.loads("".join(await pages_of(client, link.uri)))) == ROWS


async def test_what_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    """Where its file cannot be written, the daemon gives whole responses."""
    async with daemon(tmp_path, **SECTION) as running:
        with contextlib.closing(sqlite3.connect(tmp_path / "s" / "outputs.sqlite3")) as file:
            file.execute("DROP TABLE output_pages")
        async with running.client() as client:
            result = await made_by(client, LARGE)
            assert len(response_of(result)["result"]) == ROWS
            assert not links_of(result)
    assert any("sent whole" in line for line in running.said)


async def test_the_command_line_prints_whole_results(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, **SECTION)
    script = tmp_path / "large.js"
    script.write_text(LARGE, encoding="utf-8")
    done = await cellblock("run", script, "--config", config, "--state-dir", tmp_path / "s")
    assert json.loads(done.out)["result"][-1]["id"] == ROWS - 1
    assert not (tmp_path / "s" / "outputs.sqlite3").exists()


def png(size: int) -> str:
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * (size - 8)).decode()


def image_script(size: int) -> str:
    """Of which a tool's result is the result: two blocks of content, one of them an image of so many bytes."""
    image = {"type": "image", "data": png(8), "mimeType": "image/png"}
    answer = json.dumps({"result": {"content": [{"type": "text", "text": "a view"}, image]}})[1:-1]
    return f"""
        import {{ raw }} from "@codemode/servers/plain";
        const answer = {json.dumps(answer)}.replace({json.dumps(png(8))}, {json.dumps(png(size)[:16])}
          + "A".repeat({len(png(size)) - 16}));
        globalThis.__codemode_result__ = {{ views: [await raw({{ text: answer }})] }};
    """


@pytest.mark.parametrize("strict", [False, True])
async def test_an_image_is_a_block_of_the_response(strict: bool, tmp_path: Path) -> None:
    config = write_config(
        tmp_path, {"plain": plain_server()}, frontend={"profile": "strict" if strict else "default"}
    )
    async with Client(stdio(config, tmp_path / "s")) as client:
        for size in (30, 600 * KIB):
            result: Any = await within(client.call_tool(TOOL, {"code": image_script(size)}))
            data = png(size)[:16] + "A" * (len(png(size)) - 16)
            assert result.structured_content["diagnostics"] == []
            assert result.structured_content["result"]["views"][0]["content"][1]["data"] == data
            text, *blocks = result.content
            answer = json.loads(text.text)["result"] if strict else json.loads(text.text.partition("\n")[0])
            (shown,) = answer["views"]
            if strict:
                assert blocks == [] and shown["content"][1]["data"] == data
            else:
                assert blocks == [types.ImageContent(data=data, mime_type="image/png")]
                assert shown["content"] == [
                    {"type": "text", "text": "a view"},
                    {
                        "type": "image",
                        "data": f"[image/png, {size:,} bytes: image block 1 of this response]",
                        "mimeType": "image/png",
                    },
                ]
