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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, cast

import anyio
import mcp_types as types

from cellblock.apart.pool import Apart
from cellblock.frontend.intake import AS_IT_IS_BYTES, NotTaken, take

logger = logging.getLogger("cellblock.frontend")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Longest message of a client; a script is at most 1 MiB, and six times that when every character is escaped. An answer
to a server's question may have an image."""

CLIENT: Final = "stdio"
"""Over stdio, a process serves one client."""

ApartWhenItRuns = Callable[[], Awaitable[Apart]]

Refuse = Callable[[types.JSONRPCError], Awaitable[None]]


class StdinLines:
    """An async iterator of lines as text, of which a large one is looked at apart first. Owns the transport on fd 0;
    `close` ends it.

    Use `open`. Implements as much of `anyio.AsyncFile[str]` as `mcp.server.stdio.stdio_server` uses.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
        apart: ApartWhenItRuns | None,
    ) -> None:
        self._reader = reader
        self._transport = transport
        self._apart = apart
        self._refuse: asyncio.Future[Refuse] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, apart: ApartWhenItRuns | None = None) -> StdinLines | None:
        """Takes over stdin, or gives None for a file or a device, whose reads never wait.

        Args:
            apart: Waits for where large lines are looked at; None: nowhere, by a relay that serves nobody else.
        """
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
            return None
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        return cls(reader, transport, apart)

    def refuse_by(self, refuse: Refuse) -> None:
        """From now on `refuse` answers what is not taken; until then that waits."""
        self._refuse.set_result(refuse)

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
                return await self._line()
            except NotTaken as refused:
                if self._apart is not None:
                    error = types.ErrorData(code=refused.code, message=refused.why)
                    refuse = await self._refuse
                    await refuse(types.JSONRPCError(jsonrpc="2.0", id=refused.request_id, error=error))

    async def _line(self) -> str:
        try:
            line = await self._reader.readline()
        except ValueError:
            logger.warning("dropped a message of over %d bytes", MAX_LINE_BYTES)
            raise NotTaken(f"A message has over {MAX_LINE_BYTES} bytes. Send less at a time.") from None
        if not line:
            raise StopAsyncIteration
        if self._apart is not None and len(line) > AS_IT_IS_BYTES:
            line = (await take(line, await self._apart(), CLIENT)).body
        return line.decode("utf-8", "replace")
