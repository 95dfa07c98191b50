"""Passing carries one request to another broker, and its answer back as it comes.

Nothing is decoded on the way. Who hangs up hangs up there, too: a client that leaves ends its run wherever it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import httpx2
from starlette.types import Receive, Scope, Send

from cellblock.base.broker_http import BrokerTransport
from cellblock.base.tasks import end_tasks
from cellblock.frontend.http.address import MCP_PATH
from cellblock.frontend.http.exchange import Broken, Exchange
from cellblock.frontend.http.refusal import Refused, busy

RELAYED_HEADER: Final = b"x-cellblock-relayed"
"""Names the header with the mark of a request that a replica passes on."""

RETRY_SECONDS: Final = 2
"""Says after how many seconds a client may ask again while another broker cannot be reached: either it can by then, or
it is known to be gone."""

MISDIRECTED: Final = 421
"""Says, as the status of an answer, that a broker does not answer this request, and has done nothing."""

OF_ONE_CONNECTION: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Lists headers that are about one connection (RFC 9110, section 7.6.1)."""

JUDGED: Final = frozenset(
    (b"host", b"origin", b"content-length", b"expect", b"cookie", b"sec-fetch-site", RELAYED_HEADER)
)
"""Lists headers of a request that its first broker has judged, or makes anew."""

UNREACHABLE: Final = "The broker that has this cannot be reached at the moment. Ask again in a few seconds."
LOST: Final = "The broker that has this was lost while it had the request, which may have run."
ENDED: Final = "The daemon that passed this on is stopping. The request may have run."


def host_header(url: str) -> str:
    """Returns the `Host` header of requests that are passed on to a URL: in small letters, without the usual port."""
    return httpx2.URL(url).netloc.decode("ascii")


class NotThere(Exception):
    """Tells that the broker to which a request was passed is not there, or that another one stands in its place, which
    does not answer; nothing was done."""

    def __init__(self, *, misdirected: bool = False) -> None:
        super().__init__()
        self.misdirected = misdirected


class Passing:
    """Holds the connections to other brokers.

    Args:
        connections: How many there may be.
        name: What each broker's certificate is good for; None: the host of its URL.
    """

    def __init__(self, connections: int, name: str | None = None) -> None:
        # No client around it: that would add headers, cookies and ways to follow.
        self._http = BrokerTransport(name, connections)

    async def close(self) -> None:
        """Ends all connections."""
        await self._http.aclose()

    async def pass_on(
        self,
        url: str,
        mark: bytes,
        scope: Scope,
        body: bytes,
        exchange: Exchange,
        receive: Receive,
        send: Send,
    ) -> None:
        """Has another broker answer a request, until the client hangs up or the exchange ends.

        Args:
            url: The other broker's, without a path.
            mark: Says there that the request is passed on.
            scope: The request.
            body: Its whole body.
            exchange: What follows the request here.
            receive: Tells when the client hangs up.
            send: Takes the answer.

        Raises:
            NotThere: The other broker has done nothing.
            Refused: It cannot be reached, or was lost.
            Broken: It was lost within its answer.
        """
        headers = [
            *((key, value) for key, value in scope["headers"] if key not in OF_ONE_CONNECTION | JUDGED),
            (RELAYED_HEADER, mark),
        ]
        request = httpx2.Request(
            scope["method"],
            url + MCP_PATH,
            headers=headers,
            content=body if scope["method"] == "POST" else None,
        )
        begun = asyncio.Event()
        answering = asyncio.create_task(self._answered(request, send, begun), name="relayed request")
        hanging_up = asyncio.create_task(_hung_up(receive))
        try:
            with exchange.carried_by(answering.cancel):
                await asyncio.wait((answering, hanging_up), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                if not answering.cancelled():
                    answering.result()
                elif begun.is_set():
                    raise Broken
                else:
                    raise Refused(502, why=ENDED)
        finally:
            await end_tasks(answering, hanging_up)

    async def _answered(self, request: httpx2.Request, send: Send, begun: asyncio.Event) -> None:
        try:
            async with self._response(request) as response:
                if response.status_code == MISDIRECTED:
                    raise NotThere(misdirected=True)
                begun.set()
                headers = [
                    (key.lower(), value)
                    for key, value in response.headers.raw
                    if key.lower() not in OF_ONE_CONNECTION
                ]
                await send(
                    {"type": "http.response.start", "status": response.status_code, "headers": headers}
                )
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                async for piece in response.stream:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except httpx2.TransportError as error:
            if begun.is_set():
                raise Broken from None
            if isinstance(error, httpx2.ConnectError) and _is_refused(error):
                # A machine that answers so has nobody at this address any more.
                raise NotThere from None
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
                raise busy(503, RETRY_SECONDS, UNREACHABLE) from None
            raise Refused(502, why=LOST) from None

    @contextlib.asynccontextmanager
    async def _response(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Response]:
        response = await self._sent(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request to another broker. Where a connection was used before, the other side may have closed it
        meanwhile: what may be done twice is then sent once more."""
        is_new = False

        async def note(event: str, _: object) -> None:
            nonlocal is_new
            is_new |= event == "connection.connect_tcp.started"

        request.extensions = {**request.extensions, "trace": note}
        try:
            return await self._http.handle_async_request(request)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            if is_new or request.method == "POST":
                raise
        return await self._http.handle_async_request(request)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_refused(error: BaseException) -> bool:
    """Says whether an error comes of a connection that was refused."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ConnectionRefusedError):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
