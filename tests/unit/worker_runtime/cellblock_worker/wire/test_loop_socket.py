"""ZeroMQ sockets on the loop: order, backlog past the high-water mark, peers that are not there."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zmq

from cellblock_worker.wire import loop_socket
from cellblock_worker.wire.loop_socket import LoopSocket, PeerUnreachable
from support.waits import until

BOUND = 60.0
OnMessage = Callable[[list[bytes]], None]


class Inbox:
    """Collects messages."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def __call__(self, parts: list[bytes]) -> None:
        self.messages.append(parts)

    async def until(self, count: int) -> list[list[bytes]]:
        await until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages


class Sockets:
    """Sockets of one context, which are closed after the test."""

    def __init__(self) -> None:
        self.context: Any = zmq.Context(io_threads=1)
        self._made: list[LoopSocket] = []

    def make(
        self, kind: int, on_message: OnMessage | None = None, *, cap: int = 1 << 20, **options: Any
    ) -> LoopSocket:
        socket = self.context.socket(kind)
        for name, value in options.items():
            setattr(socket, name, value)
        self._made.append(LoopSocket(socket, max_message_bytes=cap, on_message=on_message or Inbox()))
        return self._made[-1]

    def close(self) -> None:
        for one in self._made:
            one.close()
        self.context.destroy(linger=0)


@pytest.fixture
async def sockets() -> AsyncIterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


class Pair:
    """A ROUTER and a DEALER called `peer`, connected."""

    def __init__(
        self, sockets: Sockets, endpoint: str, *, cap: int = 1 << 20, heard: OnMessage | None = None
    ) -> None:
        self.at_router, self.at_dealer = Inbox(), Inbox()
        self.router = sockets.make(zmq.ROUTER, heard or self.at_router, cap=cap, router_mandatory=1)
        self.router.bind(endpoint)
        self.dealer = sockets.make(zmq.DEALER, self.at_dealer, cap=cap, identity=b"peer")
        self.dealer.connect(endpoint)


@pytest.fixture(params=["inproc", "ipc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inproc://pair" if request.param == "inproc" else f"ipc://{tmp_path}/s"


def send_all(socket: LoopSocket, messages: Iterable[list[bytes]]) -> None:
    for parts in messages:
        socket.send(parts)


def numbered(count: int) -> list[list[bytes]]:
    return [[b"", str(index).encode(), b"x" * 100] for index in range(count)]


async def test_both_directions_keep_their_order(sockets: Sockets, endpoint: str) -> None:
    pair = Pair(sockets, endpoint)
    sent = numbered(3000)
    told = [[b"peer", *parts] for parts in sent]
    send_all(pair.dealer, sent)
    assert await pair.at_router.until(3000) == told
    send_all(pair.router, told)
    assert await pair.at_dealer.until(3000) == sent


async def test_past_the_high_water_mark_messages_wait_here_and_keep_their_order(
    sockets: Sockets, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 5)
    dealer, inbox = sockets.make(zmq.DEALER), Inbox()
    router, sent = sockets.make(zmq.ROUTER, inbox), numbered(500)
    # Within one process there must be something to connect to.
    if endpoint.startswith("inproc"):
        router.bind(endpoint)
    dealer.connect(endpoint)
    send_all(dealer, sent)
    if endpoint.startswith("ipc"):
        router.bind(endpoint)
    assert [parts[1:] for parts in await inbox.until(500)] == sent


async def test_a_peer_that_never_reads_is_unreachable_at_the_backlogs_cap(
    sockets: Sockets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 2)
    monkeypatch.setattr(loop_socket, "BACKLOG_CAP", 10)
    dealer = sockets.make(zmq.DEALER)
    dealer.connect(f"ipc://{tmp_path}/nobody")
    sent = 0
    with pytest.raises(PeerUnreachable, match="over 10 messages"):
        for _ in range(100):
            dealer.send([b"x"])
            sent += 1
    assert 10 <= sent <= 20


async def test_an_unknown_peer_of_a_router_is_unreachable_at_once(sockets: Sockets, endpoint: str) -> None:
    pair = Pair(sockets, endpoint)
    with pytest.raises(PeerUnreachable):
        pair.router.send([b"stranger", b"x"])
    pair.dealer.send([b"hello"])
    await pair.at_router.until(1)
    pair.router.send([b"peer", b"back"])
    assert await pair.at_dealer.until(1) == [[b"back"]]


async def test_a_peer_that_has_gone_becomes_unreachable(sockets: Sockets, tmp_path: Path) -> None:
    pair = Pair(sockets, f"ipc://{tmp_path}/s")
    pair.dealer.send([b"hello"])
    await pair.at_router.until(1)
    pair.dealer.close()

    def fails() -> bool:
        try:
            pair.router.send([b"peer", b"x"])
        except PeerUnreachable:
            return True
        return False

    await until(fails, "sending fails")


async def test_a_message_over_the_cap_never_arrives_and_cuts_its_sender_off(
    sockets: Sockets, tmp_path: Path
) -> None:
    pair = Pair(sockets, f"ipc://{tmp_path}/s", cap=1000)
    pair.dealer.send([b"before"])
    await pair.at_router.until(1)
    pair.dealer.send([b"x" * 1001])
    async with asyncio.timeout(BOUND):
        # What was on its way when the connection was cut is lost with it; the next connection is a new one.
        while len(pair.at_router.messages) < 2:
            pair.dealer.send([b"after"])
            await asyncio.sleep(0.02)
    assert {parts[1] for parts in pair.at_router.messages} == {b"before", b"after"}


async def test_an_error_of_the_receiver_does_not_hold_up_the_messages_behind(
    sockets: Sockets, endpoint: str
) -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _loop, details: reported.append(details.get("exception")))

    def faulty(parts: list[bytes]) -> None:
        if parts[-1] == b"bad":
            raise RuntimeError("a defect of the receiver")
        pair.at_router(parts)

    pair = Pair(sockets, endpoint, heard=faulty)
    send_all(pair.dealer, [[b"bad"], [b"bad"], [b"good"]])
    assert await pair.at_router.until(1) == [[b"peer", b"good"]]
    assert [str(error) for error in reported] == ["a defect of the receiver"] * 2
    loop.set_exception_handler(None)


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


async def test_close_is_final_and_may_come_twice(sockets: Sockets, endpoint: str) -> None:
    pair = Pair(sockets, endpoint)
    for _ in range(2):
        pair.dealer.close()
    with pytest.raises(PeerUnreachable):
        pair.dealer.send([b"x"])


async def test_closing_from_inside_a_message_is_safe(sockets: Sockets, endpoint: str) -> None:

    def last(parts: list[bytes]) -> None:
        pair.at_router(parts)
        pair.router.close()

    pair = Pair(sockets, endpoint, heard=last)
    send_all(pair.dealer, [[b"x"]] * 3)
    await pair.at_router.until(1)
    await asyncio.sleep(0)
    assert pair.at_router.messages == [[b"peer", b"x"]]


async def test_a_peer_that_does_not_read_holds_up_no_other_and_no_core(
    sockets: Sockets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_socket, "SEND_HIGH_WATER_MARK", 5)
    pair = Pair(sockets, f"ipc://{tmp_path}/s")
    deaf = sockets.context.socket(zmq.DEALER)
    deaf.identity, deaf.rcvhwm, deaf.linger = b"deaf", 1, 0
    deaf.connect(f"ipc://{tmp_path}/s")
    deaf.send(b"hello")
    pair.dealer.send([b"hello"])
    await pair.at_router.until(2)
    # Long enough that the kernel's buffers do not take all of them.
    send_all(pair.router, ([b"deaf", str(number).encode(), b"x" * 10_000] for number in range(600)))
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
        while len(got) < 600:
            try:
                got.append(deaf.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                await asyncio.sleep(0.001)
    assert got == [str(number).encode() for number in range(600)]
    deaf.close()


@pytest.mark.parametrize(
    ("bound", "value", "seconds", "count", "most"),
    [("DRAIN_BATCH", 50, 0.0, 5000, 100), ("DRAIN_SECONDS", 0.02, 0.01, 40, 6)],
    ids=["a flood", "messages that take long"],
)
async def test_messages_leave_turns_to_others(
    bound: str, value: float, seconds: float, count: int, most: int,
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(loop_socket, bound, value)

    def slowly(parts: list[bytes]) -> None:
        time.sleep(seconds)
        pair.at_router(parts)

    pair = Pair(sockets, "inproc://many", heard=slowly)
    send_all(pair.dealer, numbered(count))
    assert await most_in_a_turn(pair.at_router, count) <= most
