"""The daemon's socket and `connect` at it, each against another end that does what it likes."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import __version__
from cellblock.base.daemon_socket import ListeningSocket, connected, hello
from support.commands import Piped, piped
from support.http_daemon import INITIALIZE, Daemon, daemon
from support.waits import within

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18"}}
MUCH = 384 * 1024**2
"""Many times what a message may have."""


@asynccontextmanager
async def opened(served: Daemon) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    connection = connected(served.folder / "s", f"127.0.0.1:{served.port}")
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    with closing(writer):
        yield reader, writer


async def test_it_speaks_the_stdio_protocol_behind_a_line_of_each(served: Daemon) -> None:
    async with opened(served) as (reader, writer):
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
    async with opened(served) as (reader, writer):
        writer.write(said)
        writer.write_eof()
        answer = await within(reader.read())
        assert (json.loads(answer)["cellblock"]["refused"] if answer else None) == refused
    await still_serves(served)


async def still_serves(served: Daemon) -> None:
    async with opened(served) as (reader, writer):
        writer.write(hello() + b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
        await within(reader.readline())
        assert json.loads(await within(reader.readline())) == {"jsonrpc": "2.0", "id": 2, "result": {}}


async def test_a_line_without_end_takes_no_more_memory_than_a_message_may(served: Daemon) -> None:
    process = psutil.Process(served.process.pid)
    before, most = process.memory_info().rss, 0
    async with opened(served) as (reader, writer):
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


async def test_over_http_a_session_that_the_daemon_has_forgotten_is_begun_again(tmp_path: Path) -> None:
    """The client has its list, and notices nothing."""
    said: list[str] = []

    lost = {"error": {"code": -32600, "message": "Session not found"}}

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Who only looks whether anybody listens says nothing.
        with closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length)) if length else {"method": head.split(" ")[0]}
            method, request_id = body["method"], body.get("id")
            said.append(method)
            status, answer = 202, None
            if method in ("head", "get", "delete"):
                status = 405
            elif method == "initialize":
                status, answer = 200, {**GREETED, "id": request_id}
            elif method == "tools/list" and said.count("initialize") == 1:
                status, answer = 404, {"jsonrpc": "2.0", "id": None, **lost}
            elif request_id is not None:
                status, answer = 200, {"jsonrpc": "2.0", "id": request_id, "result": {"tools": []}}
            text = json.dumps(answer).encode() if answer else b""
            kind = "content-type: application/json\r\nmcp-session-id: s\r\nconnection: close\r\n"
            writer.write(f"HTTP/1.1 {status} X\r\n{kind}content-length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()

    async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        async with piped("connect", "--url", url, "--state-dir", tmp_path / "none") as relay:
            relay.send(INITIALIZE)
            assert await relay.answer() == GREETED
            relay.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, listing)
            assert await relay.answer() == {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}
            assert await relay.end() == 0
    asked = ("initialize", "notifications/initialized", "tools/list")
    assert [said.count(method) for method in asked] == [2, 2, 2]
