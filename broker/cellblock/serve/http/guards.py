"""Guards look at the head of a request, and refuse it or let it pass.

`trusted_hosts`, `trusted_origins` and `own_site` stop a hostile web page, whose `Origin` is not ours, and after DNS
rebinding its `Host` is not ours either (MCP specification, transports, security warning).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.base.kept import Newest
from cellblock.base.settings.policy import NAMED
from cellblock.base.visible import visible
from cellblock.run.policy.counts import Counts
from cellblock.serve.http.address import CONFIG_HEADER
from cellblock.serve.http.caller import Caller, network_of
from cellblock.serve.http.in_flight import InFlight
from cellblock.serve.http.refusal import Refused, busy, header

logger = logging.getLogger("cellblock.serve")

Guard = Callable[[Scope], Awaitable[object]]
"""Raises Refused for a request that may not pass."""

LOGIN_PATH: Final = "/dashboard/login"

SERVER_LOGINS: Final = "/login/"
"""Begins the paths of the pages that lead to the logins of servers."""

METHODS: Final = ("GET", "POST", "DELETE")
"""Lists the HTTP methods that MCP has."""

OWN_SITES: Final = (None, b"same-origin", b"none")
"""Lists who may have something fetched without an Origin, as browsers say it: our own page, or the person."""

MAX_REFUSED: Final = 64
MAX_REFUSED_BYTES: Final = 200
"""Bound the refused headers that are remembered, and each."""

MAX_CLIENTS: Final = 4096
"""Bounds the clients remembered; the one that was quiet longest is forgotten first."""


class Guarded:
    """Lets a request pass that no guard refuses; they look at it in their order."""

    def __init__(self, app: ASGIApp, *guards: Guard) -> None:
        self.app, self.guards = app, guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for guard in self.guards:
            await guard(scope)
        await self.app(scope, receive, send)


async def one_length(scope: Scope) -> None:
    """Refuses a request whose body may end in two places: h11 takes one, and a proxy in front may take the other. What
    is then read as the next request is a part of somebody's body (RFC 9112, sections 6.1 and 11.2)."""
    is_chunked = header(scope, b"transfer-encoding") is not None
    # Before HTTP/1.1 nobody had to know chunks, and may take them for what comes next.
    if is_chunked and (scope["http_version"] != "1.1" or header(scope, b"content-length") is not None):
        raise Refused(400)


_REFUSED: Final = Newest[str, None](MAX_REFUSED)


def _not_known(scope: Scope, name: str, value: bytes) -> Refused:
    """Makes the refusal of a header, which is logged once, for whoever set up what sends it. A web page, which shows no
    token, learns nothing."""
    text = visible(value[:MAX_REFUSED_BYTES].decode("latin-1"))
    why = f"The {name} {text} is not in cellblock.http.allowed_hosts."
    if text not in _REFUSED:
        _REFUSED[text] = None
        logger.error("a request is refused: %s", why)
    return Refused(403, why=None if header(scope, b"authorization") is None else why)


async def uncoded(scope: Scope) -> None:
    """Refuses a compressed body: nothing here unpacks one, and a proxy in front might."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise Refused(415, {"accept-encoding": "identity"})


def trusted_hosts(hosts: Iterable[str]) -> Guard:
    """Refuses a `Host` that is not one of these."""
    known = frozenset(name.encode("latin-1") for name in hosts)

    async def guard(scope: Scope) -> None:
        if (host := header(scope, b"host")) not in known:
            raise _not_known(scope, "Host", host or b"")

    return guard


def trusted_origins(origins: Iterable[str]) -> Guard:
    """Refuses what the page of another origin sends; a request without one comes from no web page, or from an image
    or a script, which would learn whether a daemon is here."""
    known = frozenset(name.encode("latin-1") for name in origins)

    async def guard(scope: Scope) -> None:
        if (origin := header(scope, b"origin")) is None:
            await own_site(scope)
        elif origin not in known:
            raise _not_known(scope, "Origin", origin)

    return guard


async def own_site(scope: Scope) -> None:
    """Refuses what another site has had fetched, whatever its origin: the dashboard is for its own page alone. A file
    of the user leads a tab to where a code signs in, and links and redirects lead one to the login of a server."""
    is_led = scope["path"] == LOGIN_PATH or (
        scope["path"].startswith(SERVER_LOGINS) and scope["method"] == "GET"
    )
    signs_in = is_led and header(scope, b"sec-fetch-dest") == b"document"
    if not signs_in and header(scope, b"sec-fetch-site") not in OWN_SITES:
        raise Refused(403)


async def no_named_tokens(scope: Scope) -> None:
    """Refuses the holders of named tokens: what is behind shows the runs of all."""
    if Caller.known(scope).principal.startswith(NAMED):
        raise Refused(403)


def mcp_methods(config: str, in_flight: InFlight) -> Guard:
    """Tells `connect`, which asks with HEAD, which configuration is served, or to wait for the next daemon."""

    async def guard(scope: Scope) -> None:
        if scope["method"] not in METHODS:
            in_flight.check_open()
            raise Refused(405, {"allow": ", ".join(METHODS), CONFIG_HEADER: config})

    return guard


class RateLimit:
    """Refuses who asks too often; strangers count by their networks.

    Args:
        rate: Requests per second that refill a bucket.
        burst: What a full bucket holds.
        counts: Tells other brokers how often clients ask here, and charges what they ask there; None: there are none.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        counts: Counts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._counts, self._clock = counts, clock
        self._buckets = Newest[str, tuple[float, float]](MAX_CLIENTS)

    async def check(self, scope: Scope) -> None:
        """Raises Refused: The client of a request asks too often."""
        caller, address = Caller.of(scope), scope["client"][0] if scope.get("client") else ""
        client = f"stranger {network_of(address)}" if caller is None else caller.client
        if wait := self.take(client):
            raise busy(429, wait)
        # A session is at one broker.
        if self._counts is not None and caller is not None and not caller.has_session:
            self._counts.note(f"requests {client}", partial(self.charge, client))

    def take(self, client: str) -> int:
        """Takes one request from a client's bucket. Returns 0, or the whole seconds after which to ask again."""
        now = self._clock()
        level, since = self._buckets.get(client, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        self._buckets[client] = (level - 1.0 if allowed else level, now)
        return 0 if allowed else max(1, math.ceil((1.0 - level) / self._rate))

    def charge(self, client: str, amount: int) -> None:
        """Takes what a client has taken elsewhere from its bucket, which may be as far below nothing as it may be
        above: who asks several brokers has one bucket."""
        if (bucket := self._buckets.get(client)) is not None:
            self._buckets[client] = (max(-self._burst, bucket[0] - amount), bucket[1])
