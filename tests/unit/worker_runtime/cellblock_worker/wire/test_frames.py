"""The frame codec: any chunking, caps before decoding, hostile headers, no life after an error; a short run of
`scripts/fuzz_frames`, and proof that its oracle can fail."""

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker.wire.frames import MAX_HEADER_BYTES, FrameDecoder, FrameError, encode_frame, pack_header
from fuzz import oracle, typescript
from fuzz.campaign import fuzz
from fuzz.mutate import packed
from fuzz.oracle import PARSERS
from support.nesting import listed, nested

CAP = 64 * 1024

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
    decoder = FrameDecoder(CAP)
    got: list[tuple[dict[str, Any], bytes]] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found = decoder.feed(stream[at : at + size])
        got += [(msgpack.unpackb(raw_header), body) for raw_header, body in found]
        at += size
    assert got == sent
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_frames_or_a_frame_error(noise: bytes) -> None:
    decoder = FrameDecoder(1024)
    try:
        found = decoder.feed(noise)
    except FrameError:
        with pytest.raises(FrameError):
            decoder.feed(b"")
    else:
        assert all(len(header) <= 200 and isinstance(body, bytes) for header, body in found)


def test_a_frame_at_the_cap_passes_and_one_over_it_is_refused_by_its_prefix_alone() -> None:
    header = pack_header({"t": "log"})
    cap = 2 + len(header) + 100
    assert len(FrameDecoder(cap).feed(encode_frame(header, b"x" * 100))) == 1
    with pytest.raises(FrameError, match=f"over the cap of {cap}"):
        FrameDecoder(cap).feed(encode_frame(header, b"x" * 101)[:6])


def test_a_claimed_length_reserves_no_memory() -> None:
    decoder = FrameDecoder(2**32)
    found, peak = peak_of(lambda: decoder.feed(prefix(2**32 - 1, 4)))
    assert (found, decoder.pending_bytes) == ([], 6)
    assert peak < 64 * 1024


@pytest.mark.parametrize(
    "stream",
    [
        prefix(0, 0),
        prefix(1, 0),
        prefix(5, 4),
        prefix(MAX_HEADER_BYTES + 100, MAX_HEADER_BYTES + 1),
        prefix(2**32 - 1, 0),
    ],
    ids=["no room for the header length", "odd", "header over the frame", "header over its cap", "huge"],
)
def test_impossible_prefixes(stream: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder(CAP).feed(stream)


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
    for read in PARSERS:
        with pytest.raises(FrameError):
            read(raw)


def test_a_bomb_of_empty_maps_never_reaches_the_decoder_as_a_body() -> None:
    bomb = b"\x80" * CAP
    header = pack_header({"t": "done"})
    found, peak = peak_of(lambda: FrameDecoder(2 * CAP).feed(encode_frame(header, bomb)))
    assert found == [(header, bomb)]
    # Copied a few times, but decoding it would take 75 bytes for each of its own.
    assert peak < 8 * CAP


def test_a_failed_stream_gives_nothing_more_and_holds_nothing() -> None:
    decoder = FrameDecoder(CAP)
    with pytest.raises(FrameError):
        decoder.feed(prefix(2**31, 0) + b"x" * 1000)
    assert decoder.pending_bytes == 0
    for _ in range(2):
        with pytest.raises(FrameError, match="already failed"):
            decoder.feed(encode_frame(pack_header({"t": "log"})))
    assert decoder.pending_bytes == 0


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

    decoder = FrameDecoder(CAP, admits)
    kept = pack_header({"t": "x"})
    data = encode_frame(kept, b"body") + encode_frame(kept)
    found: list[tuple[bytes, bytes]] = []
    for at in range(len(data)):
        found += decoder.feed(data[at : at + 1])
        assert decoder.pending_bytes < 6 + len(kept) + 4
    assert found == [(kept, b"body"), (kept, b"")]
    assert asked == [(kept, 4), (kept, 0)] and decoder.pending_bytes == 0
    assert FrameDecoder(CAP, admits).feed(data) == found
    with pytest.raises(FrameError, match="not this one"):
        decoder.feed(encode_frame(kept, b"x" * 40_000)[: 6 + len(kept)])
    assert decoder.pending_bytes == 0


FRAMES = 20_000
STREAM = encode_frame(packed({"t": "log", "level": "log", "ms": 1}), b"text")


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
    ("sandbox", "said"),
    [
        ({"frames": [], "error": "RangeError"}, "refuses"),
        ({"frames": [], "error": "InternalError"}, "throws InternalError"),
        ({"frames": [], "pending": 0}, "reads"),
        ({"frames": [[{"t": "log", "level": "log", "ms": 2}, "dGV4dA==", ""]], "pending": 0}, "reads"),
    ],
)
def test_a_disagreement_of_the_decoders_is_a_violation(sandbox: dict[str, Any], said: str) -> None:
    with pytest.raises(oracle.Violation, match=said):
        typescript.agree(STREAM, oracle.examine(STREAM, [STREAM]), sandbox)


def test_what_the_host_refuses_the_sandbox_must_refuse() -> None:
    broken = STREAM[:4] + b"\x00\x01" + STREAM[6:]
    outcome = oracle.examine(broken, [broken])
    with pytest.raises(oracle.Violation, match="accepts what the host refuses"):
        typescript.agree(broken, outcome, {"frames": [], "pending": len(broken)})
