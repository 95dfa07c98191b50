"""Reads the messages of an event stream, as the relay passes them on."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cellblock.frontend.relay.channel import MAX_MESSAGE_BYTES, Broken
from cellblock.upstream.events import EventSplitter


async def messages_in(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Gives the data of each event that is a message.

    Raises:
        Broken: One is too large, or the stream breaks.
    """
    splitter = EventSplitter()
    async for piece in pieces:
        for event in splitter.feed(piece):
            kinds = {line.partition(b":")[2].strip() for line in event.lines if line.startswith(b"event:")}
            if event.data and kinds <= {b"message"}:
                yield event.data
        if splitter.held > MAX_MESSAGE_BYTES:
            raise Broken(f"a message has over {MAX_MESSAGE_BYTES} bytes")
