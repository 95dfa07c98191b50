"""Singles are servers that exist once among several brokers: one of them has the session, and the others go through it.

Each session of such a server has its turns: one begins when it is known whose the server is, and ends when that is no
longer so. A broker's own turn is over when its server has ended, and only then may another broker begin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import httpx2

from cellblock.base.broker_http import BrokerTransport
from cellblock.base.claims import END_SECONDS, TAKE_OVER_SECONDS, Claim, Claims

LOOK_SECONDS: Final = 0.2
"""Separates two looks at whose a server is; they are at memory."""

FIND_SECONDS: Final = 3.0
"""Bounds the wait for a server's broker before that is told as a failed attempt; the first look takes a second."""

HAND_ON_SECONDS: Final = 10.0
"""Bounds the time that calls under way have to end when a broker that is stopping hands a server on."""

TELL_SECONDS: Final = 3.0
"""Bounds the wait until the other brokers know that a session has ended here: a look, unless PostgreSQL is away; then
they wait."""

MOVE_SECONDS: Final = TAKE_OVER_SECONDS + 10.0
"""Bounds how long calls wait for a server on its way to another broker: until that may begin, and has started it."""

LARGE_HEADER: Final = "x-cellblock-large"
"""Names the header of a message behind which a large input comes: the token that stands for it, and the message's
length."""

NOBODY: Final = "no broker that serves over HTTP has it yet"
AWAY: Final = "which broker has it cannot be known now: "
UNSURE: Final = "PostgreSQL has not said that it is this broker's, and another one may begin with it"
HANDED_ON: Final = "this broker is stopping, and hands it on"
MOVED: Final = "it is no longer with the broker that had it"


class Moved(Exception):
    """Tells that the server is with another broker, or with none; the text says why."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way leads to the broker that has a server.

    Attributes:
        broker: That broker.
        url: Where it lends the server.
        headers: What shows it whose request is one.
        name: What its certificate is good for; None: the host of the URL.
    """

    broker: str
    url: str
    headers: Mapping[str, str]
    name: str | None = None


class WayTransport(BrokerTransport):
    """Asks the broker at the end of a way; one that is not there has, to the session, no such session."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request to the broker at the end of the way."""
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            # Nothing was sent: that is to be told of a call.
            return httpx2.Response(404, request=request)
        if response.status_code == HTTPStatus.UNAUTHORIZED and "www-authenticate" in response.headers:
            # A broker is there for which the way does not hold, and which asks for a token as it asks everybody.
            await response.aclose()
            return httpx2.Response(404, request=request)
        return response


@dataclass(frozen=True, slots=True)
class Place:
    """Says where a server is in one epoch: here, or at the end of a way."""

    epoch: int
    way: Way | None = None


WayTo = Callable[[str, Claim], Way | None]
"""Gives the way to the broker of a claim to a server; None where no broker has written the claim."""


@dataclass(slots=True)
class Singles:
    """Holds what is known of the servers that exist once.

    Args:
        claims: Whose they are.
        way_to: Leads to other brokers.
        signed: Returns a URL as this broker writes it into its claims.
    """

    claims: Claims
    way_to: WayTo
    signed: Callable[[str], str] = str
    own_turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def of(self, name: str) -> Single | None:
        """Returns the server as one that exists once; None where each broker has it for itself."""
        return Single(name, self) if name in self.claims.names else None

    def take(self, url: str) -> None:
        """Begins to claim what nobody has; others reach this broker at the URL."""
        self.claims.take(self.signed(url))

    async def given_up(self) -> None:
        """Claims no server any more, and waits until this broker's sessions have ended and the others know it;
        bounded."""
        self.claims.let_go()
        for name in self.claims.names:
            # One that is between two attempts to connect has nothing to end.
            if not self.own_turns[name].locked() and (epoch := self.claims.epoch(name)) is not None:
                self.claims.ended(name, epoch)
        await while_true(lambda: self.claims.has_any, HAND_ON_SECONDS + END_SECONDS)
        await while_true(lambda: self.claims.held, TELL_SECONDS)


class Single:
    """Gives the sessions of one server their turns.

    Args:
        name: The server's.
        singles: What is known of all.
    """

    def __init__(self, name: str, singles: Singles) -> None:
        self.name: Final = name
        self._singles, self._claims = singles, singles.claims
        self._fails_here = False

    def place(self) -> Place | None:
        """Returns where the server is, as far as is known; None where no broker has it."""
        epoch = self._claims.epoch(self.name)
        if epoch is not None:
            return Place(epoch) if self._claims.takes else None
        claim = self._claims.claim(self.name)
        if claim is None or claim.ended or claim.broker == self._claims.broker:
            return None
        way = self._singles.way_to(self.name, claim)
        return None if way is None else Place(claim.epoch, way)

    def is_here(self, epoch: int) -> bool:
        """Says whether this broker has the server in an epoch, connected or not."""
        return self._claims.epoch(self.name) == epoch

    @property
    def holder(self) -> Claim | None:
        """Returns the claim of the broker that has the server, or had it last."""
        return self._claims.claim(self.name)

    @contextlib.asynccontextmanager
    async def turn(self, leave: Callable[[], object], busy: Callable[[], bool]) -> AsyncGenerator[Place]:
        """Surrounds a session; the block is cancelled when the server is elsewhere.

        Args:
            leave: Called when the server is handed on: no call is to begin.
            busy: Says whether calls are under way.

        Raises:
            Moved: No broker has the server, or the block was cut off.
        """
        place = await self._found()
        if place.way is not None:
            async with self._bounded(place, leave, busy):
                yield place
            return
        # The turn before may be of an earlier session here that has not ended.
        async with self._singles.own_turns[self.name]:
            if not self.is_here(place.epoch):
                raise Moved(UNSURE)
            self._fails_here = True
            try:
                async with self._bounded(place, leave, busy):
                    yield place
            except Moved:
                self._fails_here = False
                raise
            finally:
                self._claims.ended(self.name, place.epoch)

    async def changed(self, bound: float, stamp: Callable[[], object]) -> None:
        """Waits until the server is elsewhere, or `stamp` gives another value; at most `bound` seconds."""
        before = self._news(), stamp()
        await while_true(lambda: (self._news(), stamp()) == before, bound)

    # ---- inside --------------------------------------------------------------------------------------

    def _news(self) -> Place | None:
        """Returns where the server is, where that is worth another attempt: a new epoch is not, of one that fails
        here."""
        place = self.place()
        return None if place is not None and place.way is None and self._fails_here else place

    async def _found(self) -> Place:
        self._claims.want(self.name)
        await while_true(lambda: self.place() is None, FIND_SECONDS)
        place = self.place()
        if place is None:
            trouble = self._claims.trouble
            raise Moved(NOBODY if trouble is None else AWAY + trouble)
        return place

    @contextlib.asynccontextmanager
    async def _bounded(
        self, place: Place, leave: Callable[[], object], busy: Callable[[], bool]
    ) -> AsyncGenerator[None]:
        """Cuts the block off when the server is no longer in its place."""
        clock, why = asyncio.timeout(None), ""

        async def watch() -> None:
            nonlocal why
            why = await self._over(place, leave, busy)
            clock.reschedule(asyncio.get_running_loop().time())

        try:
            async with clock:
                watching = asyncio.create_task(watch(), name=f"whose {self.name} is")
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if clock.expired():
                raise Moved(why) from None
            raise

    async def _over(self, place: Place, leave: Callable[[], object], busy: Callable[[], bool]) -> str:
        """Waits until the server is no longer in its place, and says why."""
        if place.way is not None:
            await while_true(lambda: self.place() == place)
            return MOVED

        await while_true(lambda: self.is_here(place.epoch) and self._claims.takes)
        if not self.is_here(place.epoch):
            return UNSURE
        leave()
        await while_true(lambda: self.is_here(place.epoch) and busy(), HAND_ON_SECONDS)
        return HANDED_ON


async def while_true(is_so: Callable[[], bool], bound: float | None = None) -> None:
    """Waits as long as a condition holds, at most `bound` seconds."""
    loop = asyncio.get_running_loop()
    until = None if bound is None else loop.time() + bound
    while is_so():
        left = LOOK_SECONDS if until is None else until - loop.time()
        if left <= 0:
            return
        await asyncio.sleep(min(left, LOOK_SECONDS))
