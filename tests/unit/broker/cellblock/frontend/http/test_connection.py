"""A connection of the web server: what it writes in one turn of the loop leaves as one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from cellblock.config.http import HttpSettings
from cellblock.frontend.http.connection import BoundedConnection, connections_bounded_by
from cellblock.frontend.http.places import Places

BOUND = 20.0
PROTOCOL = connections_bounded_by(HttpSettings(), Places(8, 8))
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def _app(scope: dict[str, Any], _receive: object, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    if scope["path"] == "/later":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"body"})


class _Wire(asyncio.Transport):
    """What asyncio would send, piece by piece."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 7

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def _answered(request: bytes, pieces: int) -> _Wire:
    config = uvicorn.Config(
        _app,  # pyright: ignore[reportArgumentType]
        http=PROTOCOL, log_config=None, lifespan="off", interface="asgi3",
        server_header=False, date_header=False,
    )  # fmt: skip
    config.load()
    wire = _Wire()
    connection = PROTOCOL(config, uvicorn.Server(config).server_state, {})  # pyright: ignore[reportCallIssue]
    assert isinstance(connection, BoundedConnection)
    connection.connection_made(wire)
    connection.data_received(request)
    async with asyncio.timeout(BOUND):
        while len(wire.pieces) < pieces or not wire.pieces[-1].endswith(b"body"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    connection.connection_lost(None)
    return wire


async def test_head_and_body_of_a_response_leave_together() -> None:
    wire = await _answered(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1)
    assert len(wire.pieces) == 1
    assert wire.pieces[0].startswith(b"HTTP/1.1 200") and wire.pieces[0].endswith(b"\r\n\r\nbody")


async def test_what_comes_in_another_turn_is_not_waited_for() -> None:
    wire = await _answered(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n", 2)
    assert wire.pieces[0].endswith(b"\r\n\r\n") and wire.pieces[1:] == [b"body"]


async def test_a_connection_is_closed_after_its_last_response_has_left() -> None:
    wire = await _answered(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 1)
    assert wire.closed and wire.pieces[-1].endswith(b"body")
