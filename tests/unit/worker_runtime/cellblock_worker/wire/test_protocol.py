"""Messages of hosts, workers and brokers."""

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import msgpack
import msgspec
import pytest
import zmq

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError, pack_header
from cellblock_worker.wire.loop_socket import LoopSocket, Watch
from cellblock_worker.wire.protocol import MAX_CALL_ID, MAX_NAME_CHARS, Message
from support.waits import within

MESSAGES: list[Message] = [
    protocol.Ready(protocol=1),
    protocol.Log(level="warn", ms=3),
    protocol.Call(id=1, server="files", tool="read/ü"),
    protocol.Query(id=2, op="searchTools", events="c1795524565651*3a1"),
    protocol.Took(bytes=2**53 - 1),
    protocol.Notice(),
    protocol.Done(ms=2**53 - 1),
    protocol.Failed(ms=0, kind="rejection"),
    protocol.Noted(),
    protocol.Live(),
    protocol.Warm(),
    protocol.Start(log_bytes=0, message_bytes=1),
    protocol.Reply(id=MAX_CALL_ID, ok=False),
    protocol.Hello(protocol=1, pid=1, capacity=65535, deno="/deno", layers=["a", "b"]),
    protocol.Status(warm=0, booting=1, running=2, wanted=1),
    protocol.Grant(places=65535),
    protocol.Leased(wall_ms=0),
    protocol.Held(),
    protocol.Lent(cpu_ms=1, memory_bytes=2, log_bytes=3),
    protocol.Ended(reason="finished", outcome="rejection", wall_ms=1),
    protocol.Ended(reason="memory", detail="x", wall_ms=1, cpu_ms=2, peak_bytes=3, dropped_log_bytes=4),
    protocol.Run(timeout_ms=1, cpu_ms=2, memory_bytes=3, log_bytes=4, message_bytes=5, pause_ms=6),
    protocol.Pause(),
    protocol.Lend(),
    protocol.Repay(cpu_ms=5, log_bytes=0),
    protocol.Last(),
    protocol.Resume(),
    protocol.Cancel(),
    protocol.Granted(places=0),
    protocol.Demand(waiting=2**31 - 1),
    protocol.Keys(prefix="a"),
    protocol.Shutdown(),
]

Parse = Callable[[bytes], Message]
PARSERS: dict[str, tuple[Parse, tuple[type[Message], ...]]] = {
    "from_worker": (protocol.parse_from_worker, get_args(protocol.FromWorker)),
    "to_worker": (protocol.parse_to_worker, get_args(protocol.ToWorker)),
    "from_host": (protocol.parse_from_host, get_args(protocol.FromHost)),
    "to_host": (protocol.parse_to_host, get_args(protocol.ToHost)),
}


def wire(message: Message) -> dict[str, Any]:
    return msgpack.unpackb(message.packed())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.t)
def test_a_packed_message_has_all_its_fields_in_their_order(message: Message) -> None:
    assert message.packed() == pack_header(msgspec.to_builtins(message))
    assert list(wire(message)) == ["t", *message.__struct_fields__]


def test_the_examples_cover_every_message_of_every_direction() -> None:
    known = {kind for _, kinds in PARSERS.values() for kind in kinds}
    assert {type(message) for message in MESSAGES} == known
    assert known == set(Message.__subclasses__())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("direction", PARSERS)
def test_a_message_passes_where_it_belongs_and_nowhere_else(message: Message, direction: str) -> None:
    parse, kinds = PARSERS[direction]
    if isinstance(message, kinds):
        assert parse(message.packed()) == message
    else:
        with pytest.raises(FrameError):
            parse(message.packed())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_extra_missing_and_mistyped_fields_are_refused(message: Message) -> None:
    parse = next(parse for parse, kinds in PARSERS.values() if isinstance(message, kinds))
    header = wire(message)
    required = {field.name: field.required for field in msgspec.structs.fields(message)}
    with pytest.raises(FrameError):
        parse(pack_header({**header, "surprise": 1}))
    for name in header:
        without = {key: value for key, value in header.items() if key != name}
        if name == "t" or required[name]:
            with pytest.raises(FrameError):
                parse(pack_header(without))
        for wrong in ([1], 1.5, {"a": 1}, b"x"):
            with pytest.raises(FrameError):
                parse(pack_header({**header, name: wrong}))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"t": "nonsense"},
        {"t": 1},
        {"t": "call", "id": 0, "server": "a", "tool": "b"},
        {"t": "call", "id": MAX_CALL_ID + 1, "server": "a", "tool": "b"},
        {"t": "call", "id": True, "server": "a", "tool": "b"},
        {"t": "call", "id": "1", "server": "a", "tool": "b"},
        {"t": "call", "id": 1, "server": "", "tool": "b"},
        {"t": "call", "id": 1, "server": "a", "tool": "b" * (MAX_NAME_CHARS + 1)},
        {"t": "log", "level": "info", "ms": 1},
        {"t": "log", "level": "log", "ms": -1},
        {"t": "log", "level": "log", "ms": 2**53},
        {"t": "query", "id": 1, "op": "__proto__"},
        {"t": "ready", "protocol": 65536},
    ],
    ids=str,
)
def test_malformed_headers_of_workers(header: dict[str, Any]) -> None:
    with pytest.raises(FrameError, match="unknown or malformed"):
        protocol.parse_from_worker(pack_header(header))


def test_the_error_names_the_place_and_repeats_no_value() -> None:
    with pytest.raises(FrameError) as caught:
        protocol.parse_from_worker(pack_header({"t": "call", "id": "SECRET", "server": "a", "tool": "b"}))
    assert "`$.id`" in str(caught.value) and "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "message", [m for m in MESSAGES if isinstance(m, protocol.FromWorker)], ids=lambda m: m.t
)
def test_the_cap_of_a_workers_message_is_known_by_how_its_header_begins(message: protocol.FromWorker) -> None:
    raw = message.packed()
    caps = protocol.worker_caps(5_000, 7_000)
    cap = protocol.body_cap(message.max_body, message_bytes=5_000, log_bytes=7_000)
    assert caps[protocol.opening_of(raw)] == cap
    assert protocol.parse_from_worker(raw) == message
    turned = pack_header(dict(reversed(msgspec.to_builtins(message).items())))
    if turned != raw:
        assert protocol.opening_of(turned) not in caps
        with pytest.raises(FrameError, match="not canonical"):
            protocol.parse_from_worker(turned)


@pytest.mark.parametrize(
    "message", [m for m in MESSAGES if isinstance(m, protocol.FromHost)], ids=lambda m: m.t
)
def test_every_body_of_a_host_has_a_cap(message: protocol.FromHost) -> None:
    cap = protocol.body_cap(message.max_body, message_bytes=5_000, log_bytes=5_000)
    protocol.check_body(message, cap, 5_000)
    with pytest.raises(FrameError, match=f"over {cap}"):
        protocol.check_body(message, cap + 1, 5_000)
    assert cap <= protocol.part_cap(5_000) and cap <= 256 * 1024


def test_the_largest_message_fits_a_header() -> None:
    name = "\U0001f600" * MAX_NAME_CHARS
    assert wire(protocol.Call(id=MAX_CALL_ID, server=name, tool=name))["tool"] == name


def test_how_versions_tell_each_other_that_they_do_not_fit_stays() -> None:
    """Hosts of every version read it, whatever else has changed: change neither the message nor this test."""
    assert wire(protocol.Shutdown(why="no")) == {
        "t": "shutdown",
        "why": "no",
        "final": False,
    }
    hello = wire(protocol.Hello(protocol=9, pid=1, capacity=1, deno="", layers=[]))
    assert (hello["t"], hello["protocol"]) == ("hello", 9)


CAP = 1024


async def test_a_socket_that_is_watched_no_more_holds_up_no_other_of_its_context() -> None:
    """The thread that all sockets of a context share tells an event that comes after the end of the watch."""
    peer: Any = zmq.Context(io_threads=1)
    context: Any = zmq.Context(io_threads=1)
    connected = asyncio.Event()
    arrived = asyncio.Event()

    def on_event(event: zmq.Event, _: int) -> None:
        if event is zmq.Event.HANDSHAKE_SUCCEEDED:
            connected.set()

    listening = peer.socket(zmq.ROUTER)
    port = listening.bind_to_random_port("tcp://127.0.0.1")
    dealer = context.socket(zmq.DEALER)
    watch = Watch(dealer, on_event)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    await within(connected.wait())
    watch.close()
    peer.destroy(linger=0)

    pull = context.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    heard = LoopSocket(pull, max_message_bytes=CAP, on_message=lambda _: arrived.set())
    push = context.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{port}")
    push.send(b"x", zmq.NOBLOCK)
    # Not destroyed otherwise: that waits for the thread, too.
    await within(arrived.wait(), 20.0)
    heard.close()
    context.destroy(linger=0)
