"""Server-sent events are the same however they come in pieces."""

from __future__ import annotations

import random

from cellblock.upstream.events import EventSplitter

STREAM = (
    b': hello\n\nevent: message\r\nid: 7\r\ndata: {"a":1}\r\n\r\ndata:x\rdata: y\r\r\n\ndata\n\nretry: 5\n\n'
    b"data: last\n\nnever: ends"
)
DATA = [None, b'{"a":1}', b"x\ny", None, None, None, b"last"]


def test_events_at_any_cut() -> None:
    source = random.Random(7)
    for _ in range(500):
        splitter, found, at = EventSplitter(), list[bytes | None](), 0
        while at < len(STREAM):
            step = source.choice([1, 2, 3, 10, 100])
            found += [event.data for event in splitter.feed(STREAM[at : at + step])]
            at += step
        assert found == DATA
        assert splitter.held == len(b"never: ends")


def test_other_data_keeps_the_rest_of_an_event() -> None:
    (event,) = EventSplitter().feed(b"event: message\nid: 7\ndata: a\ndata: b\n\n")
    assert event.raw == b"event: message\nid: 7\ndata: a\ndata: b\n\n"
    assert event.with_data(b"[]") == b"event: message\nid: 7\ndata: []\n\n"
