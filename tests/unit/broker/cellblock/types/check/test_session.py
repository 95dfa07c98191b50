"""A compiler session: framing of the language server protocol."""

from __future__ import annotations

import pytest

from cellblock.base.offload.light import LIGHT_BYTES
from cellblock.types.check.session import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, Decoder, FramingError, encode


def test_messages_come_whole_however_they_are_cut() -> None:
    sent = encode({"id": 1, "result": "é\ud800"}) + encode({"method": "x"})
    decoder, found = Decoder(), []
    for index in range(len(sent)):
        found += decoder.feed(sent[index : index + 1])
    assert found == Decoder().feed(sent)
    assert [message.get("id") for message in found] == [1, None]
    assert found[0]["result"] == "é\ud800"


def test_other_header_lines_are_read_over() -> None:
    assert Decoder().feed(b"Content-Type: x\r\ncontent-length: 2\r\n\r\n{}") == [{}]


@pytest.mark.parametrize(
    "data",
    [
        b"X" * MAX_HEADER_BYTES,
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1e3\r\n\r\n",
        b"Hello\r\n\r\n",
        b"Content-Length: %d\r\n\r\n" % (MAX_MESSAGE_BYTES + 1),
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 2\r\n\r\n{]",
        b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        Decoder().feed(data)


def test_of_a_long_message_the_beginning_is_read() -> None:
    items = [{"message": "é" * 100, "range": {"start": {"line": number}}} for number in range(10_000)]
    sent = encode({"id": 7, "result": {"items": items}}) + encode({"id": 8})
    long, short = Decoder().feed(sent)
    found = long["result"]["items"]
    assert long["id"] == 7 and short["id"] == 8
    assert 200 < len(found) < LIGHT_BYTES // 100
    assert found == items[: len(found)], "one that is cut is none"
