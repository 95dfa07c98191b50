"""Frames the language server protocol over JSON-RPC 2.0, sans I/O, capped before anything is decoded."""

from __future__ import annotations

import json
from typing import Any, Final

from cellblock.base.json import is_object

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A script within the checker's cap that has an error in every token gives about 6 MB."""

MAX_HEADER_BYTES: Final = 256
"""A header is one `Content-Length: N` line, and perhaps a `Content-Type`."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"


class FramingError(ValueError):
    """The other end does not speak the protocol, or says more than it may; the text says which."""


def encode(message: dict[str, Any]) -> bytes:
    """Writes one message with its header. `jsonrpc` is added. Text is escaped to ASCII, so any string can be
    sent."""
    body = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()
    return b"Content-Length: %d%s%s" % (len(body), _END, body)


class Decoder:
    """Turns bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length: int | None = None

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Gives the messages that `data` completes.

        Raises:
            FramingError: A header or body is malformed or too long; nothing more can be read.
        """
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while True:
            if self._length is None:
                self._length = self._header()
            if self._length is None or len(self._buffer) < self._length:
                return messages
            body = bytes(self._buffer[: self._length])
            del self._buffer[: self._length]
            self._length = None
            try:
                message: object = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise FramingError(f"a message is no JSON: {error}") from None
            if not is_object(message):
                raise FramingError("a message is no object")
            messages.append(message)

    def _header(self) -> int | None:
        end = self._buffer.find(_END, 0, MAX_HEADER_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_HEADER_BYTES:
                raise FramingError("a header does not end")
            return None
        header = bytes(self._buffer[:end])
        del self._buffer[: end + len(_END)]
        for line in header.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == _LENGTH and value.strip().isdigit():
                length = int(value)
                if length > MAX_MESSAGE_BYTES:
                    raise FramingError(f"a message has {length} bytes, over {MAX_MESSAGE_BYTES}")
                return length
        raise FramingError("a header has no length")
