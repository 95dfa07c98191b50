"""The two ends of a daemon. `cellblock serve --http`: runs and their ends, probes, TLS, tokens of an authorization
server, and named ones. The socket, and `connect` at it, each against another end that does what it likes.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from mcp import Client, MCPError

from cellblock import __version__
from cellblock.base.daemon_socket import ListeningSocket, connected, hello
from cellblock_worker.wire.keys import make_key_file
from cellblock_worker.wire.protocol import PROTOCOL_VERSION
from support.certificates import certificate
from support.commands import Piped, Said, cellblock, in_this_process, piped
from support.entries import ledger
from support.http_daemon import INITIALIZE, MCP_HEADERS, TOOL, Daemon, daemon, opened, streaming
from support.http_server import Answering, serving
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.modern_client import ModernClient, message
from support.processes import alive
from support.waits import until, within

MODES = ("auto", "legacy")
NEVER = 'import { never } from "@codemode/servers/plain"; await never({});'


async def run(client: Client, code: str) -> Any:
    """What a run gives, and what is told of it."""
    result = await within(client.call_tool(TOOL, {"code": code}))
    return {key: result.structured_content[key] for key in ("result", "diagnostics")}


async def test_a_client_that_hangs_up_ends_its_run(served: Daemon) -> None:
    """Also in a session, where the protocol would let it come back for the answer: there is nothing to come back to."""
    calls, cancelled = served.recorded(tool="never"), served.recorded(event="cancelled")
    session = await opened(served)
    body = message("tools/call", 2, name=TOOL, arguments={"code": NEVER})
    async with streaming(served, "POST", session, body):
        await until(lambda: served.recorded(tool="never") > calls, "the script is in its call")
    await until(lambda: served.recorded(event="cancelled") > cancelled, "a cancel notification upstream")
    assert (await served.ask("DELETE", headers=session)).status == 200
    assert (await served.ask(headers=session, body=body)).status == 404


async def test_probes_need_no_token(served: Daemon) -> None:
    # A worker's process is there long before it is warm; and no test of this file has left a run behind.
    await served.until_status("/readyz", 200)
    for path in ("/livez", "/readyz"):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"ok\n"), path
        assert (await served.ask("POST", path)).status == 405


async def test_a_broker_without_a_host_is_not_ready_whoever_waits_there(tmp_path: Path) -> None:
    """In an upgrade hosts of one version do not serve brokers of another, and the balancer is to know."""
    make_key_file(tmp_path / "broker.key")
    hosts = {
        "local": False,
        "listen": "tcp://127.0.0.1:*",
        "key": str(tmp_path / "broker.key"),
        "allowed_keys": {"none": make_key_file(tmp_path / "host.key").public},
    }
    async with daemon(tmp_path, hosts=hosts, pool={"warm": 0, "queue_wait_ms": 600_000}) as running:
        before = await running.ask("GET", "/readyz")
        waiting = asyncio.create_task(ModernClient(running).run("1;"))
        await running.until_says("/metrics", lambda answer: b"cellblock_pool_queued 1" in answer.body)
        for answer in (before, await running.ask("GET", "/readyz")):
            said = f"not ready: no worker host is connected that speaks protocol {PROTOCOL_VERSION}"
            assert answer.status == 503 and said in answer.body.decode()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_nothing_on_stderr_tells_the_token(served: Daemon) -> None:
    assert served.token
    assert not any(served.token in line for line in served.said)
    assert str(served.folder / "s" / "token") in served.said[1]


@pytest.mark.parametrize("mode", MODES)
async def test_a_run_in_flight_ends_before_the_daemon_does(tmp_path: Path, mode: str) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 1500 });
        globalThis.__codemode_result__ = "done";
    """
    async with daemon(tmp_path) as running, running.client(mode) as client:
        family = running.family()
        await within(client.list_tools())
        call = asyncio.create_task(run(client, code))
        await until(lambda: running.recorded(tool="wait"), "the run is in its call")
        running.process.terminate()
        await running.until_status("/readyz", 503)
        assert (await running.ask("GET", "/livez")).status == 200
        # Nothing new is taken.
        assert (await running.ask(headers={**MCP_HEADERS, **running.auth})).status == 503
        with pytest.raises(MCPError, match="stopping"):
            await run(client, "1;")
        assert await call == {"result": "done", "diagnostics": []}
        assert await within(running.process.wait()) == 0
        await until(lambda: not any(map(alive, family)), "no process is left")


@pytest.mark.parametrize(("mode", "pauses"), [("auto", True), ("legacy", False)])
async def test_a_second_signal_kills(tmp_path: Path, mode: str, pauses: bool) -> None:
    """But the run's client is told, and stderr has no traceback, also where signals come without a pause."""
    async with daemon(tmp_path, http={"drain_ms": 600_000}) as running:
        family = running.family()
        async with running.client(mode) as client:
            call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
            await until(lambda: running.recorded(tool="never"), "the script is in its call")
            running.process.terminate()
            if pauses:
                await running.until_status("/readyz", 503)
                assert running.process.returncode is None
                running.process.terminate()
                with pytest.raises(MCPError, match="the time that runs had to end by themselves is over"):
                    await within(call)
            else:
                # Those that come at the same moment are one.
                await until(
                    lambda: running.process.terminate() or running.process.returncode is not None,
                    "it ends",
                    pause=0.01,
                )
            assert await within(running.process.wait()) == 128 + signal.SIGTERM
            await until(lambda: not any(map(alive, family)), "no process is left")
            call.cancel()
            await within(asyncio.gather(call, return_exceptions=True))
    assert "Traceback" not in "".join(running.said)


async def test_a_team_shares_a_daemon_over_tls(tmp_path: Path, issuer: Issuer) -> None:
    cert, key = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=cert)
    oauth = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.jwks_url}
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with daemon(tmp_path, *options, http={"oauth": oauth}, tls=trust, token=issuer.token()) as running:
        assert not (tmp_path / "s" / "token").exists(), "the token file is not used"
        # Whoever may run scripts would see the runs of all: a team has a dashboard only when it says so.
        assert (await running.ask("GET", "/dashboard/state", headers=running.auth)).status == 404
        assert (await running.ask("GET", "/metrics", headers=running.auth)).status == 200
        for mode in MODES:
            async with running.client(mode) as client:
                assert (await run(client, "globalThis.__codemode_result__ = 1;"))["result"] == 1

        refused = await running.ask(headers=MCP_HEADERS)
        assert refused.status == 401 and b"cellblock connect" in refused.body
        where = "/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer resource_metadata="https://cellblock.example{where}"'
        assert refused.headers["www-authenticate"] == challenge
        metadata = json.loads((await running.ask("GET", where)).body)
        assert (metadata["authorization_servers"], metadata["resource"]) == ([ISSUER], AUDIENCE)

        # And `connect` trusts the certificate that it is told to trust, and no other.
        token_file = private_file(tmp_path / "mine", issuer.token())
        lines = json.dumps(INITIALIZE).encode() + b"\n" + message("tools/list", 2) + b"\n"
        for trusted, code in (([], 3), (["--tls-ca", str(cert)], 0)):
            words = ("connect", "--url", running.url, "--token-file", token_file, *trusted)
            done = await cellblock(*words, code=code, given=lines)
            answers = [json.loads(line) for line in done.out.splitlines()]
            assert [answer["id"] for answer in answers if "result" in answer] == ([] if code else [1, 2])


def private_file(file: Path, text: str) -> Path:
    file.touch(0o600)
    file.write_text(text)
    return file


ECHO = (
    'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ is: 1 });'
)


def token(folder: Path, *arguments: object) -> Said:
    place = ("--config", folder / "cellblock.json", "--state-dir", folder / "s")
    return in_this_process("token", *arguments, *place)


async def test_each_is_a_principal_of_its_own_until_it_is_revoked(tmp_path: Path) -> None:
    async with daemon(tmp_path, audit=["calls"]) as owner:
        grants = (("ann",), ("bob", "--grants", '{"tools": ["plain.fail"]}'))
        made = [await asyncio.to_thread(token, tmp_path, "create", *words) for words in grants]
        ann, bob = (replace(owner, token=said.out.strip()) for said in made)
        for mode in MODES:
            async with ann.client(mode) as client:
                assert (await run(client, ECHO))["diagnostics"] == []
            async with bob.client(mode) as client:
                assert "echo" not in ((await within(client.list_tools())).tools[0].description or "")
                said = json.dumps(await run(client, ECHO))
                assert "The tool echo is left out: the policy for this client does not grant it" in said

        session, ping = await opened(ann), message("ping", 5)
        assert (await ann.ask(headers=session, body=ping)).status == 200

        # The dashboard shows the runs of all by name, and not to all.
        state = json.loads((await owner.ask("GET", "/dashboard/state", headers=owner.auth)).body)
        clients = {run["client"].split(" session")[0].split(" 127")[0] for run in state["recent"]}
        assert clients == {"http token:ann", "http token:bob"}
        for path, method, status in (
            ("/dashboard", "GET", 403),
            ("/dashboard/state", "GET", 403),
            ("/dashboard/kept", "GET", 403),
            ("/dashboard/runs/0123456789abcdef", "GET", 403),
            ("/dashboard/code", "POST", 403),
            ("/metrics", "GET", 200),
        ):
            assert (await ann.ask(method, path, headers=ann.auth)).status == status

        file = private_file(tmp_path / "mine", ann.token or "")
        at = ("--url", owner.url, "--token-file", file)
        page = await cellblock("dashboard", "--no-open", *at, code=3)
        assert "a named one does not open it" in page.err

        # A session that is open ends with its token.
        place = ("--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s")
        said = await cellblock("token", "revoke", "ann", "--everything", *place)
        nothing = "0 secrets, 0 kept runs, 0 kept outputs, and what was learnt of 0 tools"
        assert said.out == f"revoked ann\nRemoved of token:ann: {nothing}.\n"
        assert (await ann.ask(headers=session, body=ping)).status == 401
        refused = await cellblock("connect", "--no-start", *at, code=3)
        assert "refuses the token. It has expired or was revoked" in refused.err
        assert (await bob.ask("GET", "/metrics", headers=bob.auth)).status == 200
    audit = ledger(tmp_path / "s" / "audit.jsonl")
    assert {line["client"].split()[1] for line in audit if line["event"] == "call"} == {"token:ann"}


def test_what_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "cellblock.json").write_text('{"mcpServers": {}}')
    said = partial(token, tmp_path)
    assert said("list") == (0, "There are no named tokens.\n", "")
    for wrong, why in (
        (("create", "ci", "--expires", "tomorrow"), "write a span such as"),
        (("create", "ci", "--expires", "2020-01-01"), "over already"),
        (("create", "ci", "--expires", "0d"), "write a span such as"),
        (("create", "ci", "--grants", '{"tols": []}'), "tols"),
        (("create", "ci", "--grants", '{"tools": ["files.*"]}'), "names no server"),
        (
            ("create", "ci", "--grants", str(tmp_path / "none.json")),
            "cannot be read: No such file or directory; name a file",
        ),
        (("create", "A B"), "no name for a token"),
        (("revoke", "ci"), "There are none"),
    ):
        code, output, error = said(*wrong)
        assert (code, output) == (2, "") and why in error, error
    assert not (tmp_path / "s" / "tokens" / "ci.json").exists()
    code, output, error = said("create", "ci", "--expires", "2099-01-31", "--grants", '{"readOnly": true}')
    assert code == 0 and output.startswith("cellblock.ci.") and "mode 600" in error
    code, listed, _ = said("list")
    assert "ends 2099-01-31T00:00:00Z; with grants of its own" in listed and output.strip() not in listed
    assert json.loads(said("list", "--json")[1])[0]["grants"] == {"readOnly": True}
    assert "Did you mean ci?" in said("revoke", "cii")[2]
    assert said("create", "ci")[0] == 2 and said("revoke", "ci")[:2] == (0, "revoked ci\n")


Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18"}}
MUCH = 384 * 1024**2
"""Many times what a message may have."""


@asynccontextmanager
async def at_socket(served: Daemon) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    connection = connected(served.folder / "s", f"127.0.0.1:{served.port}")
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    with closing(writer):
        yield reader, writer


async def test_it_speaks_the_stdio_protocol_behind_a_line_of_each(served: Daemon) -> None:
    async with at_socket(served) as (reader, writer):
        writer.write(hello(version="0") + json.dumps(INITIALIZE).encode() + b"\n")
        facts = json.loads(await within(reader.readline()))["cellblock"]
        assert facts["version"] == __version__ and "config" in facts and "refused" not in facts
        assert json.loads(await within(reader.readline()))["result"]["serverInfo"]["name"] == "cellblock"
        writer.write(b'\xff\n{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
        assert json.loads(await within(reader.readline()))["error"]["code"] == -32700
        assert json.loads(await within(reader.readline()))["id"] == 2


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", None),
        (b"[]\n", None),
        (b'{"cellblock":7}\n', None),
        (b"\xff\n", None),
        (b'{"cellblock":{}', None),
        (hello(token="wrong" * 10), "token"),
        (hello(token={}), "token"),
    ],
)
async def test_who_does_not_begin_as_it_should_is_hung_up_on(
    served: Daemon, said: bytes, refused: str | None
) -> None:
    async with at_socket(served) as (reader, writer):
        writer.write(said)
        writer.write_eof()
        answer = await within(reader.read())
        assert (json.loads(answer)["cellblock"]["refused"] if answer else None) == refused
    await still_serves(served)


async def still_serves(served: Daemon) -> None:
    async with at_socket(served) as (reader, writer):
        writer.write(hello() + b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
        await within(reader.readline())
        assert json.loads(await within(reader.readline())) == {"jsonrpc": "2.0", "id": 2, "result": {}}


async def test_a_line_without_end_takes_no_more_memory_than_a_message_may(served: Daemon) -> None:
    process = psutil.Process(served.process.pid)
    before, most = process.memory_info().rss, 0
    async with at_socket(served) as (reader, writer):
        writer.write(hello())
        await within(reader.readline())
        piece = b"x" * 1024**2
        for _ in range(MUCH // len(piece)):
            writer.write(piece)
            await within(writer.drain())
            most = max(most, process.memory_info().rss)
        writer.write(b"\n")
        told = json.loads(await within(reader.readline()))
        assert told["error"]["code"] == -32600 and "over 16777216 bytes" in told["error"]["message"]
    assert most - before < MUCH // 3
    await still_serves(served)


# ---- a daemon that does what it likes ------------------------------------------------------------------


@asynccontextmanager
async def relayed(folder: Path, *speak: Speak, greeted: bool = True) -> AsyncGenerator[Piped]:
    """A real `connect`, and what is at the other end of its connections, one after the other."""
    left = list(speak)

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readline()
            if left:
                await left.pop(0)(reader, writer)

    listening = ListeningSocket(folder, "127.0.0.1:1")
    async with await asyncio.start_unix_server(said, sock=listening.socket):
        words = ("connect", "--url", "http://127.0.0.1:1/mcp", "--state-dir", folder, "--no-start")
        async with piped(*words) as relay:
            relay.send(INITIALIZE)
            assert not greeted or await relay.answer() == GREETED
            yield relay
    listening.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **facts: Any) -> Any:
    writer.write(hello(**{"version": __version__, **facts}))
    asked = json.loads(await reader.readline())
    writer.write(json.dumps({**GREETED, "id": asked["id"]}).encode() + b"\n")
    return asked


async def test_half_an_answer_is_not_shown_and_the_next_daemon_is_asked(tmp_path: Path) -> None:
    """Of a call that nobody knows the end of, the client is told so; a list is asked for again."""
    again: list[Any] = []

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.readline()
        await reader.readline()
        writer.write(b'{"jsonrpc":"2.0","id":2,"resu')

    async def goes_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        again.append(await greet(reader, writer))
        again.append(json.loads(await reader.readline()))
        writer.write(b'{"jsonrpc":"2.0","id":3,"result":{"tools":[]}}\n')
        await reader.read()

    async with relayed(tmp_path, dies, goes_on) as relay:
        listing = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
        relay.send(CALL, listing)
        told = await relay.answer()
        assert told["id"] == 2 and "may have been done" in told["error"]["message"]
        assert (await relay.answer())["result"] == {"tools": []}
        assert again[0]["params"] == INITIALIZE["params"] and again[1] == listing
        assert await relay.end() == 0


async def test_a_daemon_that_greets_differently_ends_it(tmp_path: Path) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.readline()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(version=__version__))
        asked = json.loads(await reader.readline())
        error = {"code": -32602, "message": "not this version"}
        writer.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode() + b"\n")
        await reader.read()

    async with relayed(tmp_path, dies, refuses) as relay:
        relay.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        told = await relay.answer()
        assert told["id"] == 2 and "not this version" in told["error"]["message"]
        assert await within(relay.process.wait()) == 3


async def test_bytes_of_a_daemon_are_copied_whatever_they_are(tmp_path: Path) -> None:
    sent = b"\xff" * 300_000 + b'\n{"half\n' + b"[" * 100_000 + b"\n"

    async def speaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(sent)
        await reader.read()

    async with relayed(tmp_path, speaks) as relay:
        assert await within(relay.process.stdout.readexactly(len(sent))) == sent


async def test_a_daemons_line_without_end_is_read_up_to_a_bound(tmp_path: Path) -> None:
    async def speaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        piece = b"x" * 1024**2
        with contextlib.suppress(ConnectionError):
            for _ in range(MUCH // len(piece)):
                writer.write(piece)
                await writer.drain()

    async with relayed(tmp_path, speaks) as relay:
        relay.send(CALL)
        told = await relay.answer()
        assert told["id"] == 2 and "a message has over" in told["error"]["message"]
        assert await within(relay.process.wait()) == 3


async def test_another_version_is_told_and_what_the_daemon_warns_of(tmp_path: Path) -> None:
    async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer, version="0.0.9", warnings=["it does not start the server a"])
        await reader.read()

    async with relayed(tmp_path, older) as relay:
        _, told = await within(relay.process.communicate(b""))
        assert relay.process.returncode == 0
        assert b"is of version 0.0.9" in told and b"warning: it does not start the server a" in told


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no Cellblock daemon"),
        (b"x" * 1_000_000 + b"\n", "no Cellblock daemon"),
        (b"", "hung up"),
        (hello(refused="stopping"), "is stopping"),
        (hello(refused="too many"), "takes no further client"),
    ],
)
async def test_a_daemon_that_begins_in_another_way_is_told_of(tmp_path: Path, said: bytes, why: str) -> None:
    async def speaks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    async with relayed(tmp_path, speaks, greeted=False) as relay:
        assert why in (await relay.answer())["error"]["message"]
        assert await within(relay.process.wait()) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_gets_nothing_even_through_an_open_door(tmp_path: Path) -> None:
    """Folder and socket open to all: the uid alone keeps it out."""
    async with daemon(tmp_path) as served:
        place = tmp_path / "s" / "daemons" / f"127.0.0.1-{served.port}.sock"
        closed = [one for one in place.parents if not one.stat().st_mode & 0o001]
        for one in (*closed, place):
            one.chmod(0o777)
        os.seteuid(4711)
        try:
            reader, writer = await asyncio.open_unix_connection(str(place))
        finally:
            os.seteuid(0)
        with closing(writer), contextlib.suppress(ConnectionError):
            writer.write(hello())
            assert await within(reader.read()) == b""
        assert served.process.returncode is None


# ---- another machine's -----------------------------------------------------------------------------------


class Forgets(Answering):
    """A daemon that has forgotten its session when the tools are listed for the first time."""

    said: ClassVar[list[str]] = []
    results: ClassVar[dict[str, Any]] = {"initialize": GREETED["result"], "tools/list": {"tools": []}}

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        self.said.append(asked["method"])
        answer = {"jsonrpc": "2.0", "id": asked.get("id"), "result": self.results.get(asked["method"])}
        status = 200 if answer["result"] else 202
        if asked["method"] == "tools/list" and self.said.count("initialize") == 1:
            status = 404
            answer = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
        body = b"" if status == 202 else json.dumps(answer).encode()
        self.answer(status, body, content_type="application/json", mcp_session_id="s")

    def refuse(self) -> None:
        self.answer(405)

    do_GET = do_HEAD = do_DELETE = refuse


async def test_over_http_a_session_that_the_daemon_has_forgotten_is_begun_again(tmp_path: Path) -> None:
    """The client has its list, and notices nothing."""
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    with serving(Forgets) as address:
        words = ("connect", "--url", f"http://{address}/mcp", "--state-dir", tmp_path / "none")
        async with piped(*words) as relay:
            relay.send(INITIALIZE)
            assert await relay.answer() == GREETED
            relay.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, listing)
            assert await relay.answer() == {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}
            assert await relay.end() == 0
    asked = ("initialize", "notifications/initialized", "tools/list")
    assert [Forgets.said.count(method) for method in asked] == [2, 2, 2]
