"""Lines of standard input, read by the event loop instead of a thread.

The SDK reads stdin in a thread that nothing can interrupt: a server told to stop would stay, with its workers and
upstream servers, until its client closes the pipe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Final, cast

import anyio

logger = logging.getLogger("cellblock.frontend")

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Longest message of a client; a script is at most 1 MiB, and six times that when every character is escaped."""


class StdinLines:
    """An async iterator of lines as text. Owns the transport on fd 0; `close` ends it.

    Use `open`. Implements as much of `anyio.AsyncFile[str]` as `mcp.server.stdio.stdio_server` uses.
    """

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._reader = reader
        self._transport = transport

    @classmethod
    async def open(cls) -> StdinLines | None:
        """Takes over stdin, or gives None for a file or a device, whose reads never wait."""
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
            return None
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        return cls(reader, transport)

    def as_file(self) -> anyio.AsyncFile[str]:
        """Itself, as the type that the SDK asks for."""
        return cast("anyio.AsyncFile[str]", self)

    def close(self) -> None:
        """Stops reading."""
        self._transport.close()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                logger.warning("dropped a message of over %d bytes", MAX_LINE_BYTES)
                continue
            if not line:
                raise StopAsyncIteration
            return line.decode("utf-8", "replace")
