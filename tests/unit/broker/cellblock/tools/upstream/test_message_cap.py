"""HTTP answers over the cap: never whole in memory, however they are sent or packed."""

from __future__ import annotations

import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from cellblock.tools.upstream.heavy import LargeMessages
from cellblock.tools.upstream.lines import TooLong
from cellblock.tools.upstream.message_cap import MessageTooLarge, cap_response, is_too_large, too_large_error

CAP = 200_000


def bomb(size: int) -> bytes:
    """So many zeros in gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1_000_000)) for _ in range(size // 1_000_000)) + packer.flush()


class Sending(BaseHTTPRequestHandler):
    """/N sends N bytes; /gzip sends 100 MB in 100 KB; /chunked sends chunks without end."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.start(("transfer-encoding", "chunked"))
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                while True:
                    self.wfile.write(chunk)
            except OSError:
                self.close_connection = True
            return
        body = bomb(100_000_000) if self.path == "/gzip" else b"x" * int(self.path[1:])
        packed = [("content-encoding", "gzip")] if self.path == "/gzip" else []
        self.start(("content-length", str(len(body))), *packed)
        self.wfile.write(body)

    def start(self, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where `Sending` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sending)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


async def body_of(url: str) -> bytes:
    """What the SDK would read, by a client with the cap."""

    async def capped(response: httpx2.Response) -> None:
        cap_response(response, CAP, LargeMessages().for_server("test"))

    async with (
        httpx2.AsyncClient(event_hooks={"response": [capped]}, trust_env=False, timeout=60) as client,
        client.stream("GET", url) as response,
    ):
        return await response.aread()


@pytest.mark.parametrize("size", [0, 1, CAP])
async def test_what_is_within_the_cap_arrives(url: str, size: int) -> None:
    assert len(await body_of(f"{url}/{size}")) == size


@pytest.mark.parametrize("path", [str(CAP + 1), "5000000", "gzip", "chunked"])
async def test_what_is_over_the_cap_is_an_error_and_is_not_held(url: str, path: str) -> None:
    tracemalloc.start()
    with pytest.raises(MessageTooLarge) as caught:
        await body_of(f"{url}/{path}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert is_too_large(str(caught.value))
    # The server's side of these 5 MB is in this process too.
    assert peak < 20_000_000


def test_only_a_line_that_names_its_request_fails_one() -> None:
    assert isinstance(too_large_error(TooLong(9, None), 5), MessageTooLarge)
    named = too_large_error(TooLong(9, 3), 5)
    assert not isinstance(named, Exception)
    assert is_too_large(str(named.message))
