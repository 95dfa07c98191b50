"""Upstream servers through a whole broker, over stdio and by URL: connecting, listing, what they fail at, what they may
take, and what their statuses say."""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker
from cellblock.app.cli.asking import Person
from cellblock.app.cli.doctor import findings, fix_of
from support.brokers import ready
from support.entries import forked_server, http_server, ledger, plain_server, settings
from support.http_server import Answering, free_port, serving
from support.nesting import nested
from support.public_servers import node_entry
from support.responses import error_of, succeeded
from support.retries import retrying
from support.waits import until, until_found, within


async def test_a_server_gets_its_env_and_none_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERS_OWN_CREDENTIAL", "not for servers")
    code = """
        import { environment } from "@codemode/servers/plain";
        globalThis.__codemode_result__ = JSON.parse(await environment({}));
    """
    entry = plain_server(env={"UPSTREAM_TOKEN": "s3cr3t-0193", "LANG": "C"})
    async with Broker(settings(tmp_path, {"plain": entry})) as broker:
        environment = succeeded(await within(broker.run(code)))
    own = {"UPSTREAM_TOKEN": "s3cr3t-0193", "LANG": "C", "PATH": os.environ["PATH"]}
    assert environment.items() >= own.items() and "BROKERS_OWN_CREDENTIAL" not in environment


CALL_BOUND_MS = 3000
"""For calls that take milliseconds, and one that is never answered."""


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker that gives an upstream call three seconds, with one plain server."""
    bounds = {"call_timeout_ms": CALL_BOUND_MS}
    config = settings(tmp_path_factory.mktemp("failures"), {"plain": plain_server()}, upstream=bounds)
    with retrying(0.05, 0.2):
        async with ready(config) as started:
            yield started


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("never({})", "did not answer"),
        ("garbage({})", "no tool result"),
        ("deep({ depth: 40_000 })", "no tool result"),
        ("raw({ text: '\"result\":null' })", "no tool result"),
        ('raw({ text: \'"result":"x"\' })', "no tool result"),
        # A code of JSON-RPC's free range means what the server says.
        ("refuse({ code: -32001 })", "not like this (JSON-RPC error -32001)"),
        ("refuse({ code: -32000 })", "not like this (JSON-RPC error -32000)"),
    ],
)
async def test_no_usable_answer_is_a_tool_call_error_within_the_bound(
    broker: Broker, call: str, said: str
) -> None:
    """The SDK's client would wait for ever for most of these; the script goes on, and so does the session."""
    code = f"""
        import * as plain from "@codemode/servers/plain";
        import {{ ToolCallError }} from "@codemode/errors";
        const report = (error) => [error instanceof ToolCallError, error.certainty, error.message, error.hint];
        const started = performance.now();
        const [failed, other] = await Promise.all([
            plain.{call}.then(() => "no error", report),
            plain.echo({{ at: "the same time" }}),
        ]);
        const ms = performance.now() - started;
        globalThis.__codemode_result__ = [failed, ms, [other, await plain.echo({{ n: 1 }})]];
    """
    response = await within(broker.run(code))
    failed, ms, others = succeeded(response)
    assert failed[:2] == [True, "may_have_run"] and said in failed[2] and failed[3]
    assert ms < CALL_BOUND_MS + 1500 and (said == "did not answer") == (ms >= CALL_BOUND_MS)
    assert others == ['{"at": "the same time"}', '{"n": 1}']
    assert [entry.ok for entry in response.tool_trace] == [False, True, True]


HALVES = r'"result":{"content":[],"structuredContent":{"\ud83d":["abcd\ud83d","\ud83d\ude00","\\ud83d"]}}'


@pytest.mark.parametrize(
    ("code", "result"),
    [
        # JSON allows it, and JavaScript's servers write it when they cut a text.
        (
            f"export default await raw({{ text: {json.dumps(HALVES)} }});",
            {"\ufffd": ["abcd\ufffd", "\U0001f600", "\\ud83d"]},
        ),
        (
            """
            const failed = await raw({ text: '"result":{"structuredContent":{"why":"no such issue"},"isError":true}' })
                .catch((error) => error.message);
            export default [failed, await raw({ text: '"result":{"structuredContent":{"a":1}}' })];
            """,
            ['{"why": "no such issue"}', {"a": 1}],
        ),
        (
            """
            let value = (await deep({ depth: 100 })).value;
            let depth = 1;
            while (value.length) { value = value[0]; depth++; }
            export default depth;
            """,
            100,
        ),
    ],
    ids=["half of an emoji costs that half", "no text beside structured content", "as deep as MCP allows"],
)
async def test_an_unusual_answer_arrives(broker: Broker, code: str, result: Any) -> None:
    imports = 'import { deep, raw } from "@codemode/servers/plain";\n'
    assert succeeded(await within(broker.run(imports + code))) == result


async def test_a_server_that_is_killed_while_idle_is_reconnected(broker: Broker) -> None:
    pid_of = """
        import { pid } from "@codemode/servers/plain";
        globalThis.__codemode_result__ = Number(await pid({}));
    """
    await until(lambda: "plain" in broker.catalog.servers, "the server is connected")
    definitions = broker.catalog.servers["plain"]
    first = succeeded(await within(broker.run(pid_of)))
    psutil.Process(first).kill()
    await until(lambda: "plain" not in broker.catalog.servers, "the death is noticed")
    assert "closed" in broker.catalog.unavailable["plain"]
    await until(lambda: "plain" in broker.catalog.servers, "the server is connected again")
    assert broker.catalog.servers["plain"] is definitions, "nothing has changed for anybody"
    assert succeeded(await within(broker.run(pid_of))) != first


@pytest.mark.usefixtures("quick_retries")
async def test_a_server_that_dies_after_some_calls_is_restarted_each_time(tmp_path: Path) -> None:
    record = tmp_path / "ledger.jsonl"
    servers = {"mortal": plain_server("--die-after", 3, "--ledger", record)}
    code = """
        import { echo } from "@codemode/servers/mortal";
        let answered = 0;
        try {
            for (let call = 0; call < 10; call++) { await echo({ call }); answered++; }
        } catch (error) {
            globalThis.__codemode_result__ = { answered, error: error.name };
        }
    """
    async with Broker(settings(tmp_path / "state", servers)) as broker:
        for _ in range(2):
            await broker.settled()
            await until(lambda: "mortal" in broker.catalog.servers, "the server is connected")
            life = broker.registry.sessions["mortal"].life
            before = life.attempts
            assert succeeded(await within(broker.run(code))) == {"answered": 3, "error": "ToolCallError"}
            await until(lambda life=life, before=before: life.attempts > before, "it is started again")
    calls = [event["arguments"]["call"] for event in ledger(record) if event["event"] == "call"]
    # Call 3 of each life was never answered and must not have been sent a second time.
    assert calls == [0, 1, 2, 3, 0, 1, 2, 3]


async def test_a_server_that_fails_to_start_is_reported_and_does_not_stop_the_others(tmp_path: Path) -> None:
    servers: dict[str, Any] = {
        "absent": {"command": str(tmp_path / "no-such-program")},
        "silent": {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]},
        "chatty": {"command": sys.executable, "args": ["-c", "print('hello, I am no MCP server')"]},
        "Broken Server": {"command": str(tmp_path / "no-such-program")},
        "off": {"command": "false", "disabled": True},
        "plain": plain_server(),
    }
    code = """
        import { echo } from "@codemode/servers/plain";
        globalThis.__codemode_result__ = await echo({});
    """
    async with ready(settings(tmp_path / "state", servers, upstream={"connect_timeout_ms": 1500})) as broker:
        told = broker.catalog.unavailable
        assert (set(broker.catalog.servers), set(told)) == (
            {"plain"},
            {"absent", "silent", "chatty", "broken-server"},
        )
        assert all(told.values())
        assert "did not answer `initialize` within upstream.connect_timeout_ms = 1500" in told["silent"]
        # By its name in the configuration as by its id.
        wanted = ["plain", "absent", "Broken Server", "broken-server"]
        response = await within(broker.run(code, requested_capabilities=wanted))
    assert succeeded(response) == "{}"
    warnings = [(found.severity, found.code) for found in response.diagnostics]
    assert warnings == [("warning", "CAPABILITY_UNAVAILABLE")] * 3
    assert all("the server is not connected (" in found.message for found in response.diagnostics)


async def test_an_installer_without_such_a_package_is_started_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.LONGEST_PAUSE_SECONDS", 60.0)
    npx, starts = tmp_path / "npx", tmp_path / "starts"
    npx.write_text(
        f"#!/bin/sh\necho start >> {shlex.quote(str(starts))}\necho 'npm error code E404' >&2\n"
        "echo 'npm error 404 Not Found - GET https://registry.npmjs.org/gone' >&2\nexit 1\n"
    )
    npx.chmod(0o700)
    made = settings(tmp_path / "state", {"gone": {"command": str(npx), "args": ["-y", "gone"]}})
    async with ready(made) as broker:
        why = broker.catalog.unavailable["gone"]
        assert why.startswith("it ended by itself; it said: npm error 404 Not Found")
        assert "no package of that name" in fix_of(made.servers["gone"], why, tmp_path / "log")
        assert starts.read_text().split() == ["start"]


async def test_who_lists_or_searches_is_told_what_is_not_connected(tmp_path: Path) -> None:
    servers = {"absent": {"command": str(tmp_path / "no-such-program")}, "plain": plain_server()}
    code = """
        import { listServers, listTools, searchTools } from "@codemode/discovery";
        globalThis.__codemode_result__ = (await ASK).length;
    """
    async with ready(settings(tmp_path / "state", servers)) as broker:
        for ask, told in (("listServers()", 1), ("searchTools('issues')", 1), ("listTools('plain')", 0)):
            response = await within(broker.run(code.replace("ASK", ask)))
            why = f"absent ({broker.catalog.unavailable['absent']})"
            found = [
                (one.severity, why in one.message, "doctor" in str(one.hint))
                for one in response.diagnostics
                if one.code == "NOT_CONNECTED"
            ]
            assert response.ok and found == [("warning", True, True)] * told


async def test_a_server_that_fails_to_start_is_retried_with_backoff(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    servers = {"late": plain_server("--fail-starts", 3, starts), "plain": plain_server()}
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.FIRST_PAUSE_SECONDS", 0.2)
    async with ready(settings(tmp_path / "state", servers)) as broker:
        assert "plain" in broker.catalog.servers
        await until(lambda: "late" in broker.catalog.servers, "the server is connected in the end")
        code = """
            import { echo } from "@codemode/servers/late";
            globalThis.__codemode_result__ = await echo({});
        """
        assert succeeded(await within(broker.run(code))) == "{}"
    assert len(starts.read_text().splitlines()) == 4
    failed = [record.created for record in caplog.records if "upstream late" in record.getMessage()]
    # A pause lies between two failures: doubled each time, half of it left to chance. A slow machine only adds to it.
    # After the first it is started again at once, to hear `initialize` first; not where it ended before it was asked.
    assert len(failed) in (2, 3)
    assert failed[-1] - failed[-2] >= 0.1


CAP = 100_000
SMALL: dict[str, Any] = {"max_message_bytes": CAP // 2, "upstream": {"call_timeout_ms": 60_000}}
"""The cap on a server's messages is twice that on results."""

FLOOD = """
    import * as server from "@codemode/servers/server";
    const failure = async (work) => {
        try { await work; return "no error"; } catch ({ name, message, hint, certainty }) {
            return `${name} ${certainty}: ${message} ${hint}`;
        }
    };
    const [big, other] = await Promise.all([failure(server.flood({ bytes: 300_000 })), server.flood({ bytes: 10 })]);
    const after = await server.flood({ bytes: 20_000 });
    globalThis.__codemode_result__ = [big, other, after.length];
"""


@pytest.mark.parametrize("form", ["stdio", "events", "json"])
async def test_a_message_over_the_cap_fails_its_call_and_no_other(tmp_path: Path, form: str) -> None:
    options = {"events": ["--flood"], "json": ["--flood", "--json"]}
    with ExitStack() as stack:
        over_http = stack.enter_context(http_server(*options[form])) if form in options else ""
        servers = {"server": {"url": over_http} if over_http else plain_server()}
        async with ready(settings(tmp_path, servers, **SMALL)) as broker:
            before = broker.catalog.servers["server"].session
            result = succeeded(await within(broker.run(FLOOD)))
            assert broker.catalog.servers["server"].session == before
    told = (
        "ToolCallError may_have_run: The answer of server to flood is too large: it has N bytes or more, over the "
        f"maximum of {CAP} (twice max_message_bytes, at most 16 MiB). Ask for less at a time; the tool has "
        "probably run."
    )
    assert [re.sub(r"has \d+", "has N", result[0]), *result[1:]] == [told, "f" * 10, 20_000]


@pytest.mark.usefixtures("quick_retries")
async def test_a_line_without_end_costs_the_server_its_connection(tmp_path: Path) -> None:
    servers = {"server": plain_server(), "other": plain_server()}
    code = """
        import { endless } from "@codemode/servers/server";
        import { echo } from "@codemode/servers/other";
        const said = await endless({}).then(() => "no error", (error) => error.message);
        globalThis.__codemode_result__ = [said, await echo({})];
    """
    async with ready(settings(tmp_path, servers, **SMALL)) as broker:
        said, other = succeeded(await within(broker.run(code)))
        assert "closed during endless" in said and "a line without end" in said and other == "{}"
        await until(lambda: "server" in broker.catalog.servers, "the server is connected again")


async def test_a_tool_list_over_the_cap_on_messages_says_so(tmp_path: Path) -> None:
    servers = {"server": listing(tmp_path, [[tool(f"tool_{number}", "d" * 500) for number in range(400)]])}
    async with ready(settings(tmp_path / "s", servers, **SMALL)) as broker:
        assert "twice max_message_bytes" in broker.catalog.unavailable["server"]


def tool(name: str, description: str = "Is harmless", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **fields}


def listing(folder: Path, pages: list[list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    """A server with these pages of tools."""
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps({"pages": pages, **more}))
    return plain_server("--definitions", definitions)


async def test_tools_over_a_cap_are_left_out_one_by_one_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [
        tool("long_schema", inputSchema={"type": "object", "description": "d" * 140_000}),
        tool(
            "deep",
            inputSchema=nested(
                70, lambda inner: {"type": "object", "properties": {"a": inner}}, {"type": "object"}
            ),
        ),
        tool("wide", inputSchema={"type": "object", "enum": list(range(20_000))}),
        tool("n" * 5_000),
        tool("twice", "Is the first"),
        tool("twice", "Is the second"),
        {"name": []},
    ]
    servers = {"server": listing(tmp_path, [[tool("good"), *bad], [tool("late")]], endless=True)}
    monkeypatch.setattr("cellblock.tools.upstream.listing.MAX_PAGES", 4)
    config = settings(tmp_path / "state", servers)
    async with ready(config) as broker:
        assert [one.tool_name for one in broker.catalog.servers["server"].tools] == ["good", "late", "twice"]
        refused = await within(broker.run('import { deep } from "@codemode/servers/server";'))
        assert "levels, over 100" in error_of(refused, "IMPORT_FAILURE").message
        asked = """
            import { getTool } from "@codemode/discovery";
            globalThis.__codemode_result__ = await getTool("server", "long_schema").catch((error) => error.message);
        """
        assert "bytes, over 131072" in succeeded(await within(broker.run(asked)))
    async with Broker(config) as broker:
        found = await findings(broker, {}, Person())
    assert not found["problems"]
    assert "left out" in found["servers"]["server"]
    said = "\n".join(found["warnings"])
    names = ("long_schema", "deep", "wide", "nnn", "twice", "malformed", "after 4 pages")
    assert [name for name in names if name not in said] == []


CODE = """
    import * as remote from "@codemode/servers/remote";
    const waits = Array.from({ length: 4 }, () => remote.sleep({ ms: 1000 }));
    const started = performance.now();
    await Promise.all(waits);
    globalThis.__codemode_result__ = [performance.now() - started, await remote.numbered_011({})];
"""


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server process with its stdout and stderr in one pipe; killed at the end."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.environ["PATH"], **environment},
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def sdk(transport: str, *args: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The SDK's server: its URL, and its process. pytest's own timeout bounds the wait for the port."""
    with running(forked_server("sdk_server.py", transport, "--tools", 12, "--page", 5, *args)) as process:
        port = process.stdout.readline().removeprefix("port ").strip()
        yield f"http://127.0.0.1:{port}/{transport.replace('http', 'mcp')}", process


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.parametrize(
    ("transport", "entry"),
    [
        ("http", {}),
        pytest.param("http", {"type": "streamable-http"}, marks=pytest.mark.thorough),
        ("sse", {"type": "sse"}),
    ],
    ids=["url alone", "streamable-http", "sse"],
)
async def test_the_sdks_server_over_http(tmp_path: Path, transport: str, entry: dict[str, str]) -> None:
    with sdk(transport) as (url, _):
        async with ready(settings(tmp_path, {"remote": {"url": url, **entry}})) as broker:
            assert "remote" in broker.catalog.servers, broker.catalog.unavailable
            assert len(broker.catalog.servers["remote"].tools) == 15
            ms, last = succeeded(await within(broker.run(CODE)))
    assert last == "numbered_011" and ms < 3000


@pytest.mark.usefixtures("quick_retries")
async def test_an_event_over_the_cap_ends_a_session_of_the_older_transport(tmp_path: Path) -> None:
    """All answers share its one stream: what is over the cap fails its call, which says so, and the session is opened
    again."""
    code = """
        import { flood } from "@codemode/servers/remote";
        const given = await flood({ bytes: 900_000 });
        let failure = "none";
        try { await flood({ bytes: 3_000_000 }); } catch (error) { failure = error.message; }
        globalThis.__codemode_result__ = [given.length, failure];
    """
    with sdk("sse", "--flood") as (url, _):
        servers = {"remote": {"url": url, "type": "sse"}}
        async with ready(settings(tmp_path, servers, max_message_bytes=1_000_000)) as broker:
            length, failure = succeeded(await within(broker.run(code)))
            assert length == 900_000 and "closed during flood" in failure
            assert "over the maximum of 2000000 (twice max_message_bytes" in failure
            await until(lambda: "remote" in broker.catalog.servers, "the session is opened again")


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.servers
async def test_a_server_that_was_restarted_gets_a_new_session(tmp_path: Path) -> None:
    """The session id of the old process means nothing to the new one, and no stream says so."""
    port = free_port()
    server = node_entry("server-everything", "streamableHttp")
    code = 'import { echo } from "@codemode/servers/remote"; export default await echo({ message: "hi" });'
    async with Broker(settings(tmp_path, {"remote": {"url": f"http://127.0.0.1:{port}/mcp"}})) as broker:
        for _ in range(2):
            with running([server["command"], *server["args"]], PORT=str(port)):
                await until(lambda: accepts(port), "server-everything listens")

                async def answered() -> object:
                    return (await within(broker.run(code))).result

                assert await until_found(answered, "it is connected again") == "Echo: hi"


async def test_a_changed_tool_list_is_announced_over_http(tmp_path: Path) -> None:
    with sdk("http") as (url, _):
        async with ready(settings(tmp_path, {"remote": {"url": url}}, pins="warn")) as broker:
            version = broker.catalog.version
            grow = 'import { grow } from "@codemode/servers/remote"; await grow({ name: "added_later" });'
            succeeded(await within(broker.run(grow)))
            await until(lambda: broker.catalog.version > version, "a new catalog")
            assert "added_later" in {one.tool_name for one in broker.catalog.servers["remote"].tools}


async def test_a_server_that_goes_away_in_a_call_fails_the_call_and_not_the_run(tmp_path: Path) -> None:
    code = """
        import { sleep } from "@codemode/servers/remote";
        export default await sleep({ ms: 60000 }).catch((error) => [error.name, error.certainty]);
    """
    with sdk("http") as (url, process):
        async with ready(
            settings(tmp_path, {"remote": {"url": url}}, upstream={"call_timeout_ms": 3000})
        ) as broker:
            run = asyncio.create_task(broker.run(code))
            assert await within(asyncio.to_thread(lambda: "sleeps\n" in iter(process.stdout.readline, "")))
            process.kill()
            assert succeeded(await within(run)) == ["ToolCallError", "may_have_run"]


TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("answer", "refuse", "fail")]


class Handler(Answering):
    """A streamable HTTP server without the SDK's: it answers with the status that a call asks for.

    `answer` gives `{"ok": true}`; `refuse` a JSON-RPC error with `text`, over HTTP `status`; `fail` HTTP `status`
    without a word of JSON-RPC. Each after `ms` milliseconds.
    """

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        if "id" not in asked:
            return self._say(202)
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            return self._say(200, asked, result={"protocolVersion": version, **about})
        if asked["method"] == "tools/list":
            return self._say(200, asked, result={"tools": TOOLS})
        if asked["method"] != "tools/call":
            return self._say(200, asked, error={"code": -32601, "message": "no such method"})
        name, given = asked["params"]["name"], asked["params"].get("arguments", {})
        time.sleep(given.get("ms", 0) / 1000)
        if name == "fail":
            return self._say(given["status"])
        if name == "refuse":
            return self._say(
                given.get("status", 200), asked, error={"code": -32000, "message": given["text"]}
            )
        return self._say(200, asked, result={"content": [], "structuredContent": {"ok": True}})

    def do_GET(self) -> None:
        self._say(405)

    def do_DELETE(self) -> None:
        self._say(200)

    def _say(self, status: int, asked: dict[str, Any] | None = None, **answer: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode() if asked else b""
        self.answer(status, body, Content_Type="application/json", Mcp_Session_Id="one")


async def test_each_call_has_its_own_status(tmp_path: Path) -> None:
    """A refusal says nothing of the calls after it; of calls at once, each is told its own."""
    code = """
        import * as remote from "@codemode/servers/remote";
        const report = ({ name, message, certainty }) => [name, certainty, message];
        const told = (work) => work.then(() => "no error", report);
        const text = "the user's session limit is reached; 3 of 5 mails were sent";
        globalThis.__codemode_result__ = [
            await told(remote.refuse({ text: "bad arguments", status: 400 })),
            await told(remote.refuse({ text })),
            await told(remote.answer({})),
            ...await Promise.all([500, 401, 503].map((status) => told(remote.fail({ status, ms: 100 })))),
        ];
    """
    with serving(Handler) as address:
        async with ready(settings(tmp_path, {"remote": {"url": f"http://{address}/mcp"}})) as broker:
            first, second, after, *together = succeeded(await within(broker.run(code)))
    assert [first[:2], second[:2], after] == [["ToolCallError", "may_have_run"]] * 2 + ["no error"]
    assert "3 of 5 mails were sent" in second[2]
    assert [[*one[:2], *re.findall(r"HTTP \d+", one[2])[:1]] for one in together] == [
        ["ToolCallError", "may_have_run", "HTTP 500"],
        ["AuthenticationError", "not_started", "HTTP 401"],
        ["ToolCallError", "may_have_run", "HTTP 503"],
    ]
