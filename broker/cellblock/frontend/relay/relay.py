"""Carries messages between a client and a daemon, each as it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from cellblock.base.errors import CellblockError, shorten
from cellblock.base.json import is_object
from cellblock.base.tasks import TaskSet, at_most
from cellblock.frontend.misread import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Misread,
    as_id,
)
from cellblock.frontend.relay.channel import Answer, Broken, Channel, Unreached, messages_in, whole
from cellblock.frontend.relay.messages import (
    VERSION_HEADER,
    Kind,
    Message,
    encoded,
    message_of,
    message_of_line,
)
from cellblock.frontend.stdio.stdin import LineTooLong, StdinLines

logger = logging.getLogger("cellblock.frontend")

HANDSHAKE_SECONDS: Final = 30.0
"""Bounds the time for the answer to `initialize`: nothing else can be sent before the session has its id."""

FAREWELL_SECONDS: Final = 5.0
"""Bounds the time for the last answers, and to end the session, when the client has closed stdin."""

RETRY_SECONDS: Final = 1.0
"""Sets the pause before the stream of what a daemon says by itself is opened again."""

MAX_RETRIES: Final = 2
"""Bounds the retries in succession."""

SIGN_SECONDS: Final = 20.0
"""Passes between two signs of life to a daemon that ends when nobody is there: an idle editor holds no connection."""

STREAMS: Final = "subscriptions/listen"
"""Names the method of a request that has no answer for as long as it lasts."""

MODERN: Final = ("2026-07-28",)
"""Lists the protocol versions without sessions: there, a request is cancelled by hanging up."""

REPEATABLE: Final = frozenset(
    (
        "initialize",
        "server/discover",
        "ping",
        "tools/list",
        "resources/list",
        "resources/read",
        "prompts/list",
    )
)
"""Lists requests that may be sent twice."""

SESSION_HEADER: Final = "mcp-session-id"

FORGOTTEN: Final = ("Session terminated", "Session not found")
"""Lists what an error of a session that is not there says."""

_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class DaemonUnavailable(CellblockError):
    """Tells that the daemon is not there, does not take us, or has gone."""


class _Forgotten(Exception):
    """Tells that the daemon knows nothing of our session; it has done nothing."""


class _Pending:
    """Holds a request of the client that is not answered yet."""

    def __init__(self, request_id: int | str, message: Message, *, modern: bool) -> None:
        self.id = request_id
        self.message = message
        self.modern = modern
        self.task: asyncio.Task[None] | None = None


class Relay:
    """Carries messages both ways.

    Args:
        url: Of the daemon's MCP endpoint.
        gone: What to say when the daemon cannot be reached, from why.
        channel: To the daemon.
        lines: Of the client.
        send: Takes lines for the client.
        on_answer: Called once, when the client has its first answer.
        revive: Gives a way to a daemon that runs again, or raises a CellblockError; None: a daemon that goes ends this.
        sign_seconds: Passes between two signs of life, which are given where there is `revive`.
    """

    def __init__(
        self,
        url: str,
        gone: Callable[[str], DaemonUnavailable],
        channel: Channel,
        lines: StdinLines,
        send: Callable[[bytes], Awaitable[None]],
        on_answer: Callable[[], None] = lambda: None,
        revive: Callable[[], Awaitable[Channel]] | None = None,
        sign_seconds: float = SIGN_SECONDS,
    ) -> None:
        self._url, self._gone, self._channel = url, gone, channel
        self._revive, self._sign_seconds = revive, sign_seconds
        self._reviving = asyncio.Lock()
        self._lives = 0
        self._greeting: list[Message] = []
        self._listener: asyncio.Task[None] | None = None
        self._lines, self._send, self._on_answer = lines, send, on_answer
        # 1 and "1" are different ids, and equal to nothing else.
        self._waiting: dict[int | str, _Pending] = {}
        self._tasks = TaskSet()
        self._settled = asyncio.Event()
        self._answered = False
        self._session: str | None = None
        self._version: str | None = None
        self._lost: asyncio.Future[CellblockError] = asyncio.get_running_loop().create_future()

    async def run(self) -> CellblockError | None:
        """Relays until the client is done, or the daemon has gone.

        Returns:
            What to say when the daemon has gone; every request that waits has got it as its error.
        """
        up = self._start(self._up())
        if self._revive is not None:
            self._start(self._give_signs())
        try:
            await asyncio.wait([up, self._lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.cancel()
            await self._tasks.ended()
            if self._session is not None and not self._lost.done():
                await self._say_goodbye()
        if not self._lost.done():
            return None
        lost = self._lost.result()
        # A client need not read.
        async with at_most(FAREWELL_SECONDS):
            for pending in list(self._waiting.values()):
                await self._refuse(pending, CONNECTION_CLOSED, str(lost))
        return lost

    # ---- from the client -----------------------------------------------------------------------------------

    async def _up(self) -> None:
        while True:
            try:
                line = await self._lines.line()
            except LineTooLong as error:
                await self._tell(Misread(INVALID_REQUEST, error.request_id, str(error)))
                continue
            if not line:
                break
            found = message_of_line(line)
            if isinstance(found, Misread):
                await self._tell(found)
            elif found is not None:
                await self._carry(found)
        # stdin is closed. Answers that come quickly are still worth having.
        await self._until(
            lambda: all(pending.message.method == STREAMS for pending in self._waiting.values()),
            FAREWELL_SECONDS,
        )

    async def _carry(self, message: Message) -> None:
        # Of a modern client, each message that has one; others have their session's.
        self._version = message.version or self._version
        if message.kind is Kind.REQUEST:
            await self._ask(message)
        elif message.method != "notifications/cancelled" or await self._cancels(message):
            if message.method == "notifications/initialized":
                self._greeting[1:] = [message]
                self._keep_listening()
            with self._losing():
                async with self._post(message) as answer:
                    if answer.status >= 400:
                        logger.info("the daemon answers %s with status %d", message.method, answer.status)

    async def _ask(self, message: Message) -> None:
        request_id = message.id
        assert request_id is not None
        if (same := self._waiting.pop(request_id, None)) is not None and same.task is not None:
            # The id is this request's now.
            same.task.cancel()
        pending = self._waiting[request_id] = _Pending(request_id, message, modern=self._version in MODERN)
        if message.method == "initialize":
            self._session = self._version = None
            self._greeting = [message]
        pending.task = self._start(self._answer(pending))
        # What follows may be about it, and is not to overtake it.
        await asyncio.sleep(0)
        if message.method == "initialize":
            await self._until(lambda: self._waiting.get(request_id) is not pending, HANDSHAKE_SECONDS)

    async def _cancels(self, message: Message) -> bool:
        """Cancels a request. Returns whether the daemon is to be told."""
        request_id = as_id(message.params.get("requestId"))
        pending = None if request_id is None else self._waiting.get(request_id)
        if pending is None:
            return self._version not in MODERN
        self._finish(pending)
        if pending.modern and pending.task is not None:
            pending.task.cancel()
        return not pending.modern

    # ---- from the daemon -----------------------------------------------------------------------------------

    async def _answer(self, pending: _Pending) -> None:
        lives = self._lives
        try:
            try:
                await self._ask_daemon(pending)
            except (Broken, _Forgotten) as error:
                # A daemon that runs again may have what this one has not seen, or not done, or what does nothing.
                again = isinstance(error, Unreached | _Forgotten) or pending.message.method in REPEATABLE
                if self._revive is None or not again:
                    raise
                if not await self._is_revived(lives, error):
                    return
                await self._ask_daemon(pending)
        except _Forgotten:
            # The client cannot know that it would have to initialize again; that it may restart us, it does.
            self._lose(
                DaemonUnavailable(
                    f"The daemon at {self._url} has forgotten this session: it was restarted, or the "
                    "session was idle for too long.",
                    hint="Start the MCP server again in the editor.",
                )
            )
        except Broken as error:
            if self._revive is None or isinstance(error, Unreached):
                self._lose(self._gone(str(error)))
            else:
                why = f"The daemon went while it was asked: {error}. What was asked may have been done."
                await self._refuse(pending, CONNECTION_CLOSED, why)
        if not self._lost.done():
            await self._refuse(
                pending, CONNECTION_CLOSED, "The daemon has ended its answer without a message."
            )

    async def _ask_daemon(self, pending: _Pending) -> None:
        """Asks the daemon once, and passes the answer on. Raises _Forgotten, Broken."""
        async with self._post(pending.message) as answer:
            kind = answer.headers.get("content-type", "").lower()
            if answer.status != 200:
                await self._not_answered(pending, answer, kind)
                return
            if pending.message.method == "initialize":
                self._session = _shown(answer.headers.get(SESSION_HEADER))
            if kind.startswith("text/event-stream"):
                await self._stream(pending, answer)
            elif kind.startswith("application/json"):
                await self._pass_on(await whole(answer), pending)

    async def _is_revived(self, lives: int, why: Exception) -> bool:
        """Has a daemon run again, in which the client is known; once for all requests that found the old one gone."""
        assert self._revive is not None
        async with self._reviving:
            if self._lives != lives:
                return True
            logger.info("the daemon is sought anew: %s", why or "it has forgotten the session")
            try:
                self._channel = await self._revive()
                await self._greet()
            except CellblockError as error:
                self._lose(error)
            except Broken as error:
                self._lose(self._gone(str(error)))
            else:
                self._lives += 1
            return not self._lost.done()

    async def _greet(self) -> None:
        """Begins a session as the client has begun the old one. Raises Broken."""
        if self._session is None:
            return
        self._session = self._version = None
        for message in self._greeting:
            async with self._post(message) as answer:
                if answer.status >= 400:
                    raise Broken(f"it answers {message.method} with HTTP status {answer.status}")
                if message.method == "initialize":
                    self._session = _shown(answer.headers.get(SESSION_HEADER))
                    kind = answer.headers.get("content-type", "")
                    raws = (
                        [raw async for raw in messages_in(answer.pieces())]
                        if kind.startswith("text/event-stream")
                        else [await whole(answer)]
                    )
                    answers = [found.body for raw in raws if (found := message_of(raw)) is not None]
                    given = next((one["result"] for one in answers if is_object(one.get("result"))), None)
                    if given is None:
                        why = next((one["error"] for one in answers if "error" in one), "nothing")
                        raise Broken(f"it answers {message.method} with {shorten(str(why))}")
                    self._version = str(given.get("protocolVersion"))
        if len(self._greeting) > 1:
            self._keep_listening()

    async def _give_signs(self) -> None:
        while True:
            await asyncio.sleep(self._sign_seconds)
            with contextlib.suppress(Broken):
                async with self._channel.ask("HEAD", self._url):
                    pass

    async def _stream(self, pending: _Pending, answer: Answer) -> None:
        try:
            async for raw in messages_in(answer.pieces()):
                if await self._pass_on(raw, pending):
                    return
        except Broken as error:
            await self._refuse(pending, CONNECTION_CLOSED, f"The daemon's answer broke off: {error}.")

    async def _not_answered(self, pending: _Pending, answer: Answer, kind: str) -> None:
        """Answers a request that the daemon refuses, or takes as something else."""
        found = message_of(await whole(answer)) if kind.startswith("application/json") else None
        error: Any = None if found is None else found.body.get("error")
        forgotten = answer.status == 404 if error is None else error.get("message") in FORGOTTEN
        if forgotten and self._session is not None:
            raise _Forgotten
        if found is not None and error is not None:
            await self._pass_on(found.raw, pending)
        elif answer.status == 404:
            await self._refuse(pending, METHOD_NOT_FOUND, "Not Found")
        else:
            code = INVALID_REQUEST if answer.status < 400 else INTERNAL_ERROR
            await self._refuse(pending, code, f"The daemon answers with HTTP status {answer.status}.")

    def _keep_listening(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = self._start(self._listen())

    async def _listen(self) -> None:
        """Passes on what the daemon says by itself, in sessions."""
        failures = 0
        while self._session is not None and failures < MAX_RETRIES:
            try:
                headers = {"accept": "text/event-stream", **self._of_session()}
                async with self._channel.ask("GET", self._url, headers) as answer:
                    if answer.status != 200:
                        raise Broken(f"status {answer.status}")
                    async for raw in messages_in(answer.pieces()):
                        await self._pass_on(raw, None)
                failures = 0
            except Broken as error:
                logger.info("the stream of the daemon's own messages broke: %s", error)
                failures += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _pass_on(self, raw: bytes, pending: _Pending | None) -> bool:
        """Gives a message of the daemon to the client. Returns whether it is the answer to a request."""
        message = message_of(raw)
        if message is None:
            logger.warning("a message of the daemon cannot be read")
            return False
        if message.kind is not Kind.ANSWER:
            await self._send(message.as_line())
            return False
        if pending is None:
            return False
        if pending.message.method == "initialize" and "result" in message.body:
            self._version = str(message.body["result"].get("protocolVersion"))
        if self._waiting.get(pending.id, pending) is pending:
            await self._send(message.answering(pending.id))
        self._finish(pending)
        return True

    # ---- both ----------------------------------------------------------------------------------------------

    def _post(self, message: Message) -> contextlib.AbstractAsyncContextManager[Answer]:
        headers = {**_HEADERS, **self._of_session(), **message.headers()}
        return self._channel.ask("POST", self._url, headers, message.raw)

    def _of_session(self) -> dict[str, str]:
        headers = {SESSION_HEADER: self._session, VERSION_HEADER: self._version}
        return {name: value for name, value in headers.items() if value is not None}

    async def _say_goodbye(self) -> None:
        with contextlib.suppress(Broken, TimeoutError):
            ended = self._channel.ask("DELETE", self._url, self._of_session())
            async with asyncio.timeout(FAREWELL_SECONDS), ended:
                pass

    async def _tell(self, found: Misread) -> None:
        await self._send(encoded(found.answer()))

    async def _refuse(self, pending: _Pending, code: int, why: str) -> None:
        """Answers a request that the daemon does not answer, unless it is."""
        if self._waiting.get(pending.id) is pending:
            await self._tell(Misread(code, pending.id, why))
            self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        if self._waiting.get(pending.id) is pending:
            del self._waiting[pending.id]
        self._settled.set()
        if not self._answered:
            self._answered = True
            self._on_answer()

    def _lose(self, why: CellblockError) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    @contextlib.contextmanager
    def _losing(self) -> Generator[None]:
        try:
            yield
        except Broken as error:
            if self._revive is None:
                self._lose(self._gone(str(error)))
            else:
                logger.warning("the daemon was not told what the client said: %s", error)

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        async with at_most(seconds):
            while not done():
                self._settled.clear()
                await self._settled.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.start(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._lost.done():
            self._lost.set_exception(error)


def _shown(session: str | None) -> str | None:
    return session if session and session.isascii() and session.isprintable() else None
