"""Lines of standard input and output are read and written by the event loop instead of threads.

The SDK has threads for that, which nothing can interrupt: a server told to stop would stay, with its workers and
upstream servers, until its client closes its pipe, or for as long as one that has stopped reading leaves it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import stat
import sys
from collections.abc import Callable
from typing import IO, Final

from cellblock.serve.misread import NotTaken, id_at_the_end, id_at_the_start

logger = logging.getLogger("cellblock.serve")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Bounds one message of a client; a script is at most 1 MiB, and six times that when every character is escaped. An
answer to a server's question may have an image."""

EDGE_BYTES: Final = 256
"""Sets how many bytes are kept of either end of a line that is too long, to find its id."""


class LineTooLong(NotTaken):
    """Tells that a line has over `MAX_LINE_BYTES` bytes, and is dropped."""

    def __init__(self, start: bytes, end: bytes) -> None:
        at_start = id_at_the_start(start)
        request_id = id_at_the_end(end) if at_start is None else at_start
        why = f"A message has over {MAX_LINE_BYTES} bytes. Send less at a time."
        super().__init__(why, request_id=request_id)


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


FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the last answers to a client that has closed its stdin, before they are dropped."""


class _Reported(asyncio.StreamReaderProtocol):
    """Calls `on_lost` when nobody can read stdout any more."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        super().__init__(asyncio.StreamReader())
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()


class StdoutLines:
    """Writes lines to stdout. Owns a copy of fd 1; until `close`, fd 1 itself is stderr, so that no `print` of a tool
    gets between the messages. Use `open`."""

    def __init__(self, fd: int, pipe: IO[bytes], writer: asyncio.StreamWriter | None) -> None:
        self._fd = fd
        self._pipe = pipe
        self._writer = writer
        self._farewell: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, on_lost: Callable[[], None]) -> StdoutLines:
        """Takes over stdout. A file, a terminal or a device is written to at once: that never waits long.

        Args:
            on_lost: Called when nobody can read stdout any more.
        """
        sys.stdout.flush()
        fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(2, 1)
        # The transport closes its own copy, and may do so late; ours is there to give fd 1 back.
        pipe = os.fdopen(os.dup(fd), "wb", buffering=0)
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return cls(fd, pipe, None)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(lambda: _Reported(on_lost), pipe)
        # `flush` is over when everything is in the pipe, so nothing is left to be lost at the end.
        transport.set_write_buffer_limits(high=0)
        return cls(fd, pipe, asyncio.StreamWriter(transport, protocol, None, loop))

    def put(self, piece: bytes) -> None:
        """Gives a piece of a line to the loop. What nobody can read is dropped."""
        if self._writer is not None:
            if not self._writer.is_closing():
                self._writer.write(piece)
            return
        while piece:
            piece = piece[self._pipe.write(piece) :]

    async def copy(self, data: bytes) -> None:
        """Writes data as it is, and waits until stdout has taken it, or nobody reads any more."""
        self.put(data)
        await self.flush()

    async def flush(self) -> None:
        """Waits until stdout has taken all lines, or nobody reads any more."""
        if self._writer is not None:
            await flushed(self._writer)

    def say_farewell(self) -> None:
        """Bounds what is left to be written, since the client is going: what it does not read within `FAREWELL_SECONDS`
        is dropped."""
        self._farewell = asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._drop)

    def close(self) -> None:
        """Drops the lines that are not written, and gives fd 1 back."""
        if self._farewell is not None:
            self._farewell.cancel()
        self._drop()
        os.set_blocking(self._fd, True)
        os.dup2(self._fd, 1)
        os.close(self._fd)

    def _drop(self) -> None:
        if self._writer is None:
            self._pipe.close()
        elif not self._writer.is_closing():
            # A transport that has lost its pipe must not be aborted: it raises AttributeError.
            self._writer.transport.abort()


async def flushed(writer: asyncio.StreamWriter) -> None:
    """Waits until all that is written is taken, or nobody reads any more."""
    with contextlib.suppress(ConnectionError):
        await writer.drain()
