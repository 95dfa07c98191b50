"""Connections: how many there are, what they hold of memory, and what they write in one turn of the loop."""

import asyncio
import contextlib
import gc
import socket
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import h11
import pytest
import uvicorn

from cellblock.serve.http.bodies import Memory
from cellblock.serve.http.caller import network_of
from cellblock.serve.http.connections import BoundedConnection, Connections
from cellblock.serve.http.server import MAX_HEAD_BYTES
from support.loop_steps import longest_step
from support.waits import until


@dataclass(eq=False)
class Held:
    address: str
    idle: bool = True
    gone: bool = False

    def abort(self) -> None:
        self.gone = True


class Front:
    def __init__(self, total: int, share: int) -> None:
        self.places = Connections(total)
        self.places.share = share
        self.made: list[Any] = []

    def enter(self, address: str = "10.0.0.1") -> Any:
        made: Any = Held(address)
        self.made.append(made)
        self.places.enter(made)
        return made

    def holder(self, name: str, *, idle: bool = True) -> tuple[Any, bool]:
        made = self.enter()
        made.idle = idle
        return made, self.places.prove(made, name)

    def open(self) -> list[Any]:
        return [one for one in self.made if not one.gone]


def test_the_oldest_stranger_of_the_address_with_most_makes_room() -> None:
    world = Front(8, 8)
    quiet = world.enter("10.0.0.2")
    for _ in range(27):
        assert not world.enter().gone
    assert world.open() == [quiet, *world.made[-7:]]


def test_a_newcomer_lives_while_as_many_come_after_it_as_strangers_have_places() -> None:
    world = Front(16, 16)
    for _ in range(16):
        world.holder("ada")
    for _ in range(30):
        newcomer = world.enter()
        for _ in range(3):
            world.enter()
        assert not newcomer.gone
        assert world.places.prove(newcomer, "ada")


def test_strangers_never_push_out_a_holder() -> None:
    world = Front(8, 8)
    held = [world.holder("ada")[0] for _ in range(6)]
    for number in range(100):
        world.enter(f"10.0.{number}.1")
    assert world.open()[:6] == held
    assert len(world.open()) == 8


def test_a_holder_has_its_share_and_closes_its_own_idle_ones_for_more() -> None:
    world = Front(16, 4)
    assert [world.holder("ada")[1] for _ in range(5)] == [True] * 5
    assert world.open() == world.made[1:]
    for one in world.made:
        one.idle = False
    assert world.holder("ada", idle=False)[1] is False
    assert world.holder("eve")[1] is True


def test_who_has_most_makes_room_when_all_places_are_taken() -> None:
    world = Front(8, 8)
    for _ in range(6):
        world.holder("ada")
    for gone in (1, 2, 3):
        assert world.holder("eve")[1]
        assert world.open() == world.made[gone:]
    # Half and half: eve's next one costs eve.
    assert world.holder("eve")[1]
    assert world.open() == [*world.made[3:6], *world.made[7:]]


def test_who_comes_late_is_refused_where_all_are_busy() -> None:
    world = Front(8, 8)
    assert [world.holder(name, idle=False)[1] for name in ["ada"] * 6 + ["eve"]] == [True] * 6 + [False]


def test_places_come_back() -> None:
    world = Front(4, 4)
    for _ in range(50):
        one = world.enter()
        world.places.prove(one, "ada")
        world.places.prove(one, "ada")
        world.places.leave(one)
        world.places.leave(one)
    assert world.open() == world.made, "nobody was sent away"


def test_a_proxy_may_carry_several_holders_on_oneconnection_of() -> None:
    world = Front(4, 1)
    one, _ = world.holder("ada")
    assert world.places.prove(one, "eve")
    assert world.holder("ada", idle=False)[1]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_an_ipv6_network_is_one_stranger(address: str, network: str) -> None:
    assert network_of(address) == network


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

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 7

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def connection_of(app: Any = _app) -> BoundedConnection:
    config = uvicorn.Config(
        app,
        log_config=None, lifespan="off", interface="asgi3", server_header=False, date_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )  # fmt: skip
    config.load()
    return BoundedConnection(Connections(8), 10.0, config, uvicorn.Server(config).server_state, {})


def _connected(app: Any = _app) -> tuple[_Wire, BoundedConnection]:
    wire, connection = _Wire(), connection_of(app)
    connection.connection_made(wire)
    return wire, connection


@pytest.mark.parametrize(
    ("request_head", "pieces", "closed"),
    [
        (b"GET / HTTP/1.1", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody"], False),
        (b"GET /later HTTP/1.1", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"body"], False),
        (
            b"GET / HTTP/1.1\r\nConnection: close",
            [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nConnection: close\r\n\r\nbody"],
            True,
        ),
    ],
    ids=["in one turn", "in several", "the last"],
)
async def test_what_is_written_in_one_turn_leaves_together(
    request_head: bytes, pieces: list[bytes], closed: bool
) -> None:
    """A later part is not waited for, and a connection is closed when its last response has left."""
    wire, connection = _connected()
    connection.data_received(request_head + b"\r\nHost: x\r\n\r\n")
    await until(lambda: b"".join(wire.pieces).endswith(b"body"), "every piece")
    assert (wire.pieces, wire.closed) == (pieces, closed)
    connection.connection_lost(None)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_lost_connection_does_not_wait_for_the_collector(is_reset: bool) -> None:
    loop = asyncio.get_running_loop()
    made = list[weakref.ref[BoundedConnection]]()

    def connection() -> BoundedConnection:
        one = connection_of()
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
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            writer.close()
        await until(lambda: not any(one() for one in made), "every connection is gone")
    finally:
        gc.enable()
        server.close()
    assert len(made) == 8


HELD_SECONDS = 0.06
"""What a client's bytes may hold the loop for. On the code before it was 0.14 s here."""


def _head(size: int) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * (size // 5) + b"Connection: close\r\n\r\n"


LATER = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
WHOLE = 250 * 1024
"""What asyncio reads at once, about."""


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (_head(WHOLE), [400]),
        (LATER + _head(WHOLE), [200, 400]),
        (_head(MAX_HEAD_BYTES), [200]),
        (LATER + _head(MAX_HEAD_BYTES), [200, 200]),
    ],
    ids=["large", "large, pipelined", "largest", "largest, pipelined"],
)
async def test_a_head_of_many_headers_does_not_hold_the_loop(data: bytes, statuses: list[int]) -> None:
    began = time.thread_time()
    yardstick = h11.Connection(h11.SERVER)
    yardstick.receive_data(_head(WHOLE))
    assert isinstance(yardstick.next_event(), h11.Request)
    at_once = time.thread_time() - began

    wire, connection = _connected()
    with longest_step() as longest:
        asyncio.get_running_loop().call_soon(connection.data_received, data)
        await until(lambda: wire.closed, "it is refused")
    connection.connection_lost(None)
    took = longest[0]
    assert took < max(HELD_SECONDS, at_once / 2), f"{took:.3f} s; {WHOLE} bytes at once {at_once:.3f} s"
    assert [int(one[:3]) for one in b"".join(wire.pieces).split(b"HTTP/1.1 ")[1:]] == statuses


async def test_what_comes_behind_a_request_waits_for_its_response() -> None:
    """Also where it is more than h11 is given at once."""
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        order.append(scope["path"])
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body, is_whole = body + message["body"], not message.get("more_body")
        order.append(f"{len(body)}")
        await _app(scope, receive, send)

    posted = b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    wire, connection = _connected(app)
    connection.data_received(b"".join(posted % number for number in range(3)))
    await until(lambda: b"".join(wire.pieces).count(b"body") == 3, "all are answered")
    connection.connection_lost(None)
    assert order == ["/0", "100000", "/1", "100000", "/2", "100000"]


def test_a_client_a_principal_and_all_together_have_bounds() -> None:
    memory = Memory(1000)
    memory.share = 500
    with contextlib.ExitStack() as stack:

        def charge(client: str, principal: str) -> Callable[[int], bool]:
            return stack.enter_context(memory.charge(client, principal))

        first = charge("c0", "ada")
        assert first(250) and not first(251), "a quarter for a client"
        for client, principal, size, is_taken in (
            ("c0", "ada", 1, False),
            ("c1", "ada", 250, True),
            # Half for a principal.
            ("c2", "ada", 1, False),
            ("e0", "eve", 250, True),
            ("e1", "eve", 250, True),
            ("z", "zoe", 1, False),
        ):
            assert charge(client, principal)(size) is is_taken
        assert memory.held == 1000
        assert first(10) and memory.held == 760
    assert memory.held == 0
    with memory.charge("same", "same") as held:
        assert held(250), "a client named like a principal is not one"
