"""`cellblock connect` where no daemon runs: it starts one for all, which outlives it and ends when nobody is there."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.commands import Piped, cellblock, piped
from support.entries import CELLBLOCK
from support.http_daemon import INITIALIZE, daemon
from support.http_server import free_port
from support.processes import alive, command_line, gone
from support.waits import until, within

pytestmark = pytest.mark.thorough

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
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


async def refused(*words: str) -> tuple[int, str, str]:
    """The exit code, the error of the first request, and what is on stderr."""
    done = await cellblock(
        *words, given=json.dumps(INITIALIZE).encode() + b"\n", program=CELLBLOCK, start_new_session=True
    )
    return done.code, json.loads(done.out)["error"]["message"], done.err


def listing(request_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/list"}


async def test_editors_share_one_daemon_that_outlives_them_and_comes_again(place: Place) -> None:
    config = place.config()
    words = place.words("--config", config)
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
        code, told, said = await refused(*place.words("--config", place.config("other.json")))
        assert code == 2 and "serves another configuration" in told and told in said
        async with relay(*place.words("--config", place.config("other.json"), "--no-start")) as process:
            assert "result" in await ask(process, INITIALIZE)
        at = f"http://127.0.0.1:{place.port}"
        async with relay(*words, "--url", f"{at}/mcp/") as process:
            assert "result" in await ask(process, INITIALIZE)
        code, told, _ = await refused(*words, "--url", at)
        assert code == 3 and f"{at} is no Cellblock daemon: its path is not /mcp." in told
        stranger = [*words, "--state-dir", str(place.folder / "other")]
        code, told, _ = await refused(*stranger)
        assert code == 3 and "refuses the token" in told and "another user's" in told
        assert place.daemons() == [second]


async def test_a_relay_of_a_version_that_was_removed_starts_what_took_its_place(place: Place) -> None:
    removed = "sys.executable = '/removed/python'; sys.argv[0] = sys.argv.pop(1)"
    code = f"import sys; from cellblock.app.cli.main import main; {removed}; sys.exit(main(sys.argv[1:]))"
    words = place.words("--config", place.config())
    program = Path(sys.executable)
    async with piped("-c", code, CELLBLOCK, *words, program=program, start_new_session=True) as one:
        found = await ask(one, INITIALIZE, INITIALIZED)
        assert found.get("result", found)["serverInfo"]["name"] == "cellblock", found


async def test_a_daemon_that_was_started_so_ends_when_nobody_is_there(place: Place, tmp_path: Path) -> None:
    async with relay(*place.words("--config", place.config())) as editor:
        assert "result" in await ask(editor, INITIALIZE, INITIALIZED)
        (one,) = place.daemons()
        assert "--until-idle" in one.cmdline()
    soon = {"cellblock.app.cli.serve_http.IDLE_STOP_SECONDS": 0.7}
    async with daemon(tmp_path, "--until-idle", constants=soon, **LIGHT) as running:
        assert await within(running.process.wait()) == 0
    assert "no client was here" in "".join(running.said)


async def test_the_daemons_message_reaches_the_client_when_it_cannot_start(place: Place) -> None:
    config = place.config(servers={"plain": {"comand": "x"}})
    code, told, said = await refused(*place.words("--config", config))
    assert code == 3
    assert f"{config}:1:27: mcpServers.plain.comand: unknown key" in told and "Did you mean command" in told
    assert str(place.log) in told and told in said
    assert not place.daemons()


async def test_a_state_directory_that_cannot_be_used_is_told(place: Place) -> None:
    place.state.write_text("a file")
    code, told, said = await refused(*place.words("--config", place.config()))
    assert code == 2 and str(place.state) in told and told in said
    assert place.state.read_text() == "a file"


async def test_another_programs_port_is_left_to_it(place: Place) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", place.port):
        code, told, _ = await refused(*place.words("--config", place.config()))
    assert code == 3 and "is no Cellblock daemon" in told
    assert not place.lock.exists() and not place.log.exists()


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


async def test_a_daemon_without_a_socket_is_not_shown_the_token(place: Place) -> None:
    """As one of an earlier version, or another user's program in its place."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(10_000))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")
        writer.close()

    place.token()
    async with await asyncio.start_server(answer, "127.0.0.1", place.port):
        code, told, _ = await refused(*place.words("--config", place.config()))
        assert code == 3 and "has no socket" in told and "earlier version" in told and "--token-file" in told
        done = await cellblock("dashboard", *place.words()[1:], program=CELLBLOCK)
        assert done.code == 3 and "has no socket" in done.err
    assert not any(b"tttt" in one for one in came)
    assert not place.daemons()
