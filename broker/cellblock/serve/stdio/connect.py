"""`cellblock connect` copies lines between an MCP client at this process's stdin and stdout and a daemon's socket.

It imports neither the SDK nor pydantic: the client's first answer would wait for that longer than for all else.

A message is a line, which is copied as it is. One of up to `WHOLE_BYTES` is decoded, a longer one is known by its ends.
A client's request waits until the daemon's answer to it is copied, or the client cancels it. When the daemon ends
(`lost`), those that may be sent twice go on waiting, and all others get an error. The next daemon is given (`again`)
the client's own greeting, whose answer is not copied, and what still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from cellblock.base.errors import CellblockError, shorten
from cellblock.base.json import is_object
from cellblock.base.tasks import TaskSet, at_most
from cellblock.serve.misread import (
    CONNECTION_CLOSED,
    ID,
    Misread,
    as_id,
    id_at_the_end,
    id_of,
)
from cellblock.serve.stdio.daemon import MAX_MESSAGE_BYTES, Daemon, Link, NoSocket, NotThere, is_taken
from cellblock.serve.stdio.lines import ClientLines, LineTooLong, StdoutLines

WHOLE_BYTES: Final = 64 * 1024

EDGE_BYTES: Final = 256

REPEATABLE: Final = frozenset(("initialize", "server/discover", "ping", "resources/read"))
"""Lists, with all `*/list`, requests that may be sent twice."""

STREAMS: Final = "subscriptions/listen"
"""Names the method of a request that has no answer for as long as it lasts."""

AGAIN: Final = "cellblock connect: initialize"
"""Is the id with which a client is greeted by another daemon."""

_START: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*' + ID + rb"\s*,\s*)?"
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(method|result|error)"\s*:\s*(?:"([^"\\]*)")?'
)


class Refused(Exception):
    """Tells that another daemon does not greet the client as the first did."""


class _Message(NamedTuple):
    """Holds what is known of a message: `method` is None for an answer, and empty where it is not known."""

    id: int | str | None
    method: str | None
    body: dict[str, Any]


class _Waiting(NamedTuple):
    method: str
    line: bytes


class InFlight:
    """Follows the messages of one client and its daemons.

    Attributes:
        answered: Whether the client has had an answer.
    """

    def __init__(self) -> None:
        self.answered = False
        self._waiting: dict[int | str, _Waiting] = {}
        self._greeting: list[bytes] = []

    @property
    def quiet(self) -> bool:
        """Says whether no request waits but for streams."""
        return all(one.method == STREAMS for one in self._waiting.values())

    @property
    def waits(self) -> bool:
        """Says whether any request waits."""
        return bool(self._waiting)

    def from_client(self, line: bytes) -> None:
        """Notes what the client says."""
        message = _read(line)
        if message.id is None:
            if message.method == "notifications/initialized":
                self._greeting[1:] = [line]
            params = message.body.get("params")
            if message.method == "notifications/cancelled" and is_object(params):
                key = as_id(params.get("requestId"))
                self._waiting = {one: request for one, request in self._waiting.items() if one != key}
        elif message.method:
            repeatable = message.method in REPEATABLE or message.method.endswith("/list")
            self._waiting[message.id] = _Waiting(message.method, line if repeatable else b"")
            if message.method == "initialize":
                self._greeting = [line]

    def from_daemon(self, line: bytes) -> bytes:
        """Notes what the daemon says. Returns what is for the client.

        Raises:
            Refused: It does not greet the client again.
        """
        message = _read(line)
        if message.method is None and message.id == AGAIN:
            if not is_object(message.body.get("result")):
                why = shorten(str(message.body.get("error", "nothing")))
                raise Refused(f"it answers initialize with {why}")
            return b""
        if message.method is None and message.id is not None:
            self.answered = self._waiting.pop(message.id, None) is not None or self.answered
        return line

    def lost(self, why: str) -> bytes:
        """Notes that the daemon has ended. Returns what the client is told."""
        lost = [key for key, one in self._waiting.items() if not one.line]
        return b"".join([self._ended(key, why) for key in lost])

    def again(self) -> bytes:
        """Returns what another daemon is told before all else."""
        lines = list(self._greeting)
        if lines and all(one.method != "initialize" for one in self._waiting.values()):
            lines[0] = _encoded({**json.loads(lines[0]), "id": AGAIN})
        return b"".join(lines + [one.line for one in self._waiting.values() if one.method != "initialize"])

    def all_ended(self, why: str) -> bytes:
        """Returns the errors of all requests that wait."""
        return b"".join([self._ended(key, why) for key in list(self._waiting)])

    def _ended(self, key: int | str, why: str) -> bytes:
        del self._waiting[key]
        self.answered = True
        return _encoded(Misread(CONNECTION_CLOSED, key, why).answer())


def needs_daemon(line: bytes) -> bool:
    """Says whether a client's message is answered: others are of no use to a daemon that has not seen what they are
    about."""
    message = _read(line)
    is_answer_or_note = message.method is None or message.method.startswith("notifications/")
    return not is_answer_or_note and bool(line.strip())


def _read(line: bytes) -> _Message:
    if len(line) > WHOLE_BYTES:
        return _at_its_ends(line)
    try:
        body: object = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    if not is_object(body):
        return _Message(None, "", {})
    method = body.get("method")
    if isinstance(method, str):
        return _Message(id_of(body), method, body)
    return _Message(id_of(body), None if "result" in body or "error" in body else "", body)


def _at_its_ends(line: bytes) -> _Message:
    found = _START.match(line)
    if found is None:
        return _Message(None, "", {})
    key, kind, method = found.groups()
    known = id_at_the_end(line[-EDGE_BYTES:]) if key is None else json.loads(key)
    return _Message(known, (method or b"").decode("utf-8", "replace") if kind == b"method" else None, {})


def _encoded(body: dict[str, Any]) -> bytes:
    # With escapes, since half an emoji has no UTF-8.
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


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
    try:
        lost = await _Pump(find, start, lines, output, on_answer).run()
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
        start: Callable[[], Awaitable[Link]] | None,
        lines: ClientLines,
        output: StdoutLines,
        on_answer: Callable[[Link], None],
    ) -> None:
        self._find, self._have_one_run, self._on_answer = find, start, on_answer
        self._lines, self._output = lines, output
        self._in_flight = InFlight()
        self._link: Link | None = None
        self._down: asyncio.Task[None] | None = None
        self._reviving = asyncio.Lock()
        self._tasks = TaskSet()
        self._changed = asyncio.Event()
        self._told = self._closing = False
        self._lost: asyncio.Future[CellblockError] = asyncio.get_running_loop().create_future()

    async def run(self) -> CellblockError | None:
        """Copies until the client is done, or no daemon can be reached (any more).

        Returns:
            What to say when no daemon can be reached; every request that waits has got it as its error.
        """
        await self._revive()
        if self._lost.done() and not os.isatty(0):
            # Editors show the error of a request, and not what is on stderr.
            async with at_most(FIRST_REQUEST_SECONDS):
                while not self._in_flight.waits and (line := await next_line(self._lines, self._output)):
                    self._in_flight.from_client(line)
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

    async def _reached(self) -> Link:
        daemon = self._find()
        try:
            if daemon.address is not None:
                return await daemon.linked()
        except NotThere as error:
            is_there = isinstance(error, NoSocket) and await is_taken(daemon.address or "")
            # Where no token of ours is shown, it need not be our daemon.
            if daemon.is_own or not is_there:
                if self._have_one_run is not None:
                    return await self._have_one_run()
                raise (await daemon.socketless() if is_there else error) from None
        from cellblock.serve.stdio.remote import linked_over_http

        return await linked_over_http(daemon)

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
        """Connects with a daemon that runs, or runs again; there the client is known."""
        async with self._reviving:
            if self._link is not None or self._lost.done():
                return
            try:
                self._link = link = await self._reached()
            except CellblockError as error:
                self._lose(error)
                return
            link.writer.write(self._in_flight.again())
            self._down = self._start(self._copy_down(link))

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


async def next_line(lines: ClientLines, output: StdoutLines) -> bytes:
    """Reads the client's next line, with an end; empty at the end. One that is too long is answered."""
    while True:
        try:
            line = await lines.line()
            return line + b"\n" if line and not line.endswith(b"\n") else line
        except LineTooLong as error:
            await output.copy(_encoded(error.found.answer()))
