"""Trusted is who a request was meant for and which page sent it: what stops a hostile web page, whose `Origin` is not
ours, and after DNS rebinding its `Host` is not ours either (MCP specification, transports, security warning)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.serve.http.refusal import Refused, header

OWN_SITES: Final = (None, b"same-origin", b"none")
"""Lists who may have something fetched without an Origin, as browsers say it: our own page, or the person."""


class OneLength:
    """Refuses a request whose body may end in two places: h11 takes one, and a proxy in front may take the other. What
    is then read as the next request is a part of somebody's body (RFC 9112, sections 6.1 and 11.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_chunked = header(scope, b"transfer-encoding") is not None
        # Before HTTP/1.1 nobody had to know chunks, and may take them for what comes next.
        if is_chunked and (scope["http_version"] != "1.1" or header(scope, b"content-length") is not None):
            raise Refused(400)
        await self.app(scope, receive, send)


class TrustedHosts:
    """Refuses a `Host` that is not one of ours."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self.app = app
        self.hosts = frozenset(name.encode("latin-1") for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if header(scope, b"host") not in self.hosts:
            raise Refused(403)
        await self.app(scope, receive, send)


class TrustedOrigins:
    """Refuses what the page of another origin sends; a request without one comes from no web page, or from an image
    or a script, which would learn whether a daemon is here."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self.app = app
        self.origins = frozenset(name.encode("latin-1") for name in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = header(scope, b"origin")
        if origin not in self.origins if origin is not None else not _is_own_site(scope):
            raise Refused(403)
        await self.app(scope, receive, send)


class OwnSite:
    """Refuses what another site has had fetched, whatever its origin: the dashboard is for its own page alone."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_own_site(scope):
            raise Refused(403)
        await self.app(scope, receive, send)


def _is_own_site(scope: Scope) -> bool:
    return header(scope, b"sec-fetch-site") in OWN_SITES
