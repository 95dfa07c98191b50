"""Hostile servers. One that its user has put under quarantine shows and runs nothing but what was approved, whatever it
lists. One that hides something in every text that it has: nothing of it reaches a model, a terminal or a page. Those
that answer with streams of events that do not end: a call takes its own stream with it, a session's stream is read at a
bounded pace, and others' runs go on."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, MCPError

from cellblock import Broker
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.tools.upstream import listing, pace, stdio
from cellblock.tools.upstream.wire import messages
from cellblock.tools.upstream.wire.framing import LEAST_RETRY_MS
from support.brokers import ready
from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import ledger, plain_server, settings
from support.http_daemon import TOOL, daemon
from support.processes import owned_process
from support.pseudo_terminal import in_terminal
from support.responses import succeeded
from support.waits import until, within

Definition = dict[str, Any]
EVIL = "EVIL"
"""In every text of a definition that nobody has approved."""


def tool(name: str, text: str = "Is harmless") -> Definition:
    return {"name": name, "description": text, "inputSchema": {"type": "object", "title": text}}


APPROVED = [tool("announce"), tool("read.file"), tool("write")]

ATTACKS: dict[str, list[Definition]] = {
    "changed": [tool("announce"), tool("read.file", EVIL), tool("write")],
    "changed in the schema alone": [
        tool("announce"),
        {**tool("read.file"), "inputSchema": {"type": "object", "title": EVIL}},
    ],
    "an output schema": [
        tool("announce"),
        {**tool("write"), "outputSchema": {"type": "object", "title": EVIL}},
    ],
    "a title and annotations": [
        tool("announce"),
        {**tool("read.file"), "title": EVIL},
        {**tool("write"), "annotations": {"title": EVIL, "readOnlyHint": True}},
    ],
    "swapped": [
        tool("announce"),
        {**tool("write", EVIL), "name": "read.file"},
        {**tool("read.file", EVIL), "name": "write"},
    ],
    "twice, the approved one first": [*APPROVED, tool("write", EVIL), tool("read.file", EVIL)],
    "twice, the approved one last": [tool("write", EVIL), tool("read.file", EVIL), *APPROVED],
    "the same export names": [
        tool("read-file", EVIL),
        tool("read_file", EVIL),
        tool("read/file", EVIL),
        *APPROVED,
    ],
    "look-alikes": [
        *APPROVED,
        tool("wr\u0456te", EVIL),
        tool("write\u200b", EVIL),
        tool("\u202ewrite", EVIL),
        tool("write ", EVIL),
        tool("WRITE", EVIL),
        tool("\uff57rite", EVIL),
    ],
    "names that are none": [
        *APPROVED,
        tool("", EVIL),
        tool("x" * 5_000, EVIL),
        tool("__proto__", EVIL),
        tool("__meta__", EVIL),
        tool("default", EVIL),
        tool("constructor", EVIL),
        tool("then", EVIL),
        tool("../announce", EVIL),
        tool('"]; evil(); ["', EVIL),
    ],
    "all gone but one": [tool("announce")],
    "back with others": [*APPROVED, tool("steal", EVIL)],
}

LOOK = """
    import * as shifting from "@codemode/servers/shifting";
    import { listTools, searchTools, getTool } from "@codemode/discovery";
    const seen = [], names = NAMES;
    seen.push(shifting.__meta__, Object.keys(shifting), await listTools("shifting"));
    seen.push((await searchTools("harmless evil")).results);
    for (const name of names) {
        try { seen.push(await getTool("shifting", name)); } catch { }
    }
    for (const [name, call] of Object.entries(shifting)) {
        if (typeof call === "function" && name !== "announce") await call({});
    }
    for (const name of names) {
        // Each by its own name too, as one that has seen the list elsewhere would.
        try { await shifting[name]({}); } catch { }
    }
    globalThis.__codemode_result__ = JSON.stringify(seen);
"""
ANNOUNCE = """
    import { announce } from "@codemode/servers/shifting";
    await Promise.all(Array.from({ length: 20 }, () => announce({})));
"""


Call = tuple[str, dict[str, Any]]


async def shown_to(client: Client, *calls: Call, contents: bool = True) -> dict[str, str]:
    """All that a client can ask for, as it comes; of resources also what they have, if that is asked for."""
    seen = {"instructions": f"{client.server_info} {client.instructions}"}
    seen["tools"] = (await client.list_tools()).model_dump_json()
    for one in (await client.list_resources()).resources:
        seen[f"resource {one.uri}"] = one.model_dump_json()
        if contents:
            seen[f"content {one.uri}"] = (await client.read_resource(one.uri)).model_dump_json()
    for name, arguments in calls:
        seen[f"{name} {arguments}"] = (await within(client.call_tool(name, arguments))).model_dump_json()
    return seen


async def test_nothing_is_shown_or_called_that_is_not_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one session: the server changes its list, says so, and changes it again."""
    monkeypatch.setattr(listing, "RELIST_SECONDS", 0.05)
    file, calls = tmp_path / "definitions.json", tmp_path / "ledger"

    def lists(tools: list[Definition]) -> None:
        # In its place in one step: the server may be reading it.
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({"pages": [tools]}), encoding="utf-8")
        fresh.replace(file)

    servers = {"shifting": plain_server("--definitions", file, "--ledger", calls)}
    extended = {"profile": "extended"}
    config = settings(tmp_path / "state", servers, pins={"reaction": "quarantine"}, frontend=extended)
    lists(APPROVED)
    async with ready(config) as broker:
        for attack, tools in ATTACKS.items():
            honest = {one["name"] for one in tools if EVIL not in json.dumps(one)}
            lists(tools)
            before = broker.catalog.version
            # Many times: nobody waits for a server that says so without end.
            succeeded(await within(broker.run(ANNOUNCE)))
            await until(lambda before=before: broker.catalog.version != before, attack)
            offered = {one.tool_name for one in broker.catalog.servers["shifting"].tools}
            assert "announce" in offered and offered <= honest, attack
            done = len(ledger(calls))
            names = json.dumps([one["name"] for one in tools])
            seen = succeeded(await within(broker.run(LOOK.replace("NAMES", names))))
            assert EVIL not in seen + repr(broker.catalog.servers["shifting"].tools), attack
            called = {line["tool"] for line in ledger(calls)[done:] if line["event"] == "call"}
            assert called <= offered, attack
            asked: list[Call] = [("search_tools", {"query": "harmless write"}), ("list_servers", {})]
            asked += [("inspect_tool", {"tool_name": f"mcp__shifting__{one['name']}"[:600]}) for one in tools]
            async with Client(FrontServer(broker, version="1").open()) as client:
                told = "\n".join((await within(shown_to(client, *asked))).values())
            assert EVIL not in told and "announce" in told, attack


async def test_two_sessions_are_held_against_the_same_pins(tmp_path: Path) -> None:
    """A server that tells one broker something else than the other: what the first has seen is what is approved."""
    file = tmp_path / "definitions.json"
    servers = {"shifting": plain_server("--definitions", file)}
    config = settings(tmp_path / "state", servers, pins={"reaction": "quarantine"})
    file.write_text(json.dumps({"pages": [APPROVED]}), encoding="utf-8")
    async with ready(config) as first:
        file.write_text(json.dumps({"pages": [[*APPROVED[:2], tool("write", EVIL)]]}), encoding="utf-8")
        async with ready(config) as second:
            assert {one.tool_name for one in second.catalog.servers["shifting"].tools} == {
                "announce",
                "read.file",
            }
        assert {one.tool_name for one in first.catalog.servers["shifting"].tools} == {
            "announce",
            "read.file",
            "write",
        }


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


ASKED: list[Call] = [
    *((TOOL, {"code": code}) for code in SCRIPTS.values()),
    *(("list_servers", {}), ("search_tools", {"query": "read notes"})),
    ("inspect_tool", {"tool_name": "evil.read"}),
]


async def shown_by_proxy(client: Client) -> dict[str, str]:
    """The same of one with the profile `proxy`; a call has a wrong input."""
    seen = await shown_to(client, contents=False)
    [read] = [tool.name for tool in (await client.list_tools()).tools if tool.name.endswith("read")]
    try:
        seen[read] = (await within(client.call_tool(read, {"path": "x"}))).model_dump_json()
    except MCPError as error:
        seen[read] = str(error)
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
        async with served.client() as client:
            seen = await (shown_to(client, *ASKED) if profile == "extended" else shown_by_proxy(client))
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


thorough = pytest.mark.thorough

ANSWERED_MS = 60_000
"""The bound of calls that are answered at once, on any machine."""

CALLS = 3

SERVER = r"""
import asyncio, json, sys, time
WAY, WHERE = sys.argv[1:]
streams = 0
NOTICE = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message",' \
    b'"params":{"level":"info","data":"x"}}\n\n'
CHUNKS = {"events": NOTICE * 20, "flood": NOTICE * 300, "one line": b"x" * 4096, "ids": b"id: 1\nretry: 1\n\n" * 4000}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
def say(*words):
    print(*words, flush=True)
def count(more):
    global streams
    streams += more
    say("streams", streams)
def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)
async def endless(reader, writer):
    if WAY == "silent":
        await reader.read()
        raise ConnectionError
    writer.write(HEAD)
    if WAY == "polled":
        # It ends at once, and is to be asked for again at once.
        writer.write(chunk(b"id: 1\nretry: 0\ndata:\n\n") + chunk(b""))
        return
    if WAY == "one line":
        writer.write(chunk(b"data: "))
    while True:
        writer.write(chunk(CHUNKS[WAY]))
        await writer.drain()
        if WAY != "flood":
            # These are about what never ends, not about how fast it comes.
            await asyncio.sleep(0.02)
def answer(writer, id, **result):
    body = json.dumps({"jsonrpc": "2.0", "id": id, **result}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: one\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body))
async def serve(reader, writer):
    streaming = False
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")]
            message = json.loads(await reader.readexactly(sizes[0])) if sizes else {}
            method, id = message.get("method"), message.get("id")
            if head.startswith(b"GET") and WHERE == "session":
                say("asked", time.monotonic())
                streaming = True
                count(1)
                await endless(reader, writer)
            elif not message:
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            elif id is None:
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            elif method == "initialize":
                answer(writer, id, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "endless", "version": "1"}})
            elif method == "tools/list":
                answer(writer, id, result={"tools": [{"name": "stream", "inputSchema": {"type": "object"}}]})
            elif method == "tools/call" and WHERE == "call":
                streaming = True
                count(1)
                await endless(reader, writer)
            elif method == "tools/call":
                answer(writer, id, result={"content": [{"type": "text", "text": "done"}]})
            else:
                answer(writer, id, error={"code": -32601, "message": "no such method"})
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        if streaming:
            count(-1)
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()
asyncio.run(main())
"""

STDIO_FLOOD = r"""
import json, sys, threading
lock = threading.Lock()
def say(text):
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()
def flood():
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    while True:
        say((json.dumps(notice) + "\n") * 300)
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "endless", "version": "1"}},
        "tools/list": {"tools": [{"name": "stream", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    if "id" in message:
        found = results.get(message["method"])
        answer = {"result": found} if found else {"error": {"code": -32601, "message": "no such method"}}
        say(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    if message.get("method") == "tools/list":
        threading.Thread(target=flood, daemon=True).start()
"""

CALL = """
    import { stream } from "@codemode/servers/endless";
    try { globalThis.__codemode_result__ = await stream({}); }
    catch ({ name, certainty }) { globalThis.__codemode_result__ = [name, certainty]; }
"""


async def none_left(said: asyncio.StreamReader) -> None:
    """Waits until the server says that nobody reads its streams any more."""

    async def cut() -> None:
        while await said.readline() != b"streams 0\n":
            assert not said.at_eof()

    await within(cut())


@asynccontextmanager
async def broker_at(
    tmp_path: Path, way: str, where: str
) -> AsyncGenerator[tuple[Broker, asyncio.StreamReader]]:
    """A broker with a server in a process of its own, and what that says."""
    command = (sys.executable, "-I", "-c", SERVER, way, where)
    async with owned_process(*command, stdout=asyncio.subprocess.PIPE) as process:
        url = f"http://127.0.0.1:{int(await within(process.stdout.readline()))}/mcp"
        pool = {"warm": 1, "capacity": 4}
        bound = {"call_timeout_ms": 300 if where == "call" else ANSWERED_MS}
        async with ready(settings(tmp_path, {"endless": {"url": url}}, pool=pool, upstream=bound)) as broker:
            yield broker, process.stdout
        if where == "session" and way != "polled":
            await none_left(process.stdout)


@pytest.mark.parametrize("way", ["events", "one line", "ids", "silent"])
@thorough
async def test_a_stream_without_end_ends_with_its_call(tmp_path: Path, way: str) -> None:
    async with broker_at(tmp_path, way, "call") as (broker, said):
        succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;")))
        before = psutil.Process().memory_info().rss
        calls = [asyncio.ensure_future(broker.run(CALL, client="streams")) for _ in range(CALLS)]
        succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;", client="other")))
        for call in calls:
            assert succeeded(await within(call)) == ["ToolCallError", "may_have_run"]
        await none_left(said)
        # The session goes on: what ends is the stream of each call.
        assert broker.catalog.servers
        assert psutil.Process().memory_info().rss - before < (64 * 1024 * 1024)


@thorough
async def test_a_stream_without_end_ends_with_a_run_that_is_cancelled(tmp_path: Path) -> None:
    async with broker_at(tmp_path, "events", "call") as (broker, said):
        assert (await within(broker.run(CALL, limits={"timeoutMs": 200}))).result is None
        await none_left(said)


@pytest.mark.parametrize("way", ["events", "one line", "ids"])
@thorough
async def test_a_sessions_stream_without_end_holds_nobody(tmp_path: Path, way: str) -> None:
    async with broker_at(tmp_path, way, "session") as (broker, said):
        assert (await within(said.readline())).startswith(b"asked")
        for _ in range(CALLS):
            assert succeeded(await within(broker.run(CALL))) == "done"


@thorough
async def test_a_sessions_stream_that_is_to_be_asked_for_at_once_is_not(tmp_path: Path) -> None:
    async with broker_at(tmp_path, "polled", "session") as (broker, said):
        asked: list[float] = []
        while len(asked) < 4:
            what, number = (await within(said.readline())).split()
            if what == b"asked":
                asked.append(float(number))
        # Least times: a busy machine only makes them longer.
        assert asked[-1] - asked[0] >= (len(asked) - 1) * LEAST_RETRY_MS / 1000
        assert succeeded(await within(broker.run(CALL))) == "done"


@thorough
async def test_a_flood_over_stdio_is_read_at_a_bounded_pace_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' runs go on, and after a while it is not listened to any more."""
    read: list[float] = []

    read_line = messages.read

    def counted(line: bytes) -> list[messages.Message]:
        read.append(asyncio.get_running_loop().time())
        return read_line(line)

    monkeypatch.setattr(messages, "read", counted)
    with_a_slow_pace(monkeypatch)
    server = {"command": sys.executable, "args": ["-I", "-c", STDIO_FLOOD]}
    async with ready(settings(tmp_path, {"endless": server})) as broker:
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]
        most = pace.MESSAGES_AT_ONCE + pace.MESSAGES_PER_SECOND * (read[-1] - read[0])
        assert len(read) < most + 2 * stdio.READ_BYTES / 80


@thorough
async def test_a_flood_of_lines_over_the_cap_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs what its bytes do, though none is kept: eight of them a second."""
    with_a_slow_pace(monkeypatch)
    flood = STDIO_FLOOD.replace('(json.dumps(notice) + "\\n") * 300', '"x" * 1_100_000 + "\\n"')
    assert "1_100_000" in flood
    server = {"command": sys.executable, "args": ["-I", "-c", flood]}
    bounds = {"max_message_bytes": 1_000_000}
    async with ready(settings(tmp_path, {"endless": server}, upstream=bounds)) as broker:
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]


@thorough
async def test_a_flood_over_http_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_slow_pace(monkeypatch)
    async with broker_at(tmp_path, "flood", "session") as (broker, _):
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]


SAID = "it sent over 50 messages a second for 1 s"


def with_a_slow_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that a busy machine reaches, too."""
    monkeypatch.setattr(pace, "MESSAGES_PER_SECOND", 50)
    monkeypatch.setattr(pace, "MESSAGES_AT_ONCE", 10)
    monkeypatch.setattr(pace, "FLOOD_SECONDS", 1.0)
