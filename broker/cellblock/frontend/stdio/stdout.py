"""Lines to standard output, written by the event loop instead of a thread.

The SDK writes stdout in a thread that nothing can interrupt: a client that has stopped reading would keep a server that
was told to stop, with its workers and upstream servers, for as long as it leaves its full pipe open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import anyio

    from cellblock.apart.raw import Splices

FAREWELL_SECONDS: Final = 2.0
"""For the last answers to a client that has closed its stdin, before they are dropped."""


class _Flow(asyncio.Protocol):
    """Knows whether more may be written, and whether anybody reads."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.writable.set()
        self._on_lost()


class StdoutLines:
    """A writer of text. Owns a copy of fd 1; until `close`, fd 1 itself is stderr, so that no `print` of a tool gets
    between the messages.

    Use `open`. Implements as much of `anyio.AsyncFile[str]` as `mcp.server.stdio.stdio_server` uses.
    """

    def __init__(
        self,
        fd: int,
        flow: _Flow,
        transport: asyncio.WriteTransport,
        splices: Splices | None,
        on_written: Callable[[], None],
    ) -> None:
        self._fd = fd
        self._on_written = on_written
        self._splices = splices
        self._flow = flow
        self._transport = transport
        self._farewell: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        on_lost: Callable[[], None],
        splices: Splices | None = None,
        on_written: Callable[[], None] = lambda: None,
    ) -> StdoutLines | None:
        """Takes over stdout, or gives None where it is a file, a terminal or a device: writing there never waits long.

        Args:
            on_lost: Called when nobody can read stdout any more.
            splices: Puts large results into what is written; None where there are none.
            on_written: Called when a message is written.
        """
        mode = os.fstat(sys.stdout.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return None
        sys.stdout.flush()
        fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(2, 1)
        flow = _Flow(on_lost)
        # The transport closes its own copy, and may do so late; ours is there to give fd 1 back.
        pipe = os.fdopen(os.dup(fd), "wb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: flow, pipe)
        # `flush` is over when everything is in the pipe, so nothing is left to be lost at the end.
        transport.set_write_buffer_limits(high=0)
        return cls(fd, flow, transport, splices, on_written)

    def as_file(self) -> anyio.AsyncFile[str]:
        """Itself, as the type that the SDK asks for."""
        return cast("anyio.AsyncFile[str]", self)

    async def write(self, text: str) -> int:
        """Gives the text to the loop. What nobody can read is dropped."""
        data = text.encode()
        self._write([data] if self._splices is None else self._splices.spliced(data))
        return len(text)

    async def send(self, line: bytes) -> None:
        """Writes a line, and waits until that is done, or nobody reads any more."""
        self._write([line + b"\n"])
        await self.flush()

    async def flush(self) -> None:
        """Waits until all is written, or nobody reads any more."""
        await self._flow.writable.wait()

    def say_farewell(self) -> None:
        """The client is going: what it does not read within `FAREWELL_SECONDS` is dropped."""
        loop = asyncio.get_running_loop()
        self._farewell = loop.call_later(FAREWELL_SECONDS, self._drop)

    def close(self) -> None:
        """Drops what is not written, and gives fd 1 back."""
        if self._farewell is not None:
            self._farewell.cancel()
        self._drop()
        os.set_blocking(self._fd, True)
        os.dup2(self._fd, 1)
        os.close(self._fd)

    def _write(self, pieces: Iterable[bytes]) -> None:
        if not self._flow.lost:
            # Not in pieces with pauses: half a message, of a request that is cancelled, would spoil those that follow.
            for piece in pieces:
                self._transport.write(piece)
            self._on_written()

    def _drop(self) -> None:
        # A transport that has lost its pipe must not be aborted: it raises AttributeError.
        if not self._flow.lost:
            self._transport.abort()
