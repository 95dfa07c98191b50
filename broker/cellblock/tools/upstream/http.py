"""Streamable HTTP, the transport to servers with a URL, and the older one before it; what a server sends is read
leniently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

import httpx2
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.base.budget import OverBudget
from cellblock.base.tasks import TaskSet, end_tasks
from cellblock.tools.upstream.dispatcher import Connection, Pending
from cellblock.tools.upstream.failures import (
    SESSION_NOT_FOUND,
    AnswerUnreadable,
    ConnectionLost,
    HttpRefused,
    SessionForgotten,
)
from cellblock.tools.upstream.http_requests import (
    EVENTS,
    is_within_origin,
    kind_of,
    refusal_of,
    said_by,
    sent_within_origin,
    unpacked,
    words_of,
)
from cellblock.tools.upstream.pace import MESSAGE_BYTES, Holding, Pace
from cellblock.tools.upstream.wire import messages
from cellblock.tools.upstream.wire.framing import Cut, Event, EventSplitter, over_cap
from cellblock.tools.upstream.wire.messages import Failure, Unreadable

logger = logging.getLogger("cellblock.tools.upstream")

SESSION_HEADER: Final = "mcp-session-id"
LAST_EVENT_HEADER: Final = "last-event-id"

MOST_RESUMED: Final = 2
"""Bounds the attempts in a row to go on with a stream that bring nothing."""

RETRY_MS: Final = 1_000
"""Sets the pause before a stream is asked for again whose server does not say how long."""

CLOSE_SECONDS: Final = 2.0
"""Bounds the goodbye to a session."""

EVENT_LINES: Final = 16
"""Sets how many lines of a stream of events cost as much as a message."""


@dataclass(slots=True)
class _Place:
    """Says where a stream of events is gone on with, and when; `fruitless` counts the attempts in a row that have
    brought nothing."""

    last: str | None = None
    retry_ms: int = RETRY_MS
    fruitless: int = 0


class HttpWire:
    """Sends each message in a request of its own, and reads the answer to it.

    Args:
        url: Of the server.
        client: Sends.
        cap: Largest message in bytes, counted after decompression.
        holding: Counts the bytes of large messages.
    """

    where = "its HTTP connection"
    connection: Connection
    """Takes what comes, from the beginning of `run` on."""

    def __init__(self, url: str, client: httpx2.AsyncClient, cap: int, holding: Holding) -> None:
        self.url = url
        self.client = client
        self._cap = cap
        self._holding = holding
        self._session: str | None = None
        self._version: str | None = None
        self._posts = TaskSet()
        self._listening: asyncio.Task[None] | None = None

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        if pending.method == "initialize":
            self._session = self._version = None
        task = self._posts.start(self._exchange(pending, body, headers))
        pending.answer.add_done_callback(lambda answer: answer.cancelled() and task.cancel())

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        self._version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self._version)
        if what == "notifications/cancelled" and self._version in MODERN_PROTOCOL_VERSIONS:
            return  # The end of the request's stream says it.
        async with self._sent("POST", body, headers) as response:
            if response.status_code >= 400:
                await refusal_of(response)
        if what == "notifications/initialized" and self._session is not None and self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    async def run(self, connection: Connection) -> None:
        """Waits for the end of the connection, and ends the session."""
        self.connection = connection
        try:
            await connection.ended.wait()
            await connection.last_answers()
        finally:
            await end_tasks(*self._posts, self._listening)

    async def close(self) -> None:
        """Tells the server that the session is over."""
        if self._session is not None:
            with suppress(MCPError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS), self._sent("DELETE", None, {}):
                    pass

    # ---- requests ------------------------------------------------------------------------------------

    async def _exchange(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        """Sends a request, and hands on what comes until it is answered."""
        try:
            pending.sent = True
            async with self._sent("POST", body, headers) as response:
                self._version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self._version)
                del body
                if response.status_code >= 300:
                    raise await self._refused(response, pending)
                if pending.method == "initialize":
                    self._session = response.headers.get(SESSION_HEADER)
                await self._answer(response, pending)
        except Cut as error:
            self.connection.end(str(error))
        except MCPError as error:
            pending.fail(error)
        except Exception as error:
            logger.exception("a request to a server failed inside Cellblock")
            pending.fail(ConnectionLost(said_by(error), sent=True))

    async def _answer(self, response: httpx2.Response, pending: Pending) -> None:
        kind = kind_of(response)
        if kind == EVENTS:
            await self._answer_in_events(response, pending)
            return
        body = (await self.whole(response)).lstrip(messages.BYTE_ORDER_MARK + b" \t\r\n")
        if not body:
            # It may come on the session's stream.
            if response.status_code != 202 or self._listening is None or self._listening.done():
                raise AnswerUnreadable(f"HTTP {response.status_code}, and nothing behind it")
            return
        if body[:1] not in (b"{", b"[") and (begin := body.find(b'{"jsonrpc"')) > 0:
            # PHP writes its warnings there.
            self.connection.take(Unreadable(None, f"`{messages.quoted(body[:begin])}`"))
            body = body[begin:]
        if kind != "application/json" and body[:1] not in (b"{", b"["):
            raise AnswerUnreadable(f"it is {kind or 'of no type'}: `{messages.quoted(body)}`")
        await self.connection.received(body, pending)
        if not pending.answer.done():
            raise AnswerUnreadable(f"it is no answer to the request: `{messages.quoted(body)}`")

    async def _answer_in_events(self, response: httpx2.Response, pending: Pending) -> None:
        """Reads a request's stream of events, and goes on with it where it breaks off."""
        place = _Place()
        try:
            await self._follow(self._events(response), place, pending)
        except ConnectionLost:
            if place.last is None:
                raise
        while not pending.answer.done():
            if place.last is None or place.fruitless > MOST_RESUMED:
                raise ConnectionLost("its stream of events ended without an answer", sent=True)
            await asyncio.sleep(place.retry_ms / 1000)
            with suppress(ConnectionLost):
                await self._resume(place, pending)

    async def _resume(self, place: _Place, pending: Pending | None = None) -> int:
        """Asks for a stream from a place on, and hands on what it brings; returns the status."""
        place.fruitless += 1
        headers = {LAST_EVENT_HEADER: place.last} if place.last is not None else {}
        async with self._sent("GET", None, headers) as response:
            if response.status_code < 300 and kind_of(response) == EVENTS:
                place.fruitless = 0
                await self._follow(self._events(response), place, pending)
            return response.status_code

    async def _follow(
        self, stream: AsyncGenerator[Event], place: _Place, pending: Pending | None = None
    ) -> None:
        """Hands on what a stream brings, until it ends or the request is answered."""
        async with aclosing(stream) as events:
            async for event in events:
                place.last, place.retry_ms = event.id or place.last, event.retry_ms or place.retry_ms
                if event.data and event.name in (b"message", b"error"):
                    # Some keep a stream alive by what is no message, or say so what is wrong.
                    origin = pending if event.name == b"message" and event.data[:1] in (b"{", b"[") else None
                    await self.connection.received(event.data, origin)
                    if pending is not None and pending.answer.done():
                        return

    async def _refused(self, response: httpx2.Response, pending: Pending) -> MCPError:
        """Makes an error of a status, with the server's words."""
        location = response.headers.get("location", "nowhere")
        if response.status_code < 400:
            return HttpRefused(response.status_code, f"it redirects to {location}, which is not followed")
        body = await refusal_of(response)
        found = messages.read(body.lstrip())
        # Beside an error that is a text stands what it means.
        failure = (
            found if isinstance(found, Failure) and b'"error":"' not in body.replace(b" ", b"") else None
        )
        said = failure.message if failure is not None else words_of(body, kind_of(response))
        status, text = response.status_code, said.lower()
        if self._session is not None and pending.method != "initialize":
            # The second is of the SDK of TypeScript, started anew.
            named = any(words in text for words in ("session", "server not initialized")) or (
                failure is not None and failure.code == SESSION_NOT_FOUND
            )
            if status in (404, 410) or (status == 400 and named):
                return SessionForgotten(status, said)
        if (wait := response.headers.get("retry-after", "")[:40]) and status != 401:
            said = f"{said} (Retry-After: {wait})".strip()
        code = types.METHOD_NOT_FOUND if status == 404 else types.INTERNAL_ERROR
        if failure is not None and failure.code != types.INTERNAL_ERROR:
            code = failure.code
        return HttpRefused(status, said, code=code, data=failure.data if failure else None)

    # ---- the session's stream ------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Reads what the server sends outside of answers, for as long as it has a stream for that."""
        place = _Place()
        while place.fruitless < MOST_RESUMED:
            try:
                status = await self._resume(place)
                if status in (404, 405) or 300 <= status < 400:
                    return
            except MCPError:
                pass
            except Cut as error:
                self.connection.end(str(error))
                return
            await asyncio.sleep(place.retry_ms / 1000)

    # ---- bytes ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _sent(
        self, method: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[httpx2.Response]:
        """Sends an HTTP request, and gives the response unread. Raises ConnectionLost."""
        given = {"accept": EVENTS if method == "GET" else f"application/json, {EVENTS}"}
        if body is not None:
            given["content-type"] = "application/json"
        if self._session is not None:
            given[SESSION_HEADER] = self._session
        if self._version is not None:
            given[MCP_PROTOCOL_VERSION_HEADER] = self._version
        sending = sent_within_origin(self.client, method, self.url, body, {**given, **headers})
        with _worded():
            async with sending as response:
                yield response

    async def whole(self, response: httpx2.Response) -> bytes:
        """Reads a body within the cap. Raises AnswerUnreadable, ConnectionLost."""
        parts: list[bytes] = []
        size = 0
        with _worded(), self._holding.counting() as count:
            async for chunk in unpacked(response):
                size += len(chunk)
                if size > self._cap:
                    raise AnswerUnreadable(over_cap(size, self._cap), too_large=True)
                count(size)
                parts.append(chunk)
        return b"".join(parts)

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[Event]:
        splitter, pace = EventSplitter(), Pace()
        with _worded(), self._holding.counting() as count:
            async for chunk in unpacked(response):
                events, tried = splitter.feed(chunk), splitter.held
                if tried <= messages.SMALL_BYTES and chunk.rstrip().endswith(b"}"):
                    await pace.spend(tried / MESSAGE_BYTES)
                    events += splitter.early()
                await pace.spend(len(chunk) / MESSAGE_BYTES + chunk.count(b"\n") / EVENT_LINES)
                while events:
                    await pace.spend(1)
                    yield events.pop(0)
                if splitter.held > self._cap:
                    raise AnswerUnreadable(over_cap(splitter.held, self._cap), too_large=True)
                count(splitter.held)


class SseWire(HttpWire):
    """Speaks the older transport: one stream of events has all answers, and says where messages are posted to."""

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        pending.sent = True
        await self.post(body, headers, pending.method)

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        async with self._sent("POST", body, headers) as response:
            await _check(response)

    async def run(self, connection: Connection) -> None:
        """Reads the stream until it ends."""
        self.connection = connection
        await self._follow(self._stream, _Place())

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Opens the stream, and waits until it says where to post to. Raises MCPError."""
        async with self._sent("GET", None, {"cache-control": "no-store"}) as response:
            await _check(response)
            if kind_of(response) != EVENTS:
                raise ConnectionLost("it answers with no stream of events", sent=False)
            self._stream = self._events(response)
            async for event in self._stream:
                if event.name == b"endpoint":
                    place = urljoin(str(response.request.url), event.data.decode("utf-8", "replace"))
                    if not is_within_origin(httpx2.URL(self.url), httpx2.URL(place)):
                        raise ConnectionLost(
                            f"it wants messages at another origin: {place[:200]}", sent=False
                        )
                    self.url = place
                    break
            else:
                raise ConnectionLost("its stream ended before it said where to post to", sent=False)
            try:
                yield
            finally:
                await self._stream.aclose()


@contextmanager
def _worded() -> Generator[None]:
    """Says what it comes to for a request when it cannot be sent, or its answer cannot be read."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise ConnectionLost(said_by(error), sent=False) from None
    except httpx2.DecodingError as error:
        raise AnswerUnreadable(str(error)) from None
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise ConnectionLost(said_by(error), sent=True) from None
    except OverBudget as error:
        raise AnswerUnreadable(str(error), too_large=True) from None


async def _check(response: httpx2.Response) -> None:
    """Raises HttpRefused: Its status says that it is none of what was asked for."""
    if response.status_code >= 300:
        said = words_of(await refusal_of(response), kind_of(response))
        raise HttpRefused(response.status_code, said)
