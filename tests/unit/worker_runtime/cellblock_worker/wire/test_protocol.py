"""Messages of hosts, workers and brokers; and the frame codec: any chunking, caps before decoding, hostile headers, no
life after an error, a short run of `scripts/fuzz_frames`, and proof that its oracle can fail."""

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import msgpack
import msgspec
import pytest
import zmq
from hypothesis import given, strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import MAX_HEADER_BYTES, FrameDecoder, FrameError, encode_frame, pack_header
from cellblock_worker.wire.loop_socket import LoopSocket, Watch
from cellblock_worker.wire.protocol import MAX_CALL_ID, MAX_NAME_CHARS, Message
from fuzz import oracle
from fuzz.campaign import fuzz
from fuzz.mutate import packed
from support.nesting import listed, nested
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
    assert {type(message) for message in MESSAGES} == known == set(Message.__subclasses__())


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


def test_how_versions_tell_each_other_that_they_do_not_fit_stays() -> None:
    """Hosts of every version read it, whatever else has changed: change neither the message nor this test."""
    assert wire(protocol.Shutdown(why="no")) == {"t": "shutdown", "why": "no", "final": False}
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
    await within(arrived.wait())
    heard.close()
    context.destroy(linger=0)


FRAME_CAP = 64 * 1024

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40)
headers = st.dictionaries(st.text(max_size=20), scalars | st.lists(scalars, max_size=3), max_size=4)
frames = st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=4)


def peak_of(feed: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives, and the memory that it took at most."""
    tracemalloc.start()
    try:
        return feed(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def prefix(length: int, header: int) -> bytes:
    return struct.pack(">IH", length, header)


@pytest.mark.slow
@given(frames, st.data())
def test_round_trip_through_any_chunking(
    sent: list[tuple[dict[str, Any], bytes]], data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(pack_header(header), body) for header, body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    outcome = oracle.examine(stream, chunks)
    assert [(frame.header, frame.body) for frame in outcome.frames] == sent
    assert (outcome.error, outcome.pending) == (None, 0)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_frames_or_a_frame_error(noise: bytes) -> None:
    """And one that has failed gives nothing more and holds nothing."""
    oracle.examine(noise, [noise])


def test_a_frame_at_the_cap_passes_and_one_over_it_is_refused_by_its_prefix_alone() -> None:
    header = pack_header({"t": "log"})
    cap = 2 + len(header) + 100
    assert len(FrameDecoder(cap).feed(encode_frame(header, b"x" * 100))) == 1
    with pytest.raises(FrameError, match=f"over the cap of {cap}"):
        FrameDecoder(cap).feed(encode_frame(header, b"x" * 101)[:6])


def test_a_claimed_length_reserves_no_memory() -> None:
    decoder = FrameDecoder(2**32)
    found, peak = peak_of(lambda: decoder.feed(prefix(2**32 - 1, 4)))
    assert (found, len(decoder._buffer)) == ([], 6)
    assert peak < 64 * 1024


@pytest.mark.parametrize(
    "stream",
    [
        prefix(0, 0),
        prefix(1, 0),
        prefix(5, 4),
        prefix(MAX_HEADER_BYTES + 100, MAX_HEADER_BYTES + 1),
        prefix(2**32 - 1, 0) + b"x" * 1000,
    ],
    ids=["no room for the header length", "odd", "header over the frame", "header over its cap", "huge"],
)
def test_after_an_impossible_prefix_a_stream_gives_nothing_more_and_holds_nothing(stream: bytes) -> None:
    decoder = FrameDecoder(FRAME_CAP)
    for said in (None, "already failed"):
        with pytest.raises(FrameError, match=said):
            decoder.feed(stream)
        assert len(decoder._buffer) == 0


HOSTILE = [
    b"",
    b"\xc1",
    packed([1]),
    packed("text"),
    packed(None),
    packed({1: "a"}),
    packed({b"k": 1}),
    packed({"a": 1}) + b"\x00",
    packed({"a": 1})[:-1],
    b"\x81\xa1\xff\x01",
    b"\x81\xa1a\xa1\xff",
    b"\x81\xa1t\xa1\xff",
    b"\x83\xa1t\xa3log\xa5level\xa3\xff\xff\xff\xa2ms\x01",
    b"\x82\xa1t\xa5ended\xa6detail\xa1\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x81\xa1a\xdd\xff\xff\xff\xff",
    b"\x81\xa1a\xdb\xff\xff\xff\xff",
    b"\x81\xa1a\xc7\x01\x05\x00",
    b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",
    b"\x81\xa1a" + b"\x91" * 8000 + b"\x00",
    packed({str(index): 0 for index in range(65)}),
    packed({"a": [0] * (65)}),
    packed({"a": "x" * MAX_HEADER_BYTES}),
]


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: bytes(raw[:8]).hex() or "empty")
def test_hostile_headers_are_frame_errors(raw: bytes) -> None:
    for read in oracle.PARSERS:
        with pytest.raises(FrameError):
            read(raw)


def test_a_bomb_of_empty_maps_never_reaches_the_decoder_as_a_body() -> None:
    bomb = b"\x80" * FRAME_CAP
    header = pack_header({"t": "done"})
    found, peak = peak_of(lambda: FrameDecoder(2 * FRAME_CAP).feed(encode_frame(header, bomb)))
    assert found == [(header, bomb)]
    # Copied a few times, but decoding it would take 75 bytes for each of its own.
    assert peak < 8 * FRAME_CAP


@pytest.mark.parametrize(
    "header",
    [
        {"a": 2**64},
        {"a": -(2**63) - 1},
        {"a": object()},
        {"a": "\ud800"},
        {"a": "x" * MAX_HEADER_BYTES},
        {"a": nested(2000, listed, 0)},
    ],
    ids=["over 64 bits", "under 64 bits", "an object", "a lone surrogate", "over the cap", "too deep"],
)
def test_what_cannot_be_packed_is_a_frame_error(header: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        pack_header(header)


def test_a_frame_is_admitted_once_by_its_header_before_its_body_is_collected() -> None:
    asked: list[tuple[bytes, int]] = []

    def admits(raw_header: bytes, body_bytes: int) -> None:
        asked.append((raw_header, body_bytes))
        if body_bytes > 4:
            raise FrameError("not this one")

    decoder = FrameDecoder(FRAME_CAP, admits)
    kept = pack_header({"t": "x"})
    data = encode_frame(kept, b"body") + encode_frame(kept)
    found: list[tuple[bytes, bytes]] = []
    for at in range(len(data)):
        found += decoder.feed(data[at : at + 1])
        assert len(decoder._buffer) < 6 + len(kept) + 4
    assert found == [(kept, b"body"), (kept, b"")]
    assert asked == [(kept, 4), (kept, 0)] and len(decoder._buffer) == 0
    assert FrameDecoder(FRAME_CAP, admits).feed(data) == found
    with pytest.raises(FrameError, match="not this one"):
        decoder.feed(encode_frame(kept, b"x" * 40_000)[: 6 + len(kept)])
    assert len(decoder._buffer) == 0


FRAMES = 20_000
STREAM = encode_frame(packed({"t": "log", "level": "log", "ms": 1}), b"text")
BROKEN = STREAM[:4] + b"\x00\x01" + STREAM[6:]


@pytest.mark.slow
def test_20000_mutated_frames_give_messages_or_the_defined_error_in_both_decoders() -> None:
    found = fuzz(FRAMES, seed=1)
    assert found.frames >= FRAMES
    assert found.accepted_frames > FRAMES / 20 and found.messages > FRAMES / 50
    assert sum(found.errors.values()) > FRAMES / 20 and found.behaviours > 100
    assert found.compared > 100 and found.both_accept > 20


def test_a_stream_that_holds() -> None:
    outcome = oracle.examine(STREAM, [STREAM[:3], STREAM[3:]])
    assert (len(outcome.frames), outcome.error, outcome.pending) == (1, None, 0)
    assert outcome.messages == 2  # from a worker, and from a host


def test_an_undefined_error_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("t")

    monkeypatch.setattr(FrameDecoder, "feed", broken)
    with pytest.raises(oracle.Violation, match="KeyError"):
        oracle.examine(STREAM, [STREAM])


def test_a_decoder_that_depends_on_chunks_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameDecoder.feed
    monkeypatch.setattr(
        FrameDecoder, "feed", lambda self, data: feed(self, data) if len(data) > 3 else feed(self, b"")
    )
    with pytest.raises(oracle.Violation, match="error depends on chunks"):
        oracle.examine(STREAM, [STREAM[:3], STREAM[3:]])


@pytest.mark.parametrize(
    ("stream", "sandbox", "said"),
    [
        (STREAM, {"frames": [], "error": "RangeError"}, "refuses"),
        (STREAM, {"frames": [], "error": "InternalError"}, "throws InternalError"),
        (STREAM, {"frames": [], "pending": 0}, "reads"),
        (
            STREAM,
            {"frames": [[{"t": "log", "level": "log", "ms": 2}, "dGV4dA==", ""]], "pending": 0},
            "reads",
        ),
        (BROKEN, {"frames": [], "pending": len(BROKEN)}, "accepts what the host refuses"),
    ],
    ids=["refused", "another error", "not read", "read otherwise", "accepted"],
)
def test_a_disagreement_of_the_decoders_is_a_violation(
    stream: bytes, sandbox: dict[str, Any], said: str
) -> None:
    with pytest.raises(oracle.Violation, match=said):
        oracle.agree(stream, oracle.examine(stream, [stream]), sandbox)
