"""A connection of the web server: what it writes in one turn of the loop leaves as one piece."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from cellblock.serve.http.connection import BoundedConnection, connections_bounded_by
from cellblock.serve.http.connections import Connections
from support.waits import until

BOUND = 20.0
PROTOCOL = connections_bounded_by(10.0, Connections(8, 8))
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


def _connection() -> BoundedConnection:
    config = uvicorn.Config(
        _app,  # pyright: ignore[reportArgumentType]
        http=PROTOCOL, log_config=None, lifespan="off", interface="asgi3",
        server_header=False, date_header=False,
    )  # fmt: skip
    config.load()
    connection = PROTOCOL(config, uvicorn.Server(config).server_state, {})  # pyright: ignore[reportCallIssue]
    assert isinstance(connection, BoundedConnection)
    return connection


async def _answered(request: bytes, pieces: int) -> _Wire:
    wire, connection = _Wire(), _connection()
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


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_lost_connection_does_not_wait_for_the_collector(is_reset: bool) -> None:
    loop = asyncio.get_running_loop()
    made = list[weakref.ref[BoundedConnection]]()

    def connection() -> BoundedConnection:
        one = _connection()
        made.append(weakref.ref(one))
        return one

    server = await loop.create_server(connection, "127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(8):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()
        await until(lambda: not any(one() for one in made), "every connection is gone")
    finally:
        gc.enable()
        server.close()
    assert len(made) == 8
