"""ZeroMQ sockets on the loop: order, backlog past the high-water mark, peers that are not there."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from cellblock_worker.wire import loop_socket
from cellblock_worker.wire.loop_socket import LoopSocket, PeerUnreachable

BOUND = 20.0
Context = Any


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context(io_threads=1)
    yield made
    made.destroy(linger=0)


class Inbox:
    """Collects messages and wakes who waits for a number of them."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self._changed = asyncio.Event()

    def __call__(self, parts: list[bytes]) -> None:
        self.messages.append(parts)
        self._changed.set()

    async def until(self, count: int) -> list[list[bytes]]:
        async with asyncio.timeout(BOUND):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.messages


class Pair:
    """A ROUTER and a DEALER called `peer`, connected."""

    def __init__(self, context: Context, endpoint: str, *, cap: int = 1 << 20) -> None:
        self.at_router, self.at_dealer = Inbox(), Inbox()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router = LoopSocket(router, max_message_bytes=cap, on_message=self.at_router)
        self.router.bind(endpoint)
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, b"peer")
        self.dealer = LoopSocket(dealer, max_message_bytes=cap, on_message=self.at_dealer)
        self.dealer.connect(endpoint)

    def close(self) -> None:
        self.router.close()
        self.dealer.close()


MakePair = Callable[..., Pair]


@pytest.fixture(params=["inproc", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inproc://pair" if request.param == "inproc" else f"ipc://{tmp_path}/s"


def numbered(count: int) -> list[list[bytes]]:
    return [[b"", str(index).encode(), b"x" * 100] for index in range(count)]


async def test_both_directions_keep_their_order(context: Context, endpoint: str) -> None:
    pair = Pair(context, endpoint)
    sent = numbered(3000)
    for parts in sent:
        pair.dealer.send(parts)
    assert await pair.at_router.until(3000) == [[b"peer", *parts] for parts in sent]
    for parts in sent:
        pair.router.send([b"peer", *parts])
    assert await pair.at_dealer.until(3000) == sent
    pair.close()


async def test_a_message_sent_before_the_peer_exists_arrives_when_it_does(
    context: Context, tmp_path: Path
) -> None:
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1000, on_message=Inbox())
    dealer.connect(f"ipc://{tmp_path}/late")
    dealer.send([b"early"])
    inbox = Inbox()
    router = LoopSocket(context.socket(zmq.ROUTER), max_message_bytes=1000, on_message=inbox)
    router.bind(f"ipc://{tmp_path}/late")
    assert (await inbox.until(1))[0][1:] == [b"early"]
    router.close()
    dealer.close()


async def test_past_the_high_water_mark_messages_wait_here_and_keep_their_order(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 5)
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1 << 20, on_message=Inbox())
    inbox = Inbox()
    router = LoopSocket(context.socket(zmq.ROUTER), max_message_bytes=1 << 20, on_message=inbox)
    # Within one process there must be something to connect to.
    steps = [lambda: dealer.connect(endpoint), lambda: router.bind(endpoint)]
    first, second = steps if endpoint.startswith("ipc") else reversed(steps)
    sent = numbered(500)
    first()
    if endpoint.startswith("inproc"):
        second()
    for parts in sent:
        dealer.send(parts)
    if endpoint.startswith("ipc"):
        second()
    got = await inbox.until(500)
    assert [parts[1:] for parts in got] == sent
    router.close()
    dealer.close()


async def test_a_peer_that_never_reads_is_unreachable_at_the_backlogs_cap(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 2)
    monkeypatch.setattr(loop_socket, "BACKLOG_CAP", 10)
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1000, on_message=Inbox())
    dealer.connect(f"ipc://{tmp_path}/nobody")
    sent = 0
    with pytest.raises(PeerUnreachable, match="over 10 messages"):
        for _ in range(100):
            dealer.send([b"x"])
            sent += 1
    assert 10 <= sent <= 20
    dealer.close()


async def test_an_unknown_peer_of_a_router_is_unreachable_at_once(context: Context, endpoint: str) -> None:
    pair = Pair(context, endpoint)
    with pytest.raises(PeerUnreachable):
        pair.router.send([b"stranger", b"x"])
    pair.dealer.send([b"hello"])
    await pair.at_router.until(1)
    pair.router.send([b"peer", b"back"])
    assert await pair.at_dealer.until(1) == [[b"back"]]
    pair.close()


async def test_a_peer_that_has_gone_becomes_unreachable(context: Context, tmp_path: Path) -> None:
    pair = Pair(context, f"ipc://{tmp_path}/s")
    pair.dealer.send([b"hello"])
    await pair.at_router.until(1)
    pair.dealer.close()

    def fails() -> bool:
        try:
            pair.router.send([b"peer", b"x"])
        except PeerUnreachable:
            return True
        return False

    async with asyncio.timeout(BOUND):
        while not fails():  # noqa: ASYNC110 - the socket has no event for it
            await asyncio.sleep(0.01)
    pair.close()


async def test_a_message_over_the_cap_never_arrives_and_cuts_its_sender_off(
    context: Context, tmp_path: Path
) -> None:
    pair = Pair(context, f"ipc://{tmp_path}/s", cap=1000)
    pair.dealer.send([b"before"])
    await pair.at_router.until(1)
    pair.dealer.send([b"x" * 1001])
    async with asyncio.timeout(BOUND):
        # What was on its way when the connection was cut is lost with it; the next connection is a new one.
        while len(pair.at_router.messages) < 2:
            pair.dealer.send([b"after"])
            await asyncio.sleep(0.02)
    assert {parts[1] for parts in pair.at_router.messages} == {b"before", b"after"}
    pair.close()


async def test_an_error_of_the_receiver_does_not_hold_up_the_messages_behind(
    context: Context, endpoint: str
) -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _loop, details: reported.append(details.get("exception")))
    inbox = Inbox()

    def faulty(parts: list[bytes]) -> None:
        if parts[-1] == b"bad":
            raise RuntimeError("a defect of the receiver")
        inbox(parts)

    router = LoopSocket(context.socket(zmq.ROUTER), max_message_bytes=1000, on_message=faulty)
    router.bind(endpoint)
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1000, on_message=Inbox())
    dealer.connect(endpoint)
    for body in (b"bad", b"bad", b"good"):
        dealer.send([body])
    messages = await inbox.until(1)
    assert messages[0][-1] == b"good"
    assert [str(error) for error in reported] == ["a defect of the receiver"] * 2
    loop.set_exception_handler(None)
    router.close()
    dealer.close()


async def most_in_a_turn(inbox: Inbox, count: int) -> int:
    """How many messages came at most while another task of the loop had one turn."""
    loop = asyncio.get_running_loop()
    seen_at_turn: list[int] = []

    def turn() -> None:
        seen_at_turn.append(len(inbox.messages))
        if seen_at_turn[-1] < count:
            loop.call_soon(turn)

    loop.call_soon(turn)
    await inbox.until(count)
    return max((after - before for before, after in itertools.pairwise(seen_at_turn)), default=0)


async def test_a_flood_leaves_turns_to_others(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_socket, "LOOK_BATCH", 50)
    pair = Pair(context, "inproc://flood")
    for parts in numbered(5000):
        pair.dealer.send(parts)
    assert await most_in_a_turn(pair.at_router, 5000) <= 100
    pair.close()


async def test_close_is_final_and_may_come_twice(context: Context, endpoint: str) -> None:
    pair = Pair(context, endpoint)
    pair.close()
    pair.close()
    with pytest.raises(PeerUnreachable):
        pair.dealer.send([b"x"])


async def test_closing_from_inside_a_message_is_safe(context: Context, endpoint: str) -> None:
    got: list[list[bytes]] = []
    done = asyncio.Event()

    def last(parts: list[bytes]) -> None:
        got.append(parts)
        router.close()
        done.set()

    router = LoopSocket(context.socket(zmq.ROUTER), max_message_bytes=1000, on_message=last)
    router.bind(endpoint)
    dealer = LoopSocket(context.socket(zmq.DEALER), max_message_bytes=1000, on_message=Inbox())
    dealer.connect(endpoint)
    for _ in range(3):
        dealer.send([b"x"])
    async with asyncio.timeout(BOUND):
        await done.wait()
    await asyncio.sleep(0)
    assert len(got) == 1
    dealer.close()


async def test_a_peer_that_does_not_read_holds_up_no_other_and_no_core(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 5)
    pair = Pair(context, f"ipc://{tmp_path}/s")
    deaf = context.socket(zmq.DEALER)
    deaf.setsockopt(zmq.IDENTITY, b"deaf")
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.connect(f"ipc://{tmp_path}/s")
    deaf.send(b"hello")
    pair.dealer.send([b"hello"])
    await pair.at_router.until(2)
    count = 600
    for number in range(count):
        # Long enough that the kernel's buffers do not take all of them.
        pair.router.send([b"deaf", str(number).encode(), b"x" * 10_000])
    sent = [[str(number).encode()] for number in range(50)]
    for parts in sent:
        pair.router.send([b"peer", *parts])
        pair.dealer.send(parts)
    assert await pair.at_dealer.until(50) == sent
    await pair.at_router.until(52)
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.25, "it spins"
    # Once it reads, it gets all of it, in order.
    got: list[bytes] = []
    async with asyncio.timeout(BOUND):
        while len(got) < count:
            try:
                got.append(deaf.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                await asyncio.sleep(0.001)
    assert got == [str(number).encode() for number in range(count)]
    deaf.close()
    pair.close()


async def test_messages_that_take_long_leave_turns_to_others(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "LOOK_SECONDS", 0.02)
    pair = Pair(context, "inproc://long")
    hear = pair.at_router.__call__

    def slowly(parts: list[bytes]) -> None:
        time.sleep(0.01)
        hear(parts)

    monkeypatch.setattr(pair.router, "_on_message", slowly)
    for parts in numbered(40):
        pair.dealer.send(parts)
    assert await most_in_a_turn(pair.at_router, 40) <= 6
    pair.close()
