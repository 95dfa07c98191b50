"""Lines to standard output are written by the event loop instead of a thread.

The SDK writes stdout in a thread that nothing can interrupt: a client that has stopped reading would keep a server that
was told to stop, with its workers and upstream servers, for as long as it leaves its full pipe open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cellblock.base.offload.raw import Splices

FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the last answers to a client that has closed its stdin, before they are dropped."""


class Flow(asyncio.Protocol):
    """Knows whether more may be written to stdout, and whether anybody reads it."""

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
    """Writes lines to stdout. Owns a copy of fd 1; until `close`, fd 1 itself is stderr, so that no `print` of a tool
    gets between the messages. Use `open`."""

    def __init__(
        self,
        fd: int,
        flow: Flow,
        pipe: IO[bytes],
        transport: asyncio.WriteTransport | None,
        splices: Splices | None,
        on_written: Callable[[], None],
    ) -> None:
        self._fd = fd
        self._pipe = pipe
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
    ) -> StdoutLines:
        """Takes over stdout. A file, a terminal or a device is written to at once: that never waits long.

        Args:
            on_lost: Called when nobody can read stdout any more.
            splices: Puts large results into what is written; None where there are none.
            on_written: Called when a message is written.
        """
        sys.stdout.flush()
        fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(2, 1)
        flow = Flow(on_lost)
        # The transport closes its own copy, and may do so late; ours is there to give fd 1 back.
        pipe = os.fdopen(os.dup(fd), "wb", buffering=0)
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return cls(fd, flow, pipe, None, splices, on_written)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: flow, pipe)
        # `flush` is over when everything is in the pipe, so nothing is left to be lost at the end.
        transport.set_write_buffer_limits(high=0)
        return cls(fd, flow, pipe, transport, splices, on_written)

    def write(self, line: bytes) -> None:
        """Gives a line to the loop. What nobody can read is dropped."""
        if self._flow.lost:
            return
        # Not in pieces with pauses: half a message, of a request that is cancelled, would spoil those that follow.
        for piece in [line] if self._splices is None else self._splices.spliced(line):
            self._put(piece)
        self._put(b"\n")
        self._on_written()

    async def copy(self, data: bytes) -> None:
        """Writes data as it is, and waits until stdout has taken it, or nobody reads any more."""
        if not self._flow.lost:
            self._put(data)
            await self.flush()

    async def flush(self) -> None:
        """Waits until stdout has taken all lines, or nobody reads any more."""
        await self._flow.writable.wait()

    def say_farewell(self) -> None:
        """Bounds what is left to be written, since the client is going: what it does not read within `FAREWELL_SECONDS`
        is dropped."""
        loop = asyncio.get_running_loop()
        self._farewell = loop.call_later(FAREWELL_SECONDS, self._drop)

    def close(self) -> None:
        """Drops the lines that are not written, and gives fd 1 back."""
        if self._farewell is not None:
            self._farewell.cancel()
        self._drop()
        os.set_blocking(self._fd, True)
        os.dup2(self._fd, 1)
        os.close(self._fd)

    def _put(self, piece: bytes) -> None:
        if self._transport is not None:
            self._transport.write(piece)
            return
        while piece:
            piece = piece[self._pipe.write(piece) :]

    def _drop(self) -> None:
        if self._transport is None:
            self._pipe.close()
        elif not self._flow.lost:
            # A transport that has lost its pipe must not be aborted: it raises AttributeError.
            self._transport.abort()
