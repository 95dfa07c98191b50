"""Messages of an event stream. Its lines end with LF or CR LF, as every daemon writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cellblock.frontend.relay.channel import MAX_MESSAGE_BYTES, Broken


async def messages_in(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that is a message.

    Raises:
        Broken: One is too large, or the stream breaks.
    """
    rest, searched, size = bytearray(), 0, 0
    kind, data = b"message", list[bytes]()
    async for piece in pieces:
        rest += piece
        start = 0
        while (end := rest.find(b"\n", max(start, searched))) >= 0:
            line = bytes(rest[start:end]).removesuffix(b"\r")
            start = end + 1
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data" and line:
                data.append(value)
                size += len(value)
            elif name == b"event" and line:
                kind = value
            elif not line:
                if kind == b"message" and any(data):
                    yield b"\n".join(data)
                kind, data, size = b"message", [], 0
        del rest[:start]
        searched = len(rest)
        if size + len(rest) > MAX_MESSAGE_BYTES:
            raise Broken(f"a message has over {MAX_MESSAGE_BYTES} bytes")
