from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Message

from cellblock.frontend.client import Owner
from cellblock.frontend.http.address import MCP_PATH
from cellblock.frontend.http.exchange import Exchange
from cellblock.frontend.http.refusal import Refused
from cellblock.frontend.replicas.passing import Passing, host_header
from support.certificates import certificate


@pytest.mark.parametrize(
    "url",
    ["https://10.0.0.5:7433", "https://Broker.example:443/", "http://127.0.0.1:80", "https://[FD00::5]:7433"],
)
def test_a_broker_answers_to_the_name_that_others_write(url: str) -> None:
    assert host_header(url) == httpx2.Request("GET", url.rstrip("/") + MCP_PATH).headers["host"]


class Forgetful:
    """Answers the first request of each connection, and closes it when the second one has come."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b""):
                self.requests.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
                writer.write(answer)
        writer.close()


@pytest.fixture
async def forgetful() -> AsyncIterator[tuple[Forgetful, str]]:
    there = Forgetful()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    yield there, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def passed(passing: Passing, url: str, method: str) -> int:
    """The status of one request that is passed on."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"method": method, "headers": []}
    try:
        await passing.pass_on(url, b"mark", scope, b"", Exchange(Owner("a", "b")), receive, send)
    except Refused as refused:
        return refused.status
    return sent[0]["status"]


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("DELETE", 200), ("POST", 502)])
async def test_a_connection_that_the_other_side_has_closed(
    forgetful: tuple[Forgetful, str], method: str, status: int
) -> None:
    """What may be done twice is asked again on another; a call may have been made."""
    there, url = forgetful
    passing = Passing(4)
    try:
        assert await passed(passing, url, method) == 200
        assert await passed(passing, url, method) == status
    finally:
        await passing.close()
    assert there.requests == [method.encode()] * (3 if status == 200 else 2)


@pytest.mark.parametrize(("name", "status"), [("cellblock.test", 200), ("other.test", 503), (None, 503)])
async def test_a_certificate_is_held_against_the_name_that_brokers_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, status: int
) -> None:
    cert, key = certificate(tmp_path, host="cellblock.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(Forgetful().serve, "127.0.0.1", 0, ssl=context)
    passing = Passing(1, name)
    try:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await passed(passing, url, "GET") == status
    finally:
        await passing.close()
        server.close()
