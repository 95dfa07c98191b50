"""Replicas decide which broker answers a request, and have it passed on there.

A session belongs to the broker that has opened it, and its id says to which. Requests without a session are anybody's,
but for those that are about a run that one broker holds.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, decode_header_value
from starlette.types import Message, Receive, Scope, Send

from cellblock.base.database import StoreError
from cellblock.base.presence import Presence
from cellblock.frontend.http.exchange import Exchange
from cellblock.frontend.http.refusal import Refused, busy
from cellblock.frontend.mcp.list_changes import LISTEN
from cellblock.frontend.mcp.request_state import MAX_CHARS, RequestStates
from cellblock.frontend.mcp.run_tool import states_of
from cellblock.frontend.replicas.brokers import Brokers
from cellblock.frontend.replicas.passing import MISDIRECTED, RELAYED_HEADER, NotThere, Passing
from cellblock.frontend.replicas.words import LARGE, PURPOSE, WAY_HEADER, Words
from cellblock.frontend.service import RunService

if TYPE_CHECKING:
    from cellblock.frontend.replicas.lending import Lending

logger = logging.getLogger("cellblock.frontend")

SESSION_HEADER: Final = b"mcp-session-id"
METHOD_HEADER: Final = MCP_METHOD_HEADER.lower().encode()
NAME_HEADER: Final = MCP_NAME_HEADER.lower().encode()
LISTENS: Final = LISTEN.encode()

RETRY_SECONDS: Final = 5
"""Says after how many seconds a client may ask again that has come to a broker that is stopping, and not to another
one."""

MAX_KEYS: Final = 16
"""Bounds the members of a body that are looked at: each costs as much as the longest word."""

_KEY: Final = b'"requestState"'
_WORD = re.compile(rb'\s{0,8}:\s{0,8}"([\w.-]{1,%d})"' % MAX_CHARS)

UNKNOWN: Final = (
    "The broker that has this cannot be looked for while PostgreSQL is away. Ask again in a few seconds."
)
GONE: Final = "This session has ended with its broker. Begin a new one."


@dataclass(slots=True)
class Route:
    """Says to which broker a request goes.

    Attributes:
        session: The session as its broker knows it; None for a request without one.
        to: The broker that answers; None for this one, or where only the body says it.
        address: From where the client of a request comes that was passed on; None for any other request.
    """

    session: bytes | None = None
    to: str | None = None
    address: str | None = None


class Replicas:
    """Stands between the gate of one broker and the other brokers.

    Args:
        brokers: Who there is.
        words: Signs ids of sessions.
        states: Reads the words of clients that are back.
        passing: Carries requests.
        holder_of: Says which broker goes on with a run; empty where none does. Raises StoreError.
        lending: Lends servers to other brokers; None where none of them exists once.
    """

    headers: Final = frozenset((RELAYED_HEADER, METHOD_HEADER, NAME_HEADER, WAY_HEADER, LARGE))
    """Lists the headers that decide here, beside the gate's."""

    def __init__(
        self,
        brokers: Brokers,
        words: Words,
        states: RequestStates,
        passing: Passing,
        holder_of: Callable[[str], Awaitable[str]],
        lending: Lending | None = None,
    ) -> None:
        self.lending: Final = lending
        self._brokers, self._words, self._states = brokers, words, states
        self._passing, self._holder_of = passing, holder_of
        self._draining = False

    @property
    def ready(self) -> bool:
        """Says whether this broker has seen the others once: before, it does not know whose a session is."""
        return self._brokers.has_looked

    async def drain(self) -> None:
        """Has the other brokers take what is new; bounded."""
        await self._brokers.drain()
        self._draining = True

    def route(self, scope: Scope, headers: Mapping[bytes, bytes], session: bytes | None) -> Route:
        """Says where a request goes, as far as its headers say it. A session's id becomes in `scope` what it is here.

        Raises:
            Refused: The session's id is forged, or the request was passed on to the wrong broker.
        """
        own, route = self._brokers.name, Route()
        if (mark := headers.get(RELAYED_HEADER)) is not None:
            route.address = self._words.read_mark(mark, own)
            if route.address is None:
                raise Refused(MISDIRECTED)
        if session is None:
            if self._draining and route.address is not None:
                raise Refused(MISDIRECTED)
            if self._draining and scope["method"] == "POST" and headers.get(METHOD_HEADER) != LISTENS:
                # A stream of changes would hold the end up; its client comes back elsewhere.
                peer = self._brokers.another()
                route.to = None if peer is None else peer.name
            return route
        found = self._words.read_session(session)
        if found is None:
            raise Refused(404)
        route.session, broker = found
        if broker != own:
            if route.address is not None:
                raise Refused(MISDIRECTED)
            route.to = broker
            return route
        scope["headers"] = [
            (key, route.session if key == SESSION_HEADER else value) for key, value in scope["headers"]
        ]
        return route

    def named(self, message: Message) -> Message:
        """Returns the beginning of an answer of this broker with the session's id as clients know it."""
        headers = [
            (key, self._words.session(value, self._brokers.name) if key.lower() == SESSION_HEADER else value)
            for key, value in message.get("headers", ())
        ]
        return {**message, "headers": headers}

    async def passes_on(
        self,
        route: Route,
        headers: Mapping[bytes, bytes],
        scope: Scope,
        body: bytes,
        exchange: Exchange,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Has another broker answer a request that is not this one's.

        Args:
            route: Where it goes, as far as known.
            headers: Those that decide.
            scope: The request.
            body: Its whole body, not decoded.
            exchange: What follows it.
            receive: Tells when the client hangs up.
            send: Takes the answer.

        Returns:
            Whether it was answered; this broker has to otherwise.

        Raises:
            Refused: The broker of the session has gone, cannot be reached, or was lost.
        """
        to = route.to
        if to is None:
            if route.session is not None or route.address is not None:
                return False
            to = await self._named_in(headers, body)
        try:
            peer = await self._brokers.peer(to) if to else None
        except StoreError:
            # It may live: a session that is told to have ended loses what it holds.
            raise busy(503, RETRY_SECONDS, UNKNOWN) from None
        try:
            if peer is None:
                raise NotThere
            address = scope.get("client")
            mark = self._words.mark(peer.name, address[0] if address else "")
            await self._passing.pass_on(peer.url, mark, scope, body, exchange, receive, send)
        except NotThere as error:
            if error.misdirected and route.session is not None and peer is not None:
                logger.warning(
                    "at %s, which broker %s has given, it does not answer: is cellblock.replicas.url the address of "
                    "one broker alone, and have all the same key?",
                    peer.url,
                    peer.name,
                )
            if route.session is not None:
                raise Refused(404, why=GONE) from None
            if route.to is not None:
                raise busy(503, RETRY_SECONDS) from None
            return False
        return True

    # ---- inside --------------------------------------------------------------------------------------

    async def _named_in(self, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
        """Returns the broker of the run that a request without a session is about; None where anybody answers."""
        method = headers.get(METHOD_HEADER)
        if method == b"tools/call" and (word := word_in(body)) is not None:
            return await self._states.broker_in(word)
        if method == b"tasks/cancel":
            # Its other methods are about a row, which all brokers see.
            task = decode_header_value(headers.get(NAME_HEADER, b"").decode("latin-1")) or ""
            # What cannot be read cannot be ended either, and says so itself.
            with contextlib.suppress(StoreError):
                return await self._holder_of(task.partition(".")[0])
        return None


def word_in(body: bytes) -> str | None:
    """Returns what looks like the word of a client that is back, in a body that nobody has decoded: in a text, quotes
    are escaped. Who reads it sees whether it is one."""
    end = 0
    for _ in range(MAX_KEYS):
        if (at := body.find(_KEY, end)) < 0:
            break
        end = at + len(_KEY)
        if found := _WORD.match(body, end):
            return found[1].decode()
    return None


@contextlib.asynccontextmanager
async def replicas(
    service: RunService,
    presence: Presence,
    url: str,
    passing: Passing,
    lending: Callable[[Words], Lending | None] = lambda _: None,
) -> AsyncGenerator[Replicas]:
    """Enters a broker among its replicas inside the block.

    Args:
        service: The broker.
        presence: Says that it lives, to the PostgreSQL by which they know each other.
        url: Where the others reach it.
        passing: Carries requests to them; closed at the end.
        lending: Makes what lends them servers; closed at the end.

    Raises:
        StoreError: The key that they share is not there.
    """
    parked = service.parked_runs
    words = Words(await parked.signing_keys(PURPOSE))
    brokers = Brokers(presence.server, service.replica, url, words, presence.hold)
    lends = lending(words)
    try:
        await brokers.join()
        yield Replicas(brokers, words, states_of(service), passing, parked.holder, lends)
    finally:
        if lends is not None:
            await lends.close()
        await brokers.leave()
        await passing.close()
