"""Server-sent events are the same however they come in pieces."""

from __future__ import annotations

import random

import pytest

from cellblock.tools.upstream.events import EventSplitter

STREAM = (
    b': hello\n\nevent: message\r\nid: 7\r\ndata: {"a":1}\r\n\r\ndata:x\rdata: y\r\r\n\ndata\n\nretry: 5\n\n'
    b"data: last\n\nnever: ends"
)
DATA = [b'{"a":1}', b"x\ny", b"last"]


def test_events_at_any_cut() -> None:
    source = random.Random(7)
    for _ in range(500):
        splitter, found, at = EventSplitter(), list[bytes | None](), 0
        while at < len(STREAM):
            step = source.choice([1, 2, 3, 10, 100])
            found += [event.data for event in splitter.feed(STREAM[at : at + step]) if event.data]
            at += step
        assert found == DATA
        assert splitter.held == len(b"never: ends")


def test_other_data_keeps_the_rest_of_an_event() -> None:
    (event,) = EventSplitter().feed(b"event: message\nid: 7\ndata: a\ndata: b\n\n")
    assert event.raw == b"event: message\nid: 7\ndata: a\ndata: b\n\n"
    assert event.with_data(b"[]") == b"event: message\nid: 7\ndata: []\n\n"


def test_of_events_without_data_the_last_position_is_left() -> None:
    found = EventSplitter().feed(b": x\n\nid: 7\ndata:\n\nid: 8\n\n\n\nretry: 500\n\n" * 100 + b"data: a\n\n")
    assert [event.raw for event in found] == [b"id: 8\nretry: 500\ndata:\n\n", b"data: a\n\n"]


@pytest.mark.parametrize(
    ("said", "meant"), [(b"0", 100), (b"-5", 100), (b"", 100), (b"500", 500), (b"9" * 5000, 30_000)]
)
def test_a_stream_is_asked_for_again_within_bounds(said: bytes, meant: int) -> None:
    (event,) = EventSplitter().feed(b"retry: " + said + b"\ndata: a\n\n")
    assert event.raw == b"retry: %d\ndata: a\n\n" % meant
