"""`cellblock connect`: an MCP client at its pipes, a real daemon behind it.

Where no daemon runs, it starts one for all, which outlives it and ends when nobody is there. A client whose lines are
no messages is told so and served on, by `connect` as by `serve --stdio`.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from support.cellblock_zygote import forked_cellblock
from support.commands import Piped, cellblock, piped
from support.entries import CELLBLOCK, plain_server, write_config
from support.http_daemon import INITIALIZE, TOOL, Daemon, daemon
from support.http_server import free_port
from support.processes import alive, command_line, gone
from support.waits import until, within

NEVER = 'import { never } from "@codemode/servers/plain"; await never({});'

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def listing(request_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/list"}


@contextlib.asynccontextmanager
async def greeted(*options: object) -> AsyncIterator[Piped]:
    """A command at its pipes that is greeted, and ends well."""
    async with piped(*options) as process:
        process.send(INITIALIZE, INITIALIZED)
        assert "result" in await process.answer()
        yield process
        assert await process.end() == 0


def arguments(running: Daemon) -> list[str]:
    return ["connect", "--url", running.url, "--state-dir", str(running.folder / "s"), "--no-start"]


def over_http(running: Daemon) -> list[str]:
    """As to another user's daemon, whose socket is not in this state directory."""
    token = ["--token-file", str(running.folder / "s" / "token")]
    return ["connect", "--url", running.url, *token, "--state-dir", str(running.folder / "other")]


def over_stdio(running: Daemon) -> list[str]:
    """No daemon: a server of the client's own."""
    return ["serve", "--stdio", "--state-dir", str(running.folder / "own")]


@pytest.mark.parametrize("words", [arguments, over_http])
@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_an_editor_sees_the_daemon_as_if_it_were_its_own(
    served: Daemon, words: Callable[[Daemon], list[str]], mode: str, version: str
) -> None:
    """Tool lists, calls, errors, resources and cancellation; and the upstream session is the one of all."""
    parameters = StdioServerParameters(command=str(forked_cellblock()), args=words(served))
    async with Client(parameters, mode=mode) as client:
        assert client.protocol_version == version
        assert [tool.name for tool in (await within(client.list_tools())).tools] == [TOOL]
        code = 'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ ü: 1 });'
        result = await within(client.call_tool(TOOL, {"code": code}), 60)
        assert result.structured_content["result"] == r'{"\u00fc": 1}'
        starts = served.recorded(event="start")
        assert (await within(client.call_tool(TOOL, {}))).is_error
        assert len((await within(client.list_resources())).resources) == 1
        # Results over the SDK's default bound of one event.
        code = "globalThis.__codemode_result__ = 'x'.repeat(3 * 1024 * 1024);"
        result = await within(client.call_tool(TOOL, {"code": code}), 60)
        assert len(result.structured_content["result"]) == 3 * 1024 * 1024
        calls, cancelled = served.recorded(tool="never"), served.recorded(event="cancelled")
        call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
        await until(lambda: served.recorded(tool="never") > calls, "the script is in its call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(call)
        await until(lambda: served.recorded(event="cancelled") > cancelled, "a cancel notification upstream")
    assert served.recorded(event="start") == starts


def call(request_id: int, code: str, **more: Any) -> dict[str, Any]:
    params = {"name": TOOL, "arguments": {"code": code, **more}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


async def test_a_client_that_sends_everything_at_once_and_closes_gets_its_answers(served: Daemon) -> None:
    async with piped(*arguments(served)) as relay:
        seven = call(2, "globalThis.__codemode_result__ = 7;")
        relay.send(INITIALIZE, INITIALIZED, seven, b"this is no JSON\n")
        relay.close()
        answers = {found["id"]: found for found in [await relay.answer() for _ in range(3)]}
        assert answers[INITIALIZE["id"]]["result"]["serverInfo"]["name"] == "cellblock"
        assert answers[2]["result"]["structuredContent"]["result"] == 7
        assert answers[None]["error"]["code"] == -32700
        assert await relay.end() == 0


async def test_a_daemon_that_stops_answers_what_it_ends_and_takes_its_socket_away(tmp_path: Path) -> None:
    async with daemon(tmp_path, http={"drain_ms": 100}) as running, greeted(*arguments(running)) as relay:
        relay.send(call(2, NEVER))
        await until(lambda: running.recorded(tool="never"), "the script is in its call")
        running.process.terminate()
        while "id" not in (told := await relay.answer()):
            pass  # a change of the tools, where the server was slow
        assert told["id"] == 2 and "The daemon is stopping" in json.dumps(told)
        assert await within(running.process.wait()) == 0
        assert list((tmp_path / "s" / "daemons").iterdir()) == []


@pytest.mark.parametrize("token", ["wrong", "none", "unreadable"])
async def test_without_the_right_token_it_says_so(served: Daemon, tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.touch(0o644 if token == "unreadable" else 0o600)
    file.write_text("w" * 43)
    options = ("--state-dir", tmp_path / "empty") if token == "none" else ("--token-file", file)
    done = await cellblock("connect", "--url", served.url, *options, given=b"")
    assert (done.code, "token" in done.err) == (2 if token == "unreadable" else 3, True)


async def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    words = ("connect", "--url", "http://127.0.0.1:1/mcp", "--state-dir", tmp_path, "--no-start")
    done = await cellblock(*words, given=b"")
    assert (done.code, done.out, "cellblock serve --http" in done.err) == (3, "", True)


async def test_a_relay_needs_no_secret_of_the_daemons_configuration(served: Daemon, tmp_path: Path) -> None:
    """It has the state directory from the same file, and neither the variables nor a sound file beside."""
    config = tmp_path / "cellblock.json"
    entry = {
        "url": "https://wiki.example/mcp",
        "headers": {"Authorization": "Bearer ${env:NOT_SET_ANYWHERE}"},
    }
    section = {"state_dir": str(served.folder / "s"), "pool": {"warm": -1}}
    config.write_text(json.dumps({"mcpServers": {"wiki": entry}, "cellblock": section}))
    errors = tmp_path / "errors"
    words = ["connect", "--url", served.url, "--config", str(config), "--no-start"]
    with errors.open("w") as log:
        parameters = StdioServerParameters(command=str(forked_cellblock()), args=words)
        async with Client(stdio_client(parameters, errlog=log)) as client:
            assert [tool.name for tool in (await within(client.list_tools())).tools] == [TOOL]
    # Its faults are for whoever serves with it.
    assert errors.read_text() == ""


@pytest.mark.parametrize("words", [arguments, over_stdio])
async def test_to_and_from_files(
    served: Daemon, words: Callable[[Daemon], list[str]], tmp_path: Path
) -> None:
    """What is asked is answered before its end ends the program."""
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text("".join(f"{json.dumps(line)}\n" for line in (INITIALIZE, INITIALIZED, listing(2))))
    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        async with piped(*words(served), stdin=stdin, stdout=stdout) as running:
            assert await within(running.process.wait(), 60) == 0
    first, second = map(json.loads, answered.read_text().splitlines())
    assert (first["id"], second["id"], "tools" in second["result"]) == (INITIALIZE["id"], 2, True)


async def test_a_client_that_reads_nothing_more_keeps_nobody(served: Daemon) -> None:
    """Its pipe is full of an answer when it goes."""
    async with piped(*arguments(served)) as relay:
        relay.send(INITIALIZE, INITIALIZED, call(2, "globalThis.__codemode_result__ = 'x'.repeat(4e6);"))
        assert "result" in await relay.answer()
        relay.close()
        process = relay.process
        # `wait` would wait for the pipe's end, which is behind what is in it.
        await until(lambda: process.returncode is not None, "the relay ends", bound=60)
        assert process.returncode == 0
        await within(process.stdout.read(), 60)


LIGHT: dict[str, Any] = {"pool": {"warm": 0}, "typecheck": "off"}
"""Keeps a daemon from starting what no test here needs: no script runs."""


class Place:
    """A state directory, a configuration and a free port of a daemon to be started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "s"
        self.port = free_port()
        self.lock = self.state / f"daemon-127.0.0.1-{self.port}.lock"
        self.log = self.state / "logs" / "daemon.log"

    def config(self, name: str = "c.json", servers: object = None, **section: Any) -> Path:
        file = self.folder / name
        file.write_text(json.dumps({"mcpServers": servers or {}, "cellblock": {**LIGHT, **section}}))
        return file

    def words(self, *more: object) -> list[str]:
        url = f"http://127.0.0.1:{self.port}/mcp"
        return ["connect", "--url", url, "--state-dir", str(self.state), *map(str, more)]

    def token(self) -> None:
        """As a daemon leaves it that has run."""
        self.state.mkdir(mode=0o700)
        file = self.state / "token"
        file.touch(0o600)
        file.write_text("t" * 40)

    def daemons(self) -> list[psutil.Process]:
        return [
            one
            for one in psutil.process_iter()
            if f"127.0.0.1:{self.port}" in (words := command_line(one)) and "serve" in words and alive(one)
        ]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    left = made.daemons()
    for one in left:
        one.kill()
    await gone(left)


def relay(*words: str) -> contextlib.AbstractAsyncContextManager[Piped]:
    return piped(*words, program=CELLBLOCK, start_new_session=True)


async def ask(relay: Piped, *messages: dict[str, Any]) -> dict[str, Any]:
    """The answer to the first of the messages."""
    relay.send(*messages)
    while (found := await relay.answer()).get("id") != messages[0]["id"]:
        pass
    return found


async def refused(code: int, *words: str) -> str:
    """The error of the first request, which is on stderr, too, of one that ends so."""
    done = await cellblock(
        *words, given=json.dumps(INITIALIZE).encode() + b"\n", program=CELLBLOCK, start_new_session=True
    )
    told = json.loads(done.out)["error"]["message"]
    assert done.code == code and told in done.err, done
    return told


@pytest.mark.thorough
async def test_editors_share_one_daemon_that_outlives_them_and_comes_again(place: Place) -> None:
    words = place.words("--config", place.config())
    place.state.mkdir(mode=0o700)
    # Whoever was to start it first is not done, and is killed: its lock is free then.
    starter = os.open(place.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(starter, fcntl.LOCK_EX)
    async with contextlib.AsyncExitStack() as stack:
        editors = [await stack.enter_async_context(relay(*words)) for _ in range(3)]
        first = [asyncio.create_task(ask(one, INITIALIZE, INITIALIZED)) for one in editors]
        await until(place.log.parent.exists, "one has looked for the daemon")
        assert not place.daemons()
        os.close(starter)
        for found in await asyncio.gather(*first):
            assert found.get("result", found)["serverInfo"]["name"] == "cellblock", found
        (one,) = place.daemons()
        # Neither what is killed with an editor's process group nor with its children reaches it.
        pids = [editor.process.pid for editor in editors]
        assert os.getsid(one.pid) not in map(os.getsid, pids) and one.ppid() not in pids
        assert place.log.stat().st_mode & 0o777 == 0o600
        os.killpg(pids[0], signal.SIGKILL)
        assert "tools" in (await ask(editors[1], listing(2)))["result"]

        # It is killed under its editors: what they ask next is answered by one that is started again.
        one.kill()
        for found in await asyncio.gather(*(ask(editor, listing(3)) for editor in editors[1:])):
            assert "tools" in found.get("result", ()), found
        (second,) = place.daemons()
        assert second.pid != one.pid

        # Another configuration is not served by it, nor is who has another token.
        other = place.words("--config", place.config("other.json"))
        at = f"http://127.0.0.1:{place.port}"
        assert "serves another configuration" in await refused(2, *other)
        for mine in ((*other, "--no-start"), (*words, "--url", f"{at}/mcp/")):
            async with relay(*mine) as process:
                assert "result" in await ask(process, INITIALIZE)
        told = await refused(3, *words, "--url", at)
        assert f"{at} is no Cellblock daemon: its path is not /mcp." in told
        told = await refused(3, *words, "--state-dir", str(place.folder / "other"))
        assert "refuses the token" in told and "another user's" in told
        assert place.daemons() == [second]


@pytest.mark.thorough
async def test_a_relay_of_a_version_that_was_removed_starts_what_took_its_place(place: Place) -> None:
    removed = "sys.executable = '/removed/python'; sys.argv[0] = sys.argv.pop(1)"
    code = f"import sys; from cellblock.app.cli.main import main; {removed}; sys.exit(main(sys.argv[1:]))"
    words = place.words("--config", place.config())
    program = Path(sys.executable)
    async with piped("-c", code, CELLBLOCK, *words, program=program, start_new_session=True) as one:
        found = await ask(one, INITIALIZE, INITIALIZED)
        assert found.get("result", found)["serverInfo"]["name"] == "cellblock", found


@pytest.mark.thorough
async def test_a_daemon_that_was_started_so_ends_when_nobody_is_there(place: Place, tmp_path: Path) -> None:
    async with relay(*place.words("--config", place.config())) as editor:
        assert "result" in await ask(editor, INITIALIZE, INITIALIZED)
        (one,) = place.daemons()
        assert "--until-idle" in one.cmdline()
    soon = {"cellblock.app.cli.serve_http.IDLE_STOP_SECONDS": 0.7}
    async with daemon(tmp_path, "--until-idle", constants=soon, **LIGHT) as running:
        assert await within(running.process.wait()) == 0
    assert "no client was here" in "".join(running.said)


@pytest.mark.thorough
async def test_the_daemons_message_reaches_the_client_when_it_cannot_start(place: Place) -> None:
    config = place.config(servers={"plain": {"comand": "x"}})
    told = await refused(3, *place.words("--config", config))
    assert f"{config}:1:27: mcpServers.plain.comand: unknown key" in told and "Did you mean command" in told
    assert str(place.log) in told
    assert not place.daemons()


@pytest.mark.thorough
async def test_a_state_directory_that_cannot_be_used_is_told(place: Place) -> None:
    place.state.write_text("a file")
    assert str(place.state) in await refused(2, *place.words("--config", place.config()))
    assert place.state.read_text() == "a file"


@pytest.mark.thorough
async def test_another_programs_port_is_left_to_it(place: Place) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", place.port):
        assert "is no Cellblock daemon" in await refused(3, *place.words("--config", place.config()))
    assert not place.lock.exists() and not place.log.exists()


@pytest.mark.thorough
async def test_a_port_that_is_taken_for_a_moment_is_a_daemons_that_was_killed(place: Place) -> None:
    came = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()
        if came == 3:
            dying.close()

    place.token()
    async with (
        await asyncio.start_server(hang_up, "127.0.0.1", place.port) as dying,
        relay(*place.words("--config", place.config())) as process,
    ):
        assert "result" in await ask(process, INITIALIZE)
    assert came == 3


@pytest.mark.thorough
async def test_a_daemon_without_a_socket_is_not_shown_the_token(place: Place) -> None:
    """As one of an earlier version, or another user's program in its place."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(10_000))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")
        writer.close()

    place.token()
    async with await asyncio.start_server(answer, "127.0.0.1", place.port):
        told = await refused(3, *place.words("--config", place.config()))
        assert "has no socket" in told and "earlier version" in told and "--token-file" in told
        done = await cellblock("dashboard", *place.words()[1:], program=CELLBLOCK)
        assert done.code == 3 and "has no socket" in done.err
    assert not any(b"tttt" in one for one in came)
    assert not place.daemons()


LINES = (
    b"no json\n",
    b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"\xff"}}\n',
    b"\n",
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":[]}\n',
    b'{"id":12,"method":"ping"}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}\n',
)
TOLD = [(None, -32700), (10, -32700), (11, -32602), (12, -32600)]

TOO_MUCH = {
    "jsonrpc": "2.0",
    "id": 21,
    "method": "tools/call",
    "params": {"name": "a", "arguments": {"b": [0] * 200_000}},
}
"""Over what the loop may decode; the relay passes it on."""


TOO_LONG = [
    b'{"jsonrpc":"2.0","id":31,"method":"tools/call","params":{"x":"%s"}}\n' % (b"x" * 20_000_000),
    b"y" * 40_000_000,
]
"""Over what a line may have: one is known by its id, the other by nothing; both are one line."""


@pytest.mark.parametrize("words", [arguments, over_stdio])
async def test_lines_that_are_no_messages_are_told_and_what_follows_is_served(
    served: Daemon, words: Callable[[Daemon], list[str]]
) -> None:
    async with greeted(*words(served)) as process:
        process.send(*LINES)
        answers = [await process.answer() for _ in TOLD]
        assert [(answer["id"], answer["error"]["code"]) for answer in answers] == TOLD
        process.send(TOO_MUCH, TOO_LONG[0] + TOO_LONG[1] + b"\n")
        for request_id, bound in (
            (21, "over 50000 values"),
            (31, "over 16777216 bytes"),
            (None, "over 16777216 bytes"),
        ):
            refused = await process.answer()
            assert (refused["id"], refused["error"]["code"]) == (request_id, -32600)
            assert bound in refused["error"]["message"]
        process.send({"jsonrpc": "2.0", "id": 13, "method": "ping"})
        assert await process.answer() == {"jsonrpc": "2.0", "id": 13, "result": {}}
        # The last line has no end: a whole message is taken, and half of one is told.
        process.send(b'{"jsonrpc":"2.0","id":14,"method":"pi')
        process.close()
        half = await process.answer()
        assert (half["id"], half["error"]["code"]) == (None, -32700)


async def test_what_is_asked_last_is_answered_when_the_server_runs_already(tmp_path: Path) -> None:
    """The end of stdin is read right behind the requests, before any of them has begun."""
    async with greeted("serve", "--stdio", "--state-dir", tmp_path) as process:
        process.send(listing(2))
        assert "tools" in (await process.answer())["result"]
        asked = {3: "tools/list", 4: "ping", 5: "resources/list", 6: "nothing/known"}
        process.send(*({"jsonrpc": "2.0", "id": key, "method": name} for key, name in asked.items()))
        process.close()
        assert {(await process.answer())["id"] for _ in asked} == set(asked)


async def test_nothing_but_the_protocol_is_on_stdout(tmp_path: Path) -> None:
    """Every line is a JSON-RPC message that answers a request, whatever servers and scripts print."""
    servers = {"plain": plain_server(), "absent": {"command": "no-such-program-anywhere"}}
    words = ("serve", "--config", write_config(tmp_path, servers), "--state-dir", tmp_path / "s")
    answered: dict[int, dict[str, Any]] = {}
    async with piped(*words, program=CELLBLOCK) as running:
        running.send(INITIALIZE, INITIALIZED, listing(2), b"this is no JSON\n")
        running.send(call(3, "console.log('to the logs'); throw 1;"))
        running.send({"jsonrpc": "2.0", "id": 4, "method": "no/such/method"})
        running.send(call(5, "for (;;) {}", limits={"timeoutMs": 100}))
        while len(answered) < 5:
            message = await running.answer()
            assert message["jsonrpc"] == "2.0"
            if message.get("id") is not None:
                answered[message["id"]] = message
        running.close()
        rest, _ = await within(running.process.communicate())
        assert running.process.returncode == 0
    # On a busy machine, that the servers have come may be told last.
    assert all("method" in json.loads(line) for line in rest.splitlines())
    assert set(answered) == {1, 2, 3, 4, 5} and "error" in answered[4]
    ends = [answered[number]["result"]["structuredContent"]["diagnostics"][0]["code"] for number in (3, 5)]
    assert ends == ["UNCAUGHT_EXCEPTION", "SANDBOX_LIMIT"]
