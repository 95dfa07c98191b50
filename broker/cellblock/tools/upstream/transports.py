"""Makes MCP client transports from a server's configuration, with an event that says when the connection is over."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TextIO

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from cellblock.base.redaction import guard_loggers
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.streams import ClosingStream
from cellblock.tools.upstream.heavy import HeavyMessages
from cellblock.tools.upstream.incoming import read_message
from cellblock.tools.upstream.lenience import restore, soften
from cellblock.tools.upstream.message_cap import cap_response
from cellblock.tools.upstream.posts import Posts, ServerClient, current
from cellblock.tools.upstream.stdio import stdio_transport
from cellblock.tools.upstream.tls import tls_context

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


class WatchedStream(ClosingStream):
    """A watched stream is a transport's read stream; it sets `ended` when nothing more will come, and softens tool
    lists.

    The SDK tells only the requests in flight that a connection has closed; an idle session would not notice.
    """

    def __init__(
        self,
        inner: ReadStream[SessionMessage | Exception],
        ended: asyncio.Event,
        heavy: HeavyMessages,
        posts: Posts,
    ) -> None:
        self._inner = inner
        self._ended = ended
        self._heavy = heavy
        self._posts = posts

    @property
    def last_context(self) -> object:
        """Returns the sender's context variables, where the inner stream keeps them (read by the SDK)."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Gives the next item of the transport's stream."""
        return await self._read(self._inner.receive())

    async def aclose(self) -> None:
        """Closes the inner stream."""
        self._ended.set()
        await self._inner.aclose()

    async def __anext__(self) -> SessionMessage | Exception:
        return await self._read(self._inner.__anext__())

    async def _read(self, coming: Awaitable[SessionMessage | Exception]) -> SessionMessage | Exception:
        try:
            item = await coming
            self._posts.received(item)
            return soften(self._heavy.filled(item))
        except BaseException:
            self._ended.set()
            raise


class RestoringStream(ClosingStream):
    """A restoring stream is a transport's write stream; it puts inputs which are no objects into their own form."""

    def __init__(self, inner: WriteStream[SessionMessage], heavy: HeavyMessages, posts: Posts) -> None:
        self._inner = inner
        self._heavy = heavy
        self._posts = posts

    async def send(self, item: SessionMessage, /) -> None:
        """Sends one message."""
        self._heavy.sent(item)
        with self._posts.sending(item):
            await self._inner.send(restore(item))

    async def aclose(self) -> None:
        """Closes the inner stream."""
        await self._inner.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWatch:
    """Watches the requests and the answers of one connection over HTTP. The fields are as for `open_transport`; `cut`
    ends the connection."""

    heavy: HeavyMessages
    max_message_bytes: int
    on_status: Callable[[int], None]
    cut: Callable[[str], None]
    tls: ssl.SSLContext

    def sse_client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """Makes the client of a server that speaks SSE, as the SDK asks for it."""
        bounds = timeout or httpx2.Timeout(MCP_DEFAULT_TIMEOUT, read=MCP_DEFAULT_SSE_READ_TIMEOUT)
        client = httpx2.AsyncClient(headers=headers, timeout=bounds, auth=auth, verify=self.tls)
        self.hear(client, self._answered_in_one_stream)
        return client

    def hear(
        self,
        client: httpx2.AsyncClient,
        answered: Callable[[httpx2.Response], Awaitable[None]] | None = None,
    ) -> None:
        """Has what a client sends and gets pass here."""
        client.event_hooks["request"].append(self._put_in)
        client.event_hooks["response"].append(answered or self._answered)

    async def _put_in(self, request: httpx2.Request) -> None:
        """Puts large inputs into a request where tokens stand for them."""
        pieces = self.heavy.splices.spliced(request.content) if request.method == "POST" else []
        if len(pieces) > 1:
            request.stream = httpx2.ByteStream(b"".join(pieces))
            request.headers["content-length"] = str(sum(map(len, pieces)))

    async def _answered(self, response: httpx2.Response) -> None:
        # GET opens the optional stream of notifications; refusing that is no failure.
        if response.request.method == "POST":
            self.on_status(response.status_code)
        cap_response(response, self.max_message_bytes, self.heavy, current.get(), self.cut)

    async def _answered_in_one_stream(self, response: httpx2.Response) -> None:
        self.on_status(response.status_code)
        # All answers share one stream: it cannot go on behind an event that is not read to its end.
        cap_response(response, self.max_message_bytes, self.heavy, on_flood=self.cut, on_over=self.cut)


@asynccontextmanager
async def open_transport(
    config: ServerConfig,
    *,
    stderr: TextIO,
    ended: asyncio.Event,
    max_message_bytes: int,
    on_status: Callable[[int], None],
    on_cut: Callable[[str], None],
    heavy: HeavyMessages,
    auth: httpx2.Auth | None = None,
) -> AsyncGenerator[Streams, None]:
    """Opens the transport that a server's configuration asks for.

    Args:
        config: `command` starts a process (stdio), `url` connects (streamable HTTP, or SSE by `type`).
        stderr: Where a started process's stderr goes.
        ended: Set when the connection is over.
        max_message_bytes: Largest message in bytes.
        on_status: Told the HTTP status of each answer to a message, in the context of the call that it belongs to where
            the SDK keeps that; the SDK's errors do not carry it.
        on_cut: Told why Cellblock ends a connection itself.
        heavy: Reads what is too large for the loop; of this connection alone.
        auth: Puts credentials on each HTTP request.

    Raises:
        OSError: The process cannot be started.
    """
    guard_loggers()

    def cut(why: str) -> None:
        on_cut(why)
        ended.set()

    async with AsyncExitStack() as stack:
        if config.command is not None:
            opened = stdio_transport(
                config, stderr=stderr, max_message_bytes=max_message_bytes, on_cut=on_cut, heavy=heavy
            )
        else:
            tls, url = await asyncio.to_thread(tls_context), config.url
            assert url is not None
            watch = HttpWatch(
                heavy=heavy,
                max_message_bytes=max_message_bytes,
                on_status=on_status,
                cut=cut,
                tls=tls,
            )
            if config.type == "sse":
                opened = sse_client(
                    url, headers=dict(config.headers), httpx_client_factory=watch.sse_client, auth=auth
                )
            else:
                client = await stack.enter_async_context(ServerClient(dict(config.headers), auth, tls))
                watch.hear(client)
                opened = streamable_http_client(url, http_client=client, max_sse_event_size=max_message_bytes)
        read, write = await stack.enter_async_context(opened)

        async def refuse(answer: bytes) -> None:
            message = read_message(answer)
            if not isinstance(message, Exception):
                await write.send(message)

        heavy.refuse = refuse
        posts = Posts()
        yield WatchedStream(read, ended, heavy, posts), RestoringStream(write, heavy, posts)
