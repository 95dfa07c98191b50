"""Posts watches the HTTP requests of one connection: each is given up as soon as nobody waits for its answer.

The SDK gives up the stream of a call that is over only in MCP 2026-07-28, and reads an older server's for as long as it
sends. Who ends a call says so here; the answer's body is then closed by whoever reads it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT
from mcp.shared.message import SessionMessage

OVER: Final = "nobody waits for the answer any more"

Chunks = Callable[[], AsyncIterator[bytes]]


class RequestOver(Exception):
    """Tells that nobody waits for the answer to a request any more."""


class Post:
    """A post is one JSON-RPC request under way, and what is done over HTTP for it."""

    def __init__(self) -> None:
        self.is_over = False
        self._clocks: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Stops the waits within `bounded`, since nobody waits for the answer any more."""
        self.is_over = True
        for clock in self._clocks:
            if not clock.expired():
                clock.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def bounded(self) -> AsyncGenerator[None]:
        """Bounds a wait by the life of the request. Raises TimeoutError when the request is over."""
        async with asyncio.timeout(0 if self.is_over else None) as clock:
            self._clocks.add(clock)
            try:
                yield
            finally:
                self._clocks.discard(clock)

    async def chunks(self, whole: Chunks) -> AsyncGenerator[bytes]:
        """Gives an answer's body, as long as somebody waits for it. Raises RequestOver."""
        body = whole()
        while True:
            try:
                async with self.bounded():
                    chunk = await anext(body)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not self.is_over:
                    raise
                raise RequestOver(OVER) from None
            yield chunk


current: ContextVar[Post | None] = ContextVar("cellblock_post", default=None)
"""Holds the request that this task sends, or whose answer it reads. The SDK handles a message in the context in which
it was sent."""


class Posts:
    """Holds the HTTP requests of one connection."""

    def __init__(self) -> None:
        self._open: dict[int | str, Post] = {}

    @property
    def open(self) -> int:
        """Counts the requests that wait for an answer."""
        return len(self._open)

    @contextmanager
    def sending(self, item: SessionMessage) -> Generator[None]:
        """Notes the sending of a message; one that gives up a request ends it here."""
        message = item.message
        post: Post | None = None
        if isinstance(message, types.JSONRPCRequest):
            post = self._open[message.id] = Post()
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._end((message.params or {}).get("requestId"))
        token = current.set(post)
        try:
            yield
        finally:
            current.reset(token)

    def received(self, item: SessionMessage | Exception) -> None:
        """Ends the request that a message answers."""
        if not isinstance(item, Exception) and isinstance(
            item.message, types.JSONRPCResponse | types.JSONRPCError
        ):
            self._end(item.message.id)

    def _end(self, number: object) -> None:
        post = self._open.pop(number, None) if isinstance(number, int | str) else None
        if post is not None:
            post.end()


class ServerClient(httpx2.AsyncClient):
    """Bounds, in the SDK's HTTP client, what is done for one request.

    Args:
        headers: Of every request.
        auth: Puts credentials on each.
        tls: As httpx2 takes it.
    """

    def __init__(
        self,
        headers: dict[str, str],
        auth: httpx2.Auth | None,
        tls: ssl.SSLContext,
    ) -> None:
        timeout = httpx2.Timeout(MCP_DEFAULT_TIMEOUT, read=MCP_DEFAULT_SSE_READ_TIMEOUT)
        super().__init__(headers=headers, auth=auth, timeout=timeout, verify=tls)

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        """Sends as the client does; for a request that is over, an answer without a body, which leaves the SDK nothing
        to do."""
        post = current.get()
        if post is None:
            return await super().send(request, **how)
        try:
            async with post.bounded():
                return await super().send(request, **how)
        except Exception:
            # What it failed with is of no use to anybody, and the SDK would end the connection with it.
            if not post.is_over:
                raise
            return httpx2.Response(202, request=request)
