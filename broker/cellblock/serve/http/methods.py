"""Which HTTP methods MCP has, and what a look at it with another one says."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.serve.http.address import CONFIG_HEADER
from cellblock.serve.http.in_flight import InFlight
from cellblock.serve.http.refusal import Refused

METHODS: Final = ("GET", "POST", "DELETE")


class McpMethods:
    """Tells `connect`, which asks with HEAD, which configuration is served, or to wait for the next daemon."""

    def __init__(self, app: ASGIApp, config: str, in_flight: InFlight) -> None:
        self.app, self.config, self.in_flight = app, config, in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in METHODS:
            self.in_flight.check_open()
            raise Refused(405, {"allow": ", ".join(METHODS), CONFIG_HEADER: self.config})
        await self.app(scope, receive, send)
