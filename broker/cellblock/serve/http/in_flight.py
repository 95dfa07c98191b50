"""Requests in flight end by themselves while a daemon drains, or are ended at the bound of that; a client that hangs up
ends what runs for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Final, TypeVar, cast

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.base.tasks import at_most
from cellblock.serve.http.caller import Caller
from cellblock.serve.http.refusal import Refused, busy, header
from cellblock.serve.http.sessions import SESSION_HEADER, VERSION_HEADER
from cellblock.serve.service import Context, Owner

T = TypeVar("T")

RETRY_SECONDS: Final = 5
"""Says when to ask again while the daemon is stopping; by then its successor runs, or nothing does."""

SCOPE_KEY: Final = "cellblock.exchange"
"""Names the exchange in the ASGI scope."""

FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the answers to calls that draining has ended."""


class Exchange:
    """Follows one HTTP request from its admission to the end of its response."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._ended: str | None = None
        self._cancel: Callable[[], object] | None = None

    @classmethod
    def from_context(cls, context: Context) -> Exchange:
        """Returns the exchange that an MCP request came in."""
        return cast("Request", context.request).scope[SCOPE_KEY]

    def end(self, why: str) -> None:
        """Ends what runs, since nobody waits for the response any more: it is sent, or the client has hung up, or must
        not wait longer."""
        self._ended = self._ended or why
        if self._cancel is not None:
            self._cancel()

    async def within(self, handling: Awaitable[T]) -> T:
        """Waits for what answers, and cancels it when the exchange ends before it. Raises MCPError."""
        with anyio.CancelScope() as work:
            self._cancel = work.cancel
            if self._ended:
                work.cancel()
            try:
                return await handling
            finally:
                self._cancel = None
        raise MCPError(types.INTERNAL_ERROR, self._ended or "Cancelled.")


def owner_of(context: Context) -> Owner:
    """Says whose an MCP request is, as its session and its token prove."""
    return Exchange.from_context(context).owner


class InFlight:
    """Knows the MCP messages that are being answered.

    Attributes:
        draining: Whether nothing new is taken any more.
        closed: Whether nothing is taken at all, of sessions neither: what would answer is about to end.
    """

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.draining = False
        self.closed = False

    @property
    def busy(self) -> bool:
        """Says whether an MCP message is being answered."""
        return bool(self._exchanges)

    def check_open(self) -> None:
        """Raises Refused: Nothing new is taken any more."""
        if self.draining:
            raise busy(503, RETRY_SECONDS)

    async def nothing_new(self, _: Scope) -> None:
        """Refuses all while the daemon drains (a guard)."""
        self.check_open()

    def await_no_longer(self, exchange: Exchange) -> None:
        """Leaves out of draining an exchange that is over, or lasts for as long as its client likes."""
        self._exchanges.discard(exchange)
        if not self._exchanges:
            self._quiet.set()

    @contextlib.contextmanager
    def one(self, owner: Owner, *, is_awaited: bool) -> Generator[Exchange]:
        """Follows a request inside the block; `is_awaited` says whether draining waits for it."""
        exchange = Exchange(owner)
        if is_awaited:
            self._exchanges.add(exchange)
            self._quiet.clear()
        try:
            yield exchange
        finally:
            exchange.end("The client has hung up.")
            self.await_no_longer(exchange)

    async def drain(
        self,
        bound: float,
        hurried: asyncio.Event,
        park: Callable[[], Awaitable[bool]] | None = None,
        other_work: Callable[[], Awaitable[object]] | None = None,
    ) -> bool:
        """Takes nothing new, waits for what is in flight until `bound` seconds are over or `hurried` is set, and ends
        the rest; where nobody hurries, behind what `park` does.

        Args:
            bound: In seconds.
            hurried: Cuts the wait short.
            park: Hands on what can be, and says whether it has ended anything.
            other_work: Waits for what is in flight without a request, as long as for the rest.

        Returns:
            Whether all ended by itself.
        """
        self.draining = True

        async def quiet() -> None:
            others = () if other_work is None else (other_work(),)
            await asyncio.gather(self._quiet.wait(), *others)

        ends = [asyncio.create_task(quiet()), asyncio.create_task(hurried.wait())]
        try:
            await asyncio.wait(ends, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
            is_quiet = ends[0].done()
        finally:
            for end in ends:
                end.cancel()
        if not is_quiet:
            if park is not None and not hurried.is_set() and await park():
                await self._quiet_soon()
            for exchange in self._exchanges:
                exchange.end(
                    "The daemon is stopping, and the time that runs had to end by themselves is over."
                )
        self.closed = True
        # For what has just been ended, and for a session's request that has come since the rest was over.
        await self._quiet_soon()
        return is_quiet

    async def _quiet_soon(self) -> None:
        async with at_most(FAREWELL_SECONDS):
            await self._quiet.wait()


class Drained:
    """Refuses what is new while the daemon drains, and has what is in flight known."""

    def __init__(self, app: ASGIApp, in_flight: InFlight) -> None:
        self.app, self.in_flight = app, in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = header(scope, SESSION_HEADER)
        if self.in_flight.closed and session is not None:
            # It ends with its daemon, and its client begins a new one.
            raise Refused(404)
        # Who is here already may still ask, cancel and say goodbye; a call is refused behind us.
        if session is None and (self.in_flight.closed or header(scope, VERSION_HEADER) is None):
            self.in_flight.check_open()
        caller = Caller.known(scope)
        owner = Owner(caller.principal, caller.client)
        with self.in_flight.one(owner, is_awaited=scope["method"] == "POST") as exchange:
            scope[SCOPE_KEY] = exchange
            await self.app(scope, receive, send)


class Activity:
    """Knows for how long nobody has asked for anything, or has a stream open."""

    def __init__(self) -> None:
        self._open = 0
        self._seen_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._seen_at

    @contextlib.contextmanager
    def one(self) -> Generator[None]:
        """Counts a request or a session inside the block."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._seen_at = time.monotonic()


class Seen:
    """Notes requests as activity."""

    def __init__(self, app: ASGIApp, activity: Activity) -> None:
        self.app, self.activity = app, activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.activity.one():
            await self.app(scope, receive, send)
