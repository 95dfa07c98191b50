"""`cellblock connect` copies lines between an MCP client at this process's stdin and stdout and a daemon's socket.

It imports neither the SDK nor pydantic: the client's first answer would wait for that longer than for all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from cellblock.base.errors import CellblockError
from cellblock.base.tasks import TaskSet, at_most
from cellblock.serve.misread import INVALID_REQUEST, Misread
from cellblock.serve.stdio.daemon import MAX_MESSAGE_BYTES, Daemon, Link, NoSocket, NotThere, is_taken
from cellblock.serve.stdio.in_flight import InFlight, Refused, needs_daemon
from cellblock.serve.stdio.lines import ClientLines, LineTooLong, StdoutLines

FAREWELL_SECONDS: Final = 5.0
"""Bounds the time for the last answers when the client has closed stdin, and for what it is told at the end."""

FIRST_REQUEST_SECONDS: Final = 5.0
"""Bounds the wait for the request whose error tells a client why there is no daemon."""

WENT: Final = "The daemon went while it was asked: it has hung up. What was asked may have been done."


async def relay_stdio(
    find: Callable[[], Daemon],
    start: Callable[[], Awaitable[Link]] | None,
    on_answer: Callable[[Link], None] = lambda _: None,
) -> None:
    """Relays between stdin and stdout and the daemon until the client closes stdin.

    What keeps the daemon from being reached is the error of the client's first request, too.

    Args:
        find: Says where the daemon is; may raise ConfigError.
        start: Has a daemon run where none does; None: one must run already.
        on_answer: Called once, when the client has its first answer.

    Raises:
        DaemonUnavailable: The daemon is not there, does not take us, or has gone.
        CellblockError: It cannot be asked, or started.
    """
    lines = await ClientLines.of_stdin()
    output = await StdoutLines.open(on_lost=lines.close)

    async def reached() -> Link:
        daemon = find()
        try:
            if daemon.address is not None:
                return await daemon.linked()
        except NotThere as error:
            is_there = isinstance(error, NoSocket) and await is_taken(daemon.address or "")
            # Where no token of ours is shown, it need not be our daemon.
            if daemon.is_own or not is_there:
                if start is not None:
                    return await start()
                raise (await daemon.socketless() if is_there else error) from None
        from cellblock.serve.stdio.remote import linked_over_http

        return await linked_over_http(daemon)

    try:
        try:
            link = await reached()
        except CellblockError as error:
            await _tell(lines, output, error)
            raise
        lost = await _Pump(find, lines, output, reached, on_answer).run(link)
        output.say_farewell()
        await output.flush()
    finally:
        output.close()
        # Otherwise the reader of stdin keeps the process for as long as the client likes.
        lines.close()
    if lost is not None:
        raise lost


# ---- inside ------------------------------------------------------------------------------------------


class _Pump:
    """Copies between a client and a daemon, and the one that comes in its place."""

    def __init__(
        self,
        find: Callable[[], Daemon],
        lines: ClientLines,
        output: StdoutLines,
        reached: Callable[[], Awaitable[Link]],
        on_answer: Callable[[Link], None],
    ) -> None:
        self._find, self._lines, self._output = find, lines, output
        self._reached, self._on_answer = reached, on_answer
        self._in_flight = InFlight()
        self._link: Link | None = None
        self._down: asyncio.Task[None] | None = None
        self._reviving = asyncio.Lock()
        self._tasks = TaskSet()
        self._changed = asyncio.Event()
        self._told = self._closing = False
        self._lost: asyncio.Future[CellblockError] = asyncio.get_running_loop().create_future()

    async def run(self, link: Link) -> CellblockError | None:
        """Copies until the client is done, or no daemon can be reached any more.

        Returns:
            What to say when no daemon can be reached; every request that waits has got it as its error.
        """
        self._begin(link)
        up = self._start(self._copy_up())
        try:
            await asyncio.wait([up, self._lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.cancel()
            await self._tasks.ended()
            if self._link is not None:
                self._link.close()
        if not self._lost.done():
            return None
        lost = self._lost.result()
        # A client need not read.
        async with at_most(FAREWELL_SECONDS):
            await self._output.copy(self._in_flight.all_ended(str(lost)))
        return lost

    async def _copy_up(self) -> None:
        while line := await next_line(self._lines, self._output):
            await self._send(line)
        # stdin is closed. Answers that come quickly are still worth having.
        async with at_most(FAREWELL_SECONDS):
            while not self._in_flight.quiet:
                self._changed.clear()
                await self._changed.wait()
            if self._link is not None and self._down is not None:
                # To a line that is no message, too.
                self._closing = True
                self._link.writer.write_eof()
                await asyncio.wait([self._down])

    async def _send(self, line: bytes) -> None:
        if self._link is not None and self._link.has_ended() and self._down is not None:
            # What it has said before it went comes first.
            await asyncio.wait([self._down])
        if self._link is None and needs_daemon(line):
            await self._revive()
        self._in_flight.from_client(line)
        if self._link is not None:
            self._link.writer.write(line)
            with contextlib.suppress(OSError):
                await self._link.writer.drain()

    def _begin(self, link: Link) -> None:
        self._link = link
        self._down = self._start(self._copy_down(link))

    async def _copy_down(self, link: Link) -> None:
        try:
            # What is half said is not copied.
            while True:
                line = await link.reader.readuntil(b"\n")
                await self._output.copy(self._in_flight.from_daemon(line))
                self._note_answers(link)
        except (OSError, EOFError):
            pass
        except asyncio.LimitOverrunError:
            self._lose(self._find().gone(f"a message has over {MAX_MESSAGE_BYTES} bytes"))
        except Refused as error:
            self._lose(self._find().gone(str(error)))
        if self._closing or self._lost.done():
            return
        self._link = None
        link.close()
        await self._output.copy(self._in_flight.lost(WENT))
        self._note_answers(link)
        if self._in_flight.waits:
            await self._revive()

    async def _revive(self) -> None:
        """Connects with a daemon that runs again, in which the client is known."""
        async with self._reviving:
            if self._link is not None or self._lost.done():
                return
            try:
                link = await self._reached()
            except CellblockError as error:
                self._lose(error)
                return
            link.writer.write(self._in_flight.again())
            self._begin(link)

    def _note_answers(self, link: Link) -> None:
        self._changed.set()
        if self._in_flight.answered and not self._told:
            self._told = True
            self._on_answer(link)

    def _lose(self, why: CellblockError) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.start(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._lost.done():
            self._lost.set_exception(error)


async def _tell(lines: ClientLines, output: StdoutLines, error: CellblockError) -> None:
    """Answers a client's first request with an error; editors show that, and not what is on stderr."""
    if os.isatty(0):
        return
    in_flight = InFlight()
    async with at_most(FIRST_REQUEST_SECONDS):
        while line := await next_line(lines, output):
            in_flight.from_client(line)
            if in_flight.waits:
                await output.copy(in_flight.all_ended(str(error)))
                output.say_farewell()
                return


async def next_line(lines: ClientLines, output: StdoutLines) -> bytes:
    """Reads the client's next line, with an end; empty at the end. One that is too long is answered."""
    while True:
        try:
            line = await lines.line()
            return line + b"\n" if line and not line.endswith(b"\n") else line
        except LineTooLong as error:
            refusal = Misread(INVALID_REQUEST, error.request_id, str(error)).answer()
            await output.copy(json.dumps(refusal).encode() + b"\n")
