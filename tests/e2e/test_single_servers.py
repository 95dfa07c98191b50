"""A server that exists once among several brokers: one has it, the others go through that one, never two are alive.

The server holds the lock of a file, and notes in its ledger when another process has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
from asyncio.subprocess import DEVNULL, PIPE
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import psutil
import psycopg
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from cellblock.frontend.replicas.words import WAY_HEADER, WAY_PATH, Words
from support.cellblock_zygote import started
from support.certificates import certificate
from support.entries import entry, forked_server, ledger, plain_server
from support.http_daemon import MCP_HEADERS, TOOL, Daemon, daemon
from support.postgresql import Postgres
from support.replicas import KEY, SECTION, Fleet, fleet, words
from support.waits import until, until_found, within

UPSTREAM: dict[str, Any] = {
    "servers": {"plain": {"single": True, "call_timeout_ms": 60_000}},
}

PAGE = {"uri": "doc://a", "text": "y" * 400_000}
BESIDE: dict[str, Any] = {
    "capabilities": {"resources": {"subscribe": True}, "prompts": {}},
    "answers": {
        "resources/list": {"resources": [{"uri": "doc://a", "name": "a"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [PAGE]},
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]},
    },
}
DEADLINE_MS = 5_000
"""Bounds a call of the server that asks, whose answers take milliseconds."""

CALLS = """import {{ echo }} from "@codemode/servers/plain";
const found = [];
for (const text of {texts}) {{
  try {{ found.push(await echo({{ text }})); }} catch (error) {{ found.push(error.certainty ?? String(error)); }}
  await new Promise((resolve) => setTimeout(resolve, 400));
}}
globalThis.__codemode_result__ = found;
"""
PID_OR_WHY = """import { pid } from "@codemode/servers/plain";
try { globalThis.__codemode_result__ = [await pid({})]; }
catch (error) { globalThis.__codemode_result__ = [error.certainty, error.message]; }
"""
TWO_QUESTIONS = """import { elicit } from "@codemode/servers/asking";
globalThis.__codemode_result__ = await Promise.all([elicit({}), elicit({})]);
"""
HOLD = """import { hold } from "@codemode/servers/plain";
try { await hold({ path: "/nowhere" }); }
catch (error) { globalThis.__codemode_result__ = [error.certainty, error.message]; }
"""


def server(folder: Path) -> dict[str, Any]:
    return plain_server("--ledger", folder / "ledger.jsonl", "--alone", folder / "alone")


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in ledger(folder / "ledger.jsonl") if event["event"] == name]


async def answer_of(client: Client, code: str) -> Any:
    found = await within(client.call_tool(TOOL, {"code": code}), 120)
    assert found.structured_content is not None, found
    return found.structured_content


async def result_of(served: Daemon, code: str) -> Any:
    """What a script comes to at a broker."""
    async with served.client() as client:
        found = await answer_of(client, code)
    assert "result" in found, found
    return found["result"]


async def until_one(folder: Path, *daemons: Daemon) -> str:
    """Waits until scripts at all of these brokers have the process that was started last, and returns its id."""
    pids: list[Any] = []

    async def is_so() -> bool:
        pids[:] = [await result_of(one, PID_OR_WHY) for one in daemons]
        return all(pid == [str(events(folder, "start")[-1]["pid"])] for pid in pids)

    await until_found(is_so, "all have it", pause=2.5)
    return pids[0][0]


def holder(database: str) -> tuple[str, str, int, bool]:
    """Whose the plain server is, where, in which epoch, and whether it has ended."""
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute(
            "SELECT broker, url, epoch, ended FROM cellblock.claims WHERE name = 'plain'"
        ).fetchone()
    assert row is not None
    broker, written, epoch, ended = row
    return broker, written.partition(" ")[0], epoch, ended  # its broker's tag is behind the URL


def owner(database: str, daemons: list[Daemon]) -> Daemon:
    _, url, _, _ = holder(database)
    return next(one for one in daemons if one.url == f"{url}/mcp")


class Callers:
    """Call without a pause at several brokers, each time with another text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ended: list[tuple[str, Any]] = []
        self._stop = asyncio.Event()

    async def at(self, served: Daemon) -> None:
        """Calls at one broker until it is gone, or all are to stop."""
        number = 0
        with contextlib.suppress(Exception):
            async with served.client() as client:
                while not self._stop.is_set():
                    texts = [f"{served.port}-{number + one}" for one in range(20)]
                    found = await answer_of(client, CALLS.format(texts=json.dumps(texts)))
                    number += len(texts)
                    self.ended += zip(texts, found.get("result") or [found["diagnostics"]] * 20, strict=True)

    @property
    def ports(self) -> set[int]:
        """Where calls have ended."""
        return {int(text.partition("-")[0]) for text, _ in self.ended}

    @property
    def failed(self) -> list[tuple[str, Any]]:
        """The calls without an answer, and what was told of them."""
        return [(text, told) for text, told in self.ended if told != json.dumps({"text": text})]

    def stop(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Holds what was told against what the server has noted."""
        made = [
            event["arguments"]["text"] for event in events(self._folder, "call") if event["tool"] == "echo"
        ]
        assert len(made) == len(set(made)), "a call was made twice"
        for text, told in self.ended:
            if told == json.dumps({"text": text}):
                assert text in made
            elif told == "not_started" or "IMPORT_FAILURE" in str(told):
                assert text not in made
            else:
                assert told == "may_have_run", (text, told)


ENDING_SESSIONS = b"""
SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture(scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> AsyncIterator[Fleet]:
    """Two brokers with servers that exist once; they reach each other over TLS that is verified."""
    folder = tmp_path_factory.mktemp("two")
    refusing = await asyncio.start_server(refuse, "127.0.0.1", 0)
    closed = {"url": f"http://127.0.0.1:{refusing.sockets[0].getsockname()[1]}/mcp"}
    beside = folder / "beside.json"
    beside.write_text(json.dumps(BESIDE))
    plain = server(folder)
    plain["args"] += ["--beside", str(beside)]
    servers = {
        "closed": closed,
        "plain": plain,
        "asking": entry(forked_server("asking_server.py", "stdio", "--older")),
    }
    cert, key = certificate(folder, host="cellblock.test")
    tls = ssl.create_default_context(cafile=str(cert))
    tls.check_hostname = False
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with fleet(
        folder,
        postgres.database(),
        *options,
        tls=tls,
        replicas={"name": "cellblock.test"},
        servers=servers,
        upstream={
            **UPSTREAM,
            "servers": {
                **UPSTREAM["servers"],
                "asking": {"single": True, "call_timeout_ms": DEADLINE_MS},
                "closed": {"single": True},
            },
        },
        frontend={"profile": "proxy"},
    ) as found:
        yield found
    monkeypatch.undo()
    refusing.close()
    assert not events(folder, "double")
    # Nothing that ended with its broker is an error of another one.
    assert not [line for one in found.daemons for line in one.said if "Traceback" in line]


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers as a server does that wants a login."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
    writer.close()


@dataclass
class Through:
    """A client of the broker that does not have the servers, and what it was told."""

    client: Client
    folder: Path
    asked: list[str] = field(default_factory=list[str])
    news: list[str] = field(default_factory=list[str])

    async def call(self, tool: str, server: str = "plain", **arguments: Any) -> types.CallToolResult:
        return await within(self.client.call_tool(f"mcp__{server}__{tool}", arguments), 60)


async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


@pytest.fixture
async def through(two: Fleet) -> AsyncIterator[Through]:
    (other,) = (one for one in two.daemons if one is not owner(two.database, two.daemons))
    told: list[Through] = []

    async def ask(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        told[0].asked.append(params.message)
        return await elicit(context, params)

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="hi"), model="m")

    async def note(message: Any) -> None:
        told[0].news.append(type(message).__name__)

    http = httpx2.AsyncClient(headers=other.auth, timeout=60, verify=other.tls or True, trust_env=False)
    client = Client(
        streamable_http_client(other.url, http_client=http, max_sse_event_size=None),
        mode="legacy",
        elicitation_callback=ask,
        sampling_callback=sample,
        message_handler=note,
    )
    told.append(Through(client, other.folder))
    async with http, client:
        yield told[0]


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def test_a_client_of_either_broker_has_one_and_the_same_server(two: Fleet, through: Through) -> None:
    names = [tool.name for tool in (await through.client.list_tools()).tools]
    assert "mcp__plain__echo" in names and "mcp__asking__elicit" in names
    async with owner(two.database, two.daemons).client() as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == names
        here = text_of(await client.call_tool("mcp__plain__pid", {}))
    assert text_of(await through.call("pid")) == here
    assert [event["pid"] for event in events(through.folder, "start")] == [int(here)]
    assert json.loads(text_of(await through.call("echo", a=1, b=[None, "ü"]))) == {"a": 1, "b": [None, "ü"]}
    failed = await through.call("fail", text="no such thing")
    assert failed.is_error and text_of(failed) == "no such thing"
    refused = await through.call("refuse", message="not so")
    assert refused.is_error and "not so (JSON-RPC error -32602)" in text_of(refused)


async def test_large_bodies_come_through_whole(through: Through) -> None:
    large = {"text": "x" * 1_000_000, "items": list(range(1000))}
    assert (await through.call("give", **large)).structured_content == large
    assert text_of(await through.call("flood", bytes=3_000_000)) == "f" * 3_000_000
    deep = await through.call("deep", depth=150, error=True)
    assert deep.is_error


async def test_what_a_server_has_beside_tools_comes_through(through: Through) -> None:
    (resource,) = (await through.client.list_resources()).resources
    (content,) = (await within(through.client.read_resource(str(resource.uri)), 60)).contents
    assert isinstance(content, types.TextResourceContents) and content.text == PAGE["text"]
    (prompt,) = (await through.client.list_prompts()).prompts
    (message,) = (await within(through.client.get_prompt(prompt.name), 60)).messages
    assert isinstance(message.content, types.TextContent) and message.content.text == "hi"


async def test_what_a_server_asks_and_says_reaches_the_client_of_the_other_broker(through: Through) -> None:
    assert text_of(await through.call("elicit", "asking")) == "accept Ada"
    assert through.asked == ["asking: Who are you?"]
    assert text_of(await through.call("sample", "asking")) == "hi"
    reports: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    await within(through.client.call_tool("mcp__asking__talk", {}, progress_callback=report), 60)
    assert reports


async def test_a_call_that_is_given_up_is_given_up_at_the_server(through: Through) -> None:
    before = len(events(through.folder, "cancelled"))
    late = await through.call("wait", "asking", ms=60_000)
    assert late.is_error and f"did not answer wait within {DEADLINE_MS // 1000} s" in text_of(late)
    calls = len(events(through.folder, "call"))
    calling = asyncio.create_task(through.call("never"))
    await until(lambda: len(events(through.folder, "call")) > calls, "the server has it")
    calling.cancel()
    await until(lambda: len(events(through.folder, "cancelled")) > before, "the server hears of it")


async def test_a_change_of_its_tools_is_seen_through_the_other_broker(through: Through) -> None:
    await through.call("grow", name="grown")

    async def is_there() -> bool:
        tools = (await through.client.list_tools()).tools
        return "mcp__plain__grown" in [tool.name for tool in tools]

    await until_found(is_there, "the new tool is listed")
    assert json.loads(text_of(await through.call("grown", a=1))) == {"a": 1}


async def test_a_login_that_the_server_wants_is_told_at_the_other_broker(through: Through) -> None:
    async def is_told() -> bool:
        with pytest.raises(MCPError) as said:
            await through.call("any", "closed")
        return "HTTP 401" in said.value.message and "cellblock auth login closed" in said.value.message

    await until_found(is_told, "the broker that has it was refused, and this one knows why")


async def test_whose_it_is_can_be_seen(two: Fleet) -> None:
    async def is_seen() -> bool:
        pages = [(await one.ask("GET", "/metrics", headers=one.auth)).body.decode() for one in two.daemons]
        here = sorted(page.partition('upstream_single_here{server="plain"} ')[2][:3] for page in pages)
        return here == ["0.0", "1.0"] and all('upstream_up{server="plain"} 1.0' in page for page in pages)

    await until_found(is_seen, "one has it, and both can call it")
    (other,) = (one for one in two.daemons if one is not owner(two.database, two.daemons))
    command = ["doctor", "--config", str(other.folder / "cellblock.json"), "--json"]
    process = await started(
        *command, "--state-dir", str(other.folder / "doctor"), stdout=PIPE, stderr=DEVNULL
    )
    report = json.loads((await within(process.communicate(), 60))[0])
    broker, url, _, _ = holder(two.database)
    assert f"through {broker} at {url.partition('//')[2]}" in report["servers"]["plain"]
    # Who looks at its tools to approve them asks where it is, too.
    command = ["approve", "plain", "--show", "--config", str(other.folder / "cellblock.json")]
    process = await started(
        *command, "--state-dir", str(other.folder / "doctor"), stdout=PIPE, stderr=DEVNULL
    )
    assert b"plain: " in (await within(process.communicate(), 60))[0]
    assert len(events(other.folder, "start")) == 1


async def test_only_a_broker_that_knows_the_epoch_and_has_the_key_is_lent_it(two: Fleet) -> None:
    broker, _, epoch, _ = holder(two.database)
    served = owner(two.database, two.daemons)
    path = WAY_PATH + b"plain".hex()

    async def status(tag: bytes, by: str = "broker-x", of: int = epoch, to: Daemon = served) -> int:
        headers = {**MCP_HEADERS, WAY_HEADER.decode(): f"{tag.decode()} {by} {of}"}
        answer = await to.ask(path=path, headers=headers)
        # Who shows nothing that is good is answered as a stranger is at any path.
        assert answer.status != 401 or answer.headers["www-authenticate"] == "Bearer"
        return answer.status

    good = words().way(broker, "broker-x", "plain", epoch)
    assert await status(good) == 200
    (other,) = (one for one in two.daemons if one is not served)
    assert await status(good, to=other) == 401
    assert await status(good, by="broker-y") == 401
    assert await status(good, of=epoch + 1) == 401
    stale = words().way(broker, "broker-x", "plain", epoch - 1)
    assert await status(stale, of=epoch - 1) == 404
    assert await status(Words([bytes(32)]).way(broker, "broker-x", "plain", epoch)) == 401
    assert (await served.ask(path=path, headers=MCP_HEADERS)).status == 401
    # A token is no key, and the front door does not lead there.
    assert (await served.ask(path=path, headers={**MCP_HEADERS, **served.auth})).status == 404


async def test_it_is_handed_on_and_taken_over_and_no_call_is_made_twice(
    tmp_path: Path, postgres_url: str
) -> None:
    state = {"url": postgres_url, "key": b64encode(KEY).decode()}
    section: dict[str, Any] = {**SECTION, "state": state, "upstream": UPSTREAM}
    async with AsyncExitStack() as stack:
        # All at once.
        made = [
            daemon(tmp_path, "--no-auth", servers={"plain": server(tmp_path)}, **section) for _ in range(3)
        ]
        daemons = list(await asyncio.gather(*(stack.enter_async_context(one) for one in made)))
        await until_one(tmp_path, *daemons)
        assert len(events(tmp_path, "start")) == 1
        callers = Callers(tmp_path)
        calling = [asyncio.create_task(callers.at(one)) for one in daemons]
        await until(lambda: callers.ports == {one.port for one in daemons}, "all have called")

        # The broker that has it is stopped: it hands it on.
        first = owner(postgres_url, daemons)
        first.process.send_signal(signal.SIGTERM)
        await within(first.process.wait(), 60)
        left = [one for one in daemons if one is not first]
        await until(lambda: owner(postgres_url, daemons) is not first, "another one has it", pause=0.2)
        await until_one(tmp_path, *left)
        assert callers.failed == [], "who called meanwhile has waited"

        # The next one is killed under calls.
        second = owner(postgres_url, daemons)
        (third,) = (one for one in left if one is not second)
        held = asyncio.create_task(result_of(third, HOLD))
        await until(lambda: any(one["tool"] == "hold" for one in events(tmp_path, "call")), "it is under way")
        second.process.send_signal(signal.SIGKILL)
        certainty, message = await within(held, 60)
        assert certainty == "may_have_run" and "closed during hold" in message
        await until_one(tmp_path, third)
        assert owner(postgres_url, daemons) is third
        callers.stop()
        await asyncio.gather(*calling)
        callers.check()
        assert len(events(tmp_path, "start")) == 3
        assert not events(tmp_path, "double")


@pytest.mark.thorough
async def test_a_broker_that_is_cut_from_postgresql_ends_it_before_another_begins(
    tmp_path: Path, postgres: Postgres
) -> None:
    database = postgres.database()
    servers = {
        "plain": server(tmp_path),
        "asking": entry(forked_server("asking_server.py", "stdio", "--older")),
    }
    single = {**UPSTREAM["servers"], "asking": {"single": True}}
    upstream = {**UPSTREAM, "servers": single}
    async with fleet(tmp_path, database, servers=servers, upstream=upstream) as found:
        callers = Callers(tmp_path)
        calling = [asyncio.create_task(callers.at(one)) for one in found.daemons]
        first = await until_one(tmp_path, *found.daemons)

        # Of two calls of one run, which the server cannot tell from each other, either is asked for.
        (other,) = (one for one in found.daemons if one is not owner(database, found.daemons))
        http = httpx2.AsyncClient(headers=other.auth, timeout=60, trust_env=False)
        transport = streamable_http_client(other.url, http_client=http)
        async with http, Client(transport, mode="legacy", elicitation_callback=elicit) as client:
            assert (await answer_of(client, TWO_QUESTIONS))["result"] == ["accept Ada", "accept Ada"]

        # Another command for it: the old one has ended before the new one begins.
        config = tmp_path / "cellblock.json"
        changed = json.loads(config.read_text())
        changed["mcpServers"]["plain"]["env"] = {"ANOTHER": "one"}
        config.write_text(json.dumps(changed))
        await until(lambda: str(events(tmp_path, "start")[-1]["pid"]) != first, "it is another process")
        await until_one(tmp_path, *found.daemons)

        # The sessions of all locks are ended, twice: whoever has the lock then, has the server.
        with psycopg.connect(database, autocommit=True) as connection:
            for _ in range(2):
                await until(lambda: connection.execute(ENDING_SESSIONS).fetchall(), "there are locks")
        await until_one(tmp_path, *found.daemons)

        # PostgreSQL is away for longer than anybody can be sure: nobody has it.
        postgres.stop()
        started_before = len(events(tmp_path, "start"))
        last = events(tmp_path, "start")[-1]["pid"]
        await until(lambda: not psutil.pid_exists(last), "its process has ended")
        told = await result_of(found.daemons[0], PID_OR_WHY)
        assert told[0] == "not_started" and "PostgreSQL" in told[1], told
        assert len(events(tmp_path, "start")) == started_before
        postgres.start()

        await until_one(tmp_path, *found.daemons)
        callers.stop()
        await asyncio.gather(*calling)
        callers.check()
        assert not events(tmp_path, "double")
    postgres.drop(database)
