"""Messages of an event stream, however it is cut into pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cellblock.frontend.relay import channel
from cellblock.frontend.relay.channel import Broken, messages_in

STREAM = (
    b": sign of life\r\n\r\nevent: message\r\nid: 1\r\ndata: {\xc3\xbc}\r\n\r\ndata:a\ndata:  b\n\n"
    b"event: other\ndata: no\n\nid: 2\ndata:\n\nretry: 5\n\ndata: last\r\n\r\ndata: unfinished\n"
)
MESSAGES = [b"{\xc3\xbc}", b"a\n b", b"last"]


async def cut(stream: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(stream), size):
        yield stream[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
async def test_pieces_of_any_size_give_the_same_messages(size: int) -> None:
    assert [message async for message in messages_in(cut(STREAM, size))] == MESSAGES


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 2_000, b"data: " + b"x\ndata: " * 2_000])
async def test_a_message_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, stream: bytes) -> None:
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", 1_000)
    with pytest.raises(Broken, match="1000 bytes"):
        async for _ in messages_in(cut(stream, 100)):
            pass
