"""Narrows what one client is shown to what it is granted: the servers and tools that it is granted, in every place
where any are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mcp.server.context import CallNext, HandlerResult

from cellblock.base.settings.policy import CLAIMED
from cellblock.serve.client import Context, client_name
from cellblock.serve.mcp.manual import instructions
from cellblock.serve.mcp.use import UseLog
from cellblock.serve.service import RunService
from cellblock.tools.catalog.model import Catalog, ServerEntry

if TYPE_CHECKING:
    from cellblock.serve.mcp.context import Declared

STDIO_CLIENT: Final = "stdio"
"""Names the client of a process that serves over stdio: it serves one."""

GREETINGS: Final = ("initialize", "server/discover")
"""Lists the methods whose results have the instructions."""


def stdio_principal(context: Context) -> str:
    """Returns the principal of a client at our own pipes, as it calls itself; nothing proves it."""
    return CLAIMED + client_name(context)


class Granted:
    """Makes the catalogs of each client.

    Args:
        service: The broker.
        principal_of: Whom a request is for.
        uses: What clients have used.
    """

    def __init__(self, service: RunService, principal_of: Callable[[Context], str], uses: UseLog) -> None:
        self._service = service
        self._uses = uses
        self._principal_of = principal_of

    def catalog(self, context: Context) -> Catalog:
        """Returns what the client of a request may import now."""
        return self._narrowed(self._principal_of(context), self._service.catalog)

    def known_catalog(self, context: Context) -> Catalog:
        """Returns the client's catalog with servers that are out of reach at the moment: stable text for agents."""
        return self.known_catalog_of(self._principal_of(context))

    def known_catalog_of(self, principal: str) -> Catalog:
        """Returns the `known_catalog` of whoever `principal_of` calls so."""
        return self._narrowed(principal, self._service.known_catalog)

    def whole_servers(self, principal: str, has: str) -> list[ServerEntry]:
        """Returns the connected servers that have something beside tools and are given whole to whoever `principal_of`
        calls so."""
        grants = self._service.policy.grants_of(principal)
        return [
            server
            for server in self._service.catalog.servers.values()
            if has in server.beside and (grants is None or grants.gives_whole(server))
        ]

    def description(self, catalog: Catalog, principal: str) -> Declared:
        """Describes `codemode.run`, for a client that is shown a catalog; in the profile `proxy`, all tools."""
        # Not at the top: a client is greeted without it.
        if self._service.front_config.shown.profile == "proxy":
            from cellblock.serve.mcp.context import Declared
            from cellblock.tools.catalog.outputs import stated_output
            from cellblock.types.definitions import mcp_definition, published

            tools = published(catalog, plain=True).values()
            return Declared(json.dumps([mcp_definition(one, stated_output) for one in tools]))
        from cellblock.serve.mcp.context import description

        return description(self._service, catalog, principal, self._uses.ranked(principal))

    async def greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Greets a client (a middleware of the SDK): the instructions name only what the client is granted."""
        result = await call_next(ctx)
        if ctx.method not in GREETINGS or self._service.policy.grants_of(self._principal_of(ctx)) is None:
            return result
        if isinstance(result, dict) and result.get("instructions"):
            profile = self._service.front_config.shown.profile
            return {**result, "instructions": instructions(self.known_catalog(ctx), profile)}
        return result

    def _narrowed(self, principal: str, catalog: Catalog) -> Catalog:
        grants = self._service.policy.grants_of(principal)
        return catalog if grants is None else grants.narrowed(catalog)
