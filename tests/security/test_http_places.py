"""Who fills the front door: connections without a token, heads of requests that can be read in two ways, and one
principal among several."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from support.http_daemon import MCP_HEADERS, Daemon, daemon
from support.waits import within

HEAD_BYTES = 32 * 1024


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """A daemon with its default bounds on connections, and with a rate that a test can reach."""
    async with daemon(
        tmp_path_factory.mktemp("door"),
        constants={
            "cellblock.serve.http.server.REQUESTS_PER_SECOND": 5,
            "cellblock.serve.http.server.BURST": 60,
        },
    ) as running:
        yield running


class Held:
    """A connection that stays open."""

    def __init__(self, served: Daemon) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        self.socket.setblocking(False)

    async def ask(self, request: bytes) -> bytes:
        """What comes back on a request, as far as one piece goes; empty: it is closed."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self.socket, request)
            return await within(loop.sock_recv(self.socket, 65536))
        except ConnectionError:
            return b""

    async def rest(self) -> bytes:
        """Everything until it is closed."""
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            while piece := await within(asyncio.get_running_loop().sock_recv(self.socket, 65536)):
                found += piece
        return bytes(found)

    def is_open(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@contextlib.contextmanager
def holding(served: Daemon, number: int) -> Iterator[list[Held]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Held(served)) for _ in range(number)]


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_idle_strangers_shut_nobody_out(served: Daemon) -> None:
    """As many silent connections as there are places, and more; who has the token is still let in, and the connection
    on which it was shown is not the one that is closed."""
    state = served.request("GET", "/dashboard/state", headers=served.auth)
    with Held(served) as mine:
        assert status_of(await mine.ask(state)) == 200
        with holding(served, 256) as silent, holding(served, 20) as talking:
            for one in talking:
                assert status_of(await one.ask(served.request("GET", "/livez"))) == 200
            for _ in range(3):
                answer = await served.raw(state)
                assert answer is not None, "hung up on"
                assert answer.status == 200
            assert status_of(await mine.ask(state)) == 200
            assert not silent[0].is_open(), "the oldest stranger has made room"
            assert talking[-1].is_open()


async def test_probes_without_a_token_are_metered(served: Daemon) -> None:
    """They cost as much as other requests, and 60 at once are more than a monitor asks."""
    live = served.request("GET", "/livez")
    with Held(served) as stranger:
        statuses = [status_of(await stranger.ask(live))]
        while statuses[-1] == 200 and len(statuses) < 300:
            statuses.append(status_of(await stranger.ask(live)))
        assert statuses[-1] == 429
        assert await stranger.rest() == b"", "and the connection is closed"
    # Who has the token does not pay for that.
    assert (await served.ask("GET", "/dashboard/state", headers=served.auth)).status == 200


HEADS = {
    "length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "in other letters": "CONTENT-length: 4\r\ntransfer-ENCODING: Chunked\r\n",
    "two lengths": "Content-Length: 4\r\nContent-Length: 5\r\n",
    "no number": "Content-Length: 4x\r\n",
    "signed": "Content-Length: +4\r\n",
    "hexadecimal": "Content-Length: 0x4\r\n",
    "chunks twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunks twice in one": "Transfer-Encoding: chunked, chunked\r\n",
    "another coding": "Transfer-Encoding: identity\r\n",
    "a word like it": "Transfer-Encoding: xchunked\r\n",
    "a space before the colon": "Transfer-Encoding : chunked\r\n",
    "chunks folded": "Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n",
    "a tab in the value": "Transfer-Encoding: \x0bchunked\r\n",
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_can_be_read_in_two_ways_is_400(served: Daemon, name: str) -> None:
    """With the token, and whatever follows: what a proxy might take for a second request is never read as one."""
    head = served.request("POST", "/mcp", headers={**MCP_HEADERS, **served.auth}).decode().split("\r\n")
    kept = [line for line in head[:-2] if not line.startswith("Content-Length")]
    raw = "\r\n".join([*kept, HEADS[name]]) + "\r\n0\r\n\r\n" + served.request("GET", "/livez").decode()
    with Held(served) as stranger:
        everything = await stranger.ask(raw.encode()) + await stranger.rest()
    assert everything.startswith(b"HTTP/1.1 400 ")
    assert everything.count(b"HTTP/1.1") == 1
    assert b"connection: close" in everything.lower()


async def test_chunks_before_http_1_1_are_400(served: Daemon) -> None:
    head = served.request("POST", "/mcp", headers={**MCP_HEADERS, **served.auth}).decode()
    old = head.replace("HTTP/1.1", "HTTP/1.0").replace("Content-Length: 0", "Transfer-Encoding: chunked")
    assert (await served.raw((old + "0\r\n\r\n").encode())).status == 400


async def test_a_head_without_an_end_is_bounded(served: Daemon) -> None:
    """Also one behind another request."""
    endless = served.request("GET", "/livez", headers={"X-Fill": "x" * HEAD_BYTES}).removesuffix(b"\r\n")
    with Held(served) as one:
        everything = await one.ask(endless) + await one.rest()
    assert everything.startswith(b"HTTP/1.1 400 ")
    first = served.request("GET", "/dashboard/state", headers=served.auth)
    with Held(served) as both:
        everything = await both.ask(first + endless) + await both.rest()
    assert everything.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in everything
