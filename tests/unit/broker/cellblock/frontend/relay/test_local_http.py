"""The relay's HTTP, against a server that answers byte by byte what a test says."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing

import pytest

from cellblock.frontend.relay import local_http
from cellblock.frontend.relay.channel import Broken, Unreached, whole
from cellblock.frontend.relay.local_http import LocalHttp
from support.waits import until, within

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp?a=b"


def saying(*answers: bytes) -> tuple[Serve, list[bytes]]:
    """Gives each request the next answer, on as many connections as it takes; and the heads that came."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(heads) < len(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            heads.append(head + body)
            for byte in answers[len(heads) - 1]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            if b"Connection: close" in answers[len(heads) - 1]:
                return

    return serve, heads


async def asked(channel: LocalHttp, url: str, method: str = "POST", body: bytes = b"x") -> tuple[int, bytes]:
    async with channel.ask(method, url, {"mcp-name": "n"}, body) as answer:
        return answer.status, await whole(answer)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"


async def test_answers_of_each_length_and_one_connection_for_all() -> None:
    connections = 0
    serve, heads = saying(
        CHUNKED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED,
        b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 50\r\n\r\n",
        b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    )

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await serve(reader, writer)

    async with serving(counted) as url:
        with closing(LocalHttp({"authorization": "Bearer t"})) as channel:
            assert await within(asked(channel, url)) == (200, b"abc0123456789")
            assert await within(asked(channel, url)) == (404, b"no")
            assert await within(asked(channel, url, "HEAD", b"")) == (405, b"")
            assert await within(asked(channel, url)) == (202, b"")
    assert connections == 1
    port = url.partition("127.0.0.1:")[2].partition("/")[0].encode()
    assert heads[0].startswith(b"POST /mcp?a=b HTTP/1.1\r\nhost: 127.0.0.1:" + port + b"\r\n")
    assert b"authorization: Bearer t\r\nmcp-name: n\r\n\r\nx" in heads[0]


async def test_a_connection_that_the_daemon_ends_is_not_used_again() -> None:
    serve, heads = saying(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", SIZED)
    async with serving(serve) as url:
        with closing(LocalHttp({})) as channel:
            assert await within(asked(channel, url)) == (200, b"to the end")
            assert await within(asked(channel, url)) == (404, b"no")
    assert len(heads) == 2


async def test_one_that_was_ended_while_free_is_not_either() -> None:
    ended = asyncio.Event()
    serve, _ = saying(SIZED, SIZED)

    async def first_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if ended.is_set():
            await serve(reader, writer)
            return
        await reader.readuntil(b"\r\n\r\nx")
        writer.write(SIZED)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with serving(first_ends) as url:
        with closing(LocalHttp({})) as channel:
            assert await within(asked(channel, url)) == (404, b"no")
            await within(ended.wait())
            assert await within(asked(channel, url)) == (404, b"no")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_said_to_be(answer: bytes) -> None:
    serve, _ = saying(answer)
    async with serving(serve) as url:
        with closing(LocalHttp({})) as channel, pytest.raises(Broken):
            await within(asked(channel, url))


async def test_nobody_there_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LocalHttp({})) as channel:
        with pytest.raises(Broken):
            await within(asked(channel, "http://127.0.0.1:1/mcp"))
        monkeypatch.setattr(local_http, "SILENCE_SECONDS", 0.01)

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with serving(silent) as url:
            with pytest.raises(Broken, match="silent"):
                await within(asked(channel, url))


async def test_a_connection_that_is_reset_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is killed while one connects: the kernel does not know the peer any more."""
    opening = asyncio.open_connection

    async def reset(host: str, port: int, *, limit: int) -> object:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
        await until(lambda: not has_peer(client), "the reset has come")
        client.setblocking(False)
        return await opening(sock=client, limit=limit)

    monkeypatch.setattr(asyncio, "open_connection", reset)
    with closing(LocalHttp({}, own=True)) as channel, pytest.raises(Unreached, match="hung up"):
        await within(asked(channel, "http://127.0.0.1:1/mcp"))


def has_peer(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


async def test_a_refusal_that_comes_before_all_is_sent_is_read() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
        await writer.drain()
        while await reader.read(1024 * 1024):
            pass

    async with serving(refuse) as url:
        with closing(LocalHttp({})) as channel:
            assert await within(asked(channel, url, body=b"x" * 20_000_000), 60) == (413, b"much")
