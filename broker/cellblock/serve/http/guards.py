"""Guards look at the head of a request, and refuse it or let it pass.

`trusted_hosts`, `trusted_origins` and `own_site` stop a hostile web page, whose `Origin` is not ours, and after DNS
rebinding its `Host` is not ours either (MCP specification, transports, security warning).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.base.settings.policy import NAMED
from cellblock.serve.http.address import CONFIG_HEADER
from cellblock.serve.http.caller import Caller
from cellblock.serve.http.in_flight import InFlight
from cellblock.serve.http.refusal import Refused, header

Guard = Callable[[Scope], Awaitable[object]]
"""Raises Refused for a request that may not pass."""

METHODS: Final = ("GET", "POST", "DELETE")
"""Lists the HTTP methods that MCP has."""

OWN_SITES: Final = (None, b"same-origin", b"none")
"""Lists who may have something fetched without an Origin, as browsers say it: our own page, or the person."""


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


def trusted_hosts(hosts: Iterable[str]) -> Guard:
    """Refuses a `Host` that is not one of these."""
    known = frozenset(name.encode("latin-1") for name in hosts)

    async def guard(scope: Scope) -> None:
        if header(scope, b"host") not in known:
            raise Refused(403)

    return guard


def trusted_origins(origins: Iterable[str]) -> Guard:
    """Refuses what the page of another origin sends; a request without one comes from no web page, or from an image
    or a script, which would learn whether a daemon is here."""
    known = frozenset(name.encode("latin-1") for name in origins)

    async def guard(scope: Scope) -> None:
        if (origin := header(scope, b"origin")) is None:
            await own_site(scope)
        elif origin not in known:
            raise Refused(403)

    return guard


async def own_site(scope: Scope) -> None:
    """Refuses what another site has had fetched, whatever its origin: the dashboard is for its own page alone."""
    if header(scope, b"sec-fetch-site") not in OWN_SITES:
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
