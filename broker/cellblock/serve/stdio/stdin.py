"""Lines of standard input are read by the event loop instead of a thread.

The SDK reads stdin in a thread that nothing can interrupt: a server told to stop would stay, with its workers and
upstream servers, until its client closes the pipe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from typing import Final

from cellblock.serve.misread import id_at_the_end, id_at_the_start

logger = logging.getLogger("cellblock.serve")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Bounds one message of a client; a script is at most 1 MiB, and six times that when every character is escaped. An
answer to a server's question may have an image."""

EDGE_BYTES: Final = 256
"""Sets how many bytes are kept of either end of a line that is too long, to find its id."""


class LineTooLong(Exception):
    """Tells that a line has over `MAX_LINE_BYTES` bytes, and is dropped. `request_id` is its message's, if that is
    known."""

    def __init__(self, start: bytes, end: bytes) -> None:
        super().__init__(f"A message has over {MAX_LINE_BYTES} bytes. Send less at a time.")
        at_start = id_at_the_start(start)
        self.request_id: int | str | None = id_at_the_end(end) if at_start is None else at_start


class ClientLines:
    """Reads the lines of a client. Owns the transport on its pipe, where there is one; `close` ends it."""

    def __init__(self, reader: asyncio.StreamReader | None, transport: asyncio.BaseTransport | None) -> None:
        self._reader = reader
        self._transport = transport

    @classmethod
    async def of_stdin(cls) -> ClientLines:
        """Takes over stdin. A file or a device is read in a thread: its reads never wait."""
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
            return cls(None, None)
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        return cls(reader, transport)

    async def line(self) -> bytes:
        """Reads the next line; empty at the end.

        Raises:
            LineTooLong: It is dropped.
        """
        start = end = await self._piece()
        if not _goes_on(end):
            return end
        edge = b""
        while _goes_on(end):
            edge, end = end[-EDGE_BYTES:], await self._piece()
        logger.warning("dropped a message of over %d bytes", MAX_LINE_BYTES)
        raise LineTooLong(start[:EDGE_BYTES], (edge + end)[-EDGE_BYTES:])

    def close(self) -> None:
        """Stops the reading."""
        if self._transport is not None:
            self._transport.close()

    async def _piece(self) -> bytes:
        """Reads a line, or more of it than a line may have."""
        if self._reader is None:
            return await asyncio.to_thread(sys.stdin.buffer.readline, MAX_LINE_BYTES + 1)
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError as error:
            return await self._reader.readexactly(error.consumed)


def _goes_on(piece: bytes) -> bool:
    return len(piece) > MAX_LINE_BYTES and not piece.endswith(b"\n")
