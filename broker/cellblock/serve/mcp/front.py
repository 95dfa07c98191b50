"""A front is what the parts of one front-end share: the broker, whose a request is, and what each client is granted, in
every place where any servers or tools are named."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import CallNext, HandlerResult

from cellblock.base.kept import KeptByIdentity
from cellblock.base.settings.policy import CLAIMED
from cellblock.serve.mcp.manual import instructions
from cellblock.serve.mcp.use import MAX_PRINCIPALS, UseLog
from cellblock.serve.service import Context, Owner, OwnerOf, RunService, client_name
from cellblock.serve.splices import Splices
from cellblock.tools.catalog.model import (
    Catalog,
    OutputLookup,
    ServerEntry,
    ToolOutput,
    stated_output,
    types_of,
)

if TYPE_CHECKING:
    from cellblock.serve.kept_outputs import KeptOutputs
    from cellblock.serve.mcp.context import Declared, Outputs

logger = logging.getLogger("cellblock.serve")

STDIO_CLIENT: Final = "stdio"
"""Names the client of a process that serves over stdio: it serves one."""

INITIALIZED: Final = "notifications/initialized"

GREETINGS: Final = ("initialize", "server/discover")
"""Lists the methods whose results have the instructions."""

KEPT_INSTRUCTIONS: Final = 16
"""Bounds the catalogs whose instructions are kept."""

Handler = Callable[[Context, Any], Awaitable[Any]]
"""Answers a request of a method, or takes a notification."""


def stdio_owner(context: Context) -> Owner:
    """Returns the owner of a request at our own pipes: who its client says it is; nothing proves it."""
    return Owner(CLAIMED + client_name(context), STDIO_CLIENT)


class Front:
    """Knows the broker, the clients, and where large results and outputs go.

    Args:
        service: The broker.
        owner_of: Says whose a request is.
        splices: Has the large results for whoever writes responses.

    Attributes:
        uses: What clients have used.
        kept: Where outputs go that are too large for a response; None: responses are whole.
    """

    def __init__(self, service: RunService, owner_of: OwnerOf, splices: Splices) -> None:
        self.service, self.owner_of, self.splices = service, owner_of, splices
        self.uses = UseLog(service.settings.state_dir)
        self.kept: KeptOutputs | None = None
        self._outputs = KeptByIdentity[list[str], dict[str, ToolOutput | None]](lambda _: {}, MAX_PRINCIPALS)
        self._instructions = KeptByIdentity[Catalog, str](instructions, KEPT_INSTRUCTIONS).get_or_make

    def principal_of(self, context: Context) -> str:
        """Says for whom a request is."""
        return self.owner_of(context).principal

    async def about_to_answer(self, context: Context) -> str:
        """Waits a moment for servers that still start, and says for whom the request is."""
        principal = self.principal_of(context)
        await self.service.about_to_answer(principal)
        return principal

    def lookups(self, principal: str) -> tuple[OutputLookup, OutputLookup]:
        """Returns what says what a principal knows of a tool's output, and what has been observed of it."""
        service = self.service
        return partial(service.output_of, principal=principal), partial(
            service.observed_of, principal=principal
        )

    def catalog(self, context: Context) -> Catalog:
        """Returns what the client of a request may import now."""
        principal = self.principal_of(context)
        return self._narrowed(principal, self.service.catalogs_of(principal)[0])

    def known_catalog(self, context: Context) -> Catalog:
        """Returns the client's catalog with servers that are out of reach at the moment: stable text for agents."""
        return self.known_catalog_of(self.principal_of(context))

    def known_catalog_of(self, principal: str) -> Catalog:
        """Returns the `known_catalog` of a principal."""
        return self._narrowed(principal, self.service.catalogs_of(principal)[1])

    def whole_servers(self, principal: str, has: str) -> list[ServerEntry]:
        """Returns the connected servers that have something beside tools and are given whole to a principal."""
        grants = self.service.policy.grants_of(principal)
        return [
            server
            for server in self.service.catalogs_of(principal)[0].servers.values()
            if has in server.other_kinds and (grants is None or grants.gives_whole(server))
        ]

    def description(self, catalog: Catalog, principal: str, chars: int | None = None) -> Declared:
        """Describes `codemode.run`, for a client that is shown a catalog, and as many characters of the description; in
        the profile `proxy`, all tools."""
        # Not at the top: a client is greeted without it.
        if self.service.settings.cellblock.frontend.profile == "proxy":
            from cellblock.serve.mcp.context import Declared
            from cellblock.types.definitions import mcp_definition, published

            tools = published(catalog, plain=True).values()
            return Declared(json.dumps([mcp_definition(one, stated_output) for one in tools]))
        from cellblock.serve.mcp.context import description

        used = self.uses.ranked(principal)
        outputs = self._outputs_of(used, catalog, principal)
        return description(self.service, catalog, principal, used, outputs, chars=chars)

    def _outputs_of(self, used: list[str], catalog: Catalog, principal: str) -> Outputs:
        """Returns what is known of the outputs of used tools beyond what is stated: of each, for a day, what is known
        when it is first asked for."""
        held = self._outputs.get_or_make(used)
        found: dict[tuple[str, str], ToolOutput] = {}
        for name in used:
            server_id, _, tool_name = name.partition(".")
            server = catalog.servers.get(server_id)
            tool = next((one for one in server.tools if one.tool_name == tool_name), None) if server else None
            if server is None or tool is None:
                continue
            if name not in held:
                held[name] = self.service.output_of(server, tool, principal)
            output = held[name]
            if output is not None and types_of(output) != types_of(stated_output(server, tool)):
                found[server_id, tool_name] = output
        return found

    async def greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Greets a client (a middleware of the SDK) with instructions that name only what the client is granted."""
        result = await call_next(ctx)
        if ctx.method in GREETINGS and isinstance(result, dict):
            profile = self.service.settings.cellblock.frontend.profile
            return {**result, "instructions": self._instructions(self.known_catalog(ctx), profile)}
        return result

    def _narrowed(self, principal: str, catalog: Catalog) -> Catalog:
        grants = self.service.policy.grants_of(principal)
        return catalog if grants is None else grants.narrowed(catalog)
