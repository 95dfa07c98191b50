"""The frame codec between worker and host does no I/O, and caps what it decodes before it does.

One frame, all integers big-endian::

    u32 length   bytes that follow (2 + header length + body length)
    u16 header   length of the header
    ...          header: one msgpack map, small, validated by `protocol`
    ...          body: opaque bytes (JSON or UTF-8 text by the message's definition)

The split keeps untrusted payloads out of the msgpack decoder: a header of at most 16 KiB can decode to
little, and a body is only ever copied. Over ZeroMQ the same header and body travel as two message parts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

MAX_HEADER_BYTES: Final = 16 * 1024
"""Caps one header: tool names and ids fit many times over."""

PREFIX_BYTES: Final = 6

_prefix = struct.Struct(">IH")


class FrameError(ValueError):
    """Tells that the peer sent bytes that are no frame, or a frame over a cap. The stream cannot be continued."""


def pack_header(header: dict[str, Any] | msgspec.Struct) -> bytes:
    """Encodes a header map.

    Raises:
        FrameError: The header is over `MAX_HEADER_BYTES` or holds what msgpack cannot carry.
    """
    try:
        raw = msgspec.msgpack.encode(header)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FrameError(f"header cannot be encoded: {error}") from None
    if len(raw) > MAX_HEADER_BYTES:
        raise FrameError(f"header is over {MAX_HEADER_BYTES} bytes")
    return raw


def encode_frame(raw_header: bytes, body: bytes = b"") -> bytes:
    return b"".join((_prefix.pack(2 + len(raw_header) + len(body), len(raw_header)), raw_header, body))


class FrameDecoder:
    """Turns a byte stream into frames; feed it bytes as they come.

    Args:
        max_frame_bytes: Cap of the whole frame, checked before its bytes are collected.
        admits: Told of each frame once, when its header is there and before its body is collected: the encoded header
            and the length of the body in bytes. FrameError ends the stream.
    """

    def __init__(
        self, max_frame_bytes: int, admits: Callable[[bytes, int], object] = lambda _header, _size: None
    ) -> None:
        self._max = max_frame_bytes
        self._admits = admits
        self._buffer = bytearray()
        self._admitted = self._failed = False

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Adds bytes and returns the frames that are now whole: the encoded header and the body of each.

        Raises:
            FrameError: Once raised, the stream is over and every further call raises.
        """
        if self._failed:
            raise FrameError("stream already failed")
        self._buffer += data
        frames: list[tuple[bytes, bytes]] = []
        buffer, start = self._buffer, 0
        try:
            while len(buffer) - start >= PREFIX_BYTES:
                length, header_length = _prefix.unpack_from(buffer, start)
                if length > self._max:
                    raise FrameError(f"frame of {length} bytes is over the cap of {self._max}")
                if header_length > MAX_HEADER_BYTES or header_length + 2 > length:
                    raise FrameError("header length does not fit the frame")
                end = start + 4 + length
                body_start = start + PREFIX_BYTES + header_length
                if len(buffer) < (end if self._admitted else body_start):
                    break
                raw_header = bytes(buffer[start + PREFIX_BYTES : body_start])
                if not self._admitted:
                    self._admits(raw_header, end - body_start)
                    self._admitted = True
                    if len(buffer) < end:
                        break
                frames.append((raw_header, bytes(buffer[body_start:end])))
                self._admitted = False
                start = end
        except FrameError:
            self._failed = True
            buffer.clear()
            raise
        if start:
            del buffer[:start]
        return frames
