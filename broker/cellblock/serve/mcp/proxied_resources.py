"""Passes on what servers have beside tools, in the profile `proxy`: resources and their updates, prompts, completions.

A client has these of the servers that are given it whole (docs/decisions, 104). Of two servers with the same URI, the
first in the order of the configuration answers. A server hears of a subscription once for each client that asks, and
of its end when nobody is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent, event_to_notification

from cellblock.base.errors import CellblockError, ScriptError
from cellblock.base.json import is_object
from cellblock.base.tasks import TaskSet
from cellblock.serve.mcp.front import Front
from cellblock.serve.mcp.list_changes import Gathering, Tell, told
from cellblock.serve.service import Context
from cellblock.tools.catalog.model import (
    CAPABILITIES,
    COMPLETE,
    GET_PROMPT,
    READ,
    SUBSCRIBE,
    Kind,
    RequestEntry,
    ServerEntry,
    ToolEntry,
)
from cellblock.tools.upstream.definitions import shown
from cellblock.tools.upstream.resources import MAX_KEY_CHARS, key_of
from cellblock.types.definitions import has_one_server, long_name

logger = logging.getLogger("cellblock.serve")

MAX_TOLD: Final = 1_000
"""Bounds the clashes that are remembered as told."""

Ask = Callable[[Context, ServerEntry, RequestEntry, dict[str, Any]], Awaitable[Any]]
Paged = types.PaginatedRequestParams | None


class Offered(NamedTuple):
    """Holds an entry of a list, and whose it is."""

    server: ServerEntry
    entry: Any


class ProxiedResources:
    """Answers the requests of clients that are none of tools.

    Args:
        front: Says what each client is given.
        ask: Sends a request to a server, for a client.
    """

    def __init__(self, front: Front, ask: Ask) -> None:
        self._front, self._service, self._ask_server = front, front.service, ask
        self._clashes: set[tuple[str, str, str]] = set()

    def lists(self, principal: str) -> dict[str, str]:
        """Says which lists a principal has; another value is another list."""
        servers = {
            server.server_id: server
            for has in CAPABILITIES.values()
            for server in self._front.whole_servers(principal, has)
        }
        return {f"{one.server_id} {one.session} {one.revision}": "" for one in servers.values()}

    async def list_resources(self, context: Context, _params: Paged) -> types.ListResourcesResult:
        found = await self._first(context, "resources")
        return types.ListResourcesResult(resources=[one.entry for one in found.values()])

    async def templates(self, context: Context, _params: Paged) -> types.ListResourceTemplatesResult:
        found = await self._first(context, "resourceTemplates")
        return types.ListResourceTemplatesResult(resource_templates=[one.entry for one in found.values()])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        server = await self.server_of(context, params.uri)
        result: types.ReadResourceResult = await self.ask(context, server, READ, {"uri": params.uri})
        # Whatever its server says: who may read it, differs from client to client.
        return result.model_copy(update={"cache_scope": "private"})

    async def list_prompts(self, context: Context, _params: Paged) -> types.ListPromptsResult:
        found = await self._prompts(context, fresh=True)
        prompts = [one.entry.model_copy(update={"name": name}) for name, one in found.items()]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        one = await self._prompt(context, params.name)
        given = {"name": one.entry.name, "arguments": params.arguments or {}}
        return await self.ask(context, one.server, GET_PROMPT, given)

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        given = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
        if isinstance(params.ref, types.PromptReference):
            one = await self._prompt(context, params.ref.name)
            server, given["ref"]["name"] = one.server, one.entry.name
        else:
            server = await self.server_of(context, params.ref.uri)
        return await self.ask(context, server, COMPLETE, given)

    async def ask(
        self, context: Context, server: ServerEntry, request: RequestEntry, given: dict[str, Any]
    ) -> Any:
        """Sends a request to a server, for a client. Raises MCPError."""
        try:
            return await self._ask_server(context, server, request, given)
        except (ScriptError, CellblockError) as error:
            code: int | None = getattr(error, "rpc_code", None)
            raise MCPError(code or types.INTERNAL_ERROR, str(error)) from None

    async def server_of(self, context: Context, uri: str) -> ServerEntry:
        """Returns the server that answers for a URI, or URI template: it lists that, has a template for it, or a tool
        whose page it is.

        Raises:
            MCPError: There is none.
        """
        servers = self._front.whole_servers(await self._front.about_to_answer(context), "resources")
        if len(servers) == 1 and len(uri) <= MAX_KEY_CHARS:
            return servers[0]
        for fresh in (False, True) if servers and len(uri) <= MAX_KEY_CHARS else ():
            listed = await self._first(context, "resources", fresh=fresh)
            templates = await self._first(context, "resourceTemplates", fresh=fresh)
            if (found := listed.get(uri) or templates.get(uri)) is not None:
                return found.server
            for template, one in templates.items():
                if _may_be_of(uri, template):
                    return one.server
            for server in servers:
                if any(uri in _pages_of(tool) for tool in server.tools):
                    return server
        raise self._unknown(context, "resource", uri)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _all(self, context: Context, kind: Kind, *, fresh: bool) -> list[Offered]:
        servers = self._front.whole_servers(await self._front.about_to_answer(context), CAPABILITIES[kind])
        lists = await asyncio.gather(
            *(self._service.registry.entries(server, kind, fresh=fresh) for server in servers)
        )
        return [
            Offered(server, entry)
            for server, entries in zip(servers, lists, strict=True)
            for entry in entries
        ]

    async def _first(self, context: Context, kind: Kind, *, fresh: bool = True) -> dict[str, Offered]:
        """Returns what servers list by URI; the first server of each."""
        found: dict[str, Offered] = {}
        for one in await self._all(context, kind, fresh=fresh):
            key = key_of(one.entry)
            first = found.setdefault(key, one).server
            if first is not one.server:
                self._tell_clash(first.server_id, one.server.server_id, key)
        return found

    def _tell_clash(self, first: str, second: str, uri: str) -> None:
        clash = first, second, uri
        if clash not in self._clashes and len(self._clashes) < MAX_TOLD:
            self._clashes.add(clash)
            logger.warning("resource %s is listed by %s and %s: %s answers", shown(uri), first, second, first)

    async def _prompts(self, context: Context, *, fresh: bool) -> dict[str, Offered]:
        """Returns the prompts by the names that tools of theirs would have."""
        found: dict[str, Offered] = {}
        is_plain = has_one_server(self._service.catalog)
        for one in await self._all(context, "prompts", fresh=fresh):
            own = one.entry.name
            found[own if is_plain else long_name(one.server.server_id, own, found)] = one
        return found

    async def _prompt(self, context: Context, name: str) -> Offered:
        """Returns the prompt of this name, or the only one whose server calls it so. Raises MCPError."""
        for fresh in (False, True):
            prompts = await self._prompts(context, fresh=fresh)
            known = prompts.get(name)
            names = ((one, one.entry.name) for one in prompts.values())
            found = [one for one, own in names if name in (own, long_name(one.server.server_id, own))]
            if known is not None or len(found) == 1:
                return known or found[0]
            if found:
                whose = ", ".join(one.server.server_id for one in found)
                why = f"The prompt {shown(name)} is not clear; several servers have it: {whose}."
                raise MCPError(types.INVALID_PARAMS, why)
        raise self._unknown(context, "prompt", name)

    def _unknown(self, context: Context, what: str, name: str) -> MCPError:
        more = self._front.catalog(context).who_is_lost()
        why = f"There is no {what} {shown(name)} for this client; list the {what}s to see all.{more}"
        return MCPError(types.INVALID_PARAMS, why)


def _pages_of(tool: ToolEntry) -> tuple[object, ...]:
    """Returns the URI of a tool's page, by its name of now and of before (MCP Apps); servers need not list it."""
    meta = tool.listed.get("_meta", {})
    ui: object = meta.get("ui")
    return meta.get("ui/resourceUri"), ui.get("resourceUri") if is_object(ui) else None


def _may_be_of(uri: str, template: str) -> bool:
    """Says whether a URI begins and ends as a template does. Which values are good its server says: whatever a server
    writes into a template, this takes no time."""
    start, end = template.partition("{")[0], template.rpartition("}")[2]
    return ":" in start and len(uri) >= len(start) + len(end) and uri.startswith(start) and uri.endswith(end)


MAX_SUBSCRIPTIONS: Final = 200
"""Bounds the resources that one connection, or stream, is told of."""

_FOLLOWED: Final = "cellblock/resources"
"""Marks the state of a connection that has subscribed."""


@dataclass(eq=False, slots=True)
class _Follower:
    principal: str
    tell: Tell


class ResourceUpdates:
    """Keeps the subscriptions of one front-end's clients; `front` says which they may still have."""

    def __init__(self, front: Front, resources: ProxiedResources) -> None:
        self._front, self._registry, self._resources = front, front.service.registry, resources
        self._followers: dict[tuple[str, str], set[_Follower]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changed: set[tuple[str, str]] = set()
        self._gathering = Gathering(self._tell)
        self._work = TaskSet()
        self._registry.on_update = self._note

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Handles `resources/subscribe`: a session of an older revision is told until it ends."""
        session = context.session
        connection = session._connection  # pyright: ignore[reportPrivateUsage]
        follower = connection.state.get(_FOLLOWED)
        if follower is None:

            async def tell(event: ServerEvent) -> None:
                await session.send_notification(event_to_notification(event, {}))

            follower = _Follower(self._front.principal_of(context), tell)
            connection.state[_FOLLOWED] = follower
            connection.exit_stack.callback(self._leave, follower)
        await self._join(context, follower, params.uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        follower = context.session._connection.state.get(_FOLLOWED)  # pyright: ignore[reportPrivateUsage]
        if follower is not None:
            self._leave(follower, params.uri)
        return types.EmptyResult()

    @asynccontextmanager
    async def told(
        self,
        context: Context,
        params: types.SubscriptionsListenRequestParams,
        bus: InMemorySubscriptionBus,
    ) -> AsyncGenerator[None]:
        """Tells a client of 2026-07-28 of the resources that its stream is for, until the block ends."""
        follower = _Follower(self._front.principal_of(context), bus.publish)
        try:
            for uri in params.notifications.resource_subscriptions or ():
                try:
                    await self._join(context, follower, uri)
                except MCPError as error:
                    # The answer has no place for it: to its client, that resource does not change.
                    logger.info("a client cannot be told of a resource: %s", error)
            yield
        finally:
            self._leave(follower)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _join(self, context: Context, follower: _Follower, uri: str) -> None:
        if sum(follower in one for one in self._followers.values()) >= MAX_SUBSCRIPTIONS:
            why = f"This connection has its {MAX_SUBSCRIPTIONS} subscriptions already."
            raise MCPError(types.INVALID_REQUEST, why)
        server = await self._resources.server_of(context, uri)
        async with self._turns[server.config_name]:
            await self._resources.ask(context, server, SUBSCRIBE, {"uri": uri})
            self._followers.setdefault((server.config_name, uri), set()).add(follower)

    def _leave(self, follower: _Follower, uri: str | None = None) -> None:
        for key, followers in [*self._followers.items()]:
            if follower in followers and uri in (None, key[1]):
                followers.discard(follower)
                self._work.start(self._unfollow(*key))

    async def _unfollow(self, server: str, uri: str) -> None:
        async with self._turns[server]:
            if not self._followers.get((server, uri), True):
                del self._followers[server, uri]
                await self._registry.unfollow(server, uri)

    def _note(self, server: str, uri: str) -> None:
        self._changed.add((server, uri))
        self._gathering.note()

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        for server, uri in changed:
            for follower in self._followers.get((server, uri), ()):
                given = self._front.whole_servers(follower.principal, "resources")
                if any(one.config_name == server for one in given):
                    self._work.start(told(follower.tell, ResourceUpdated(uri)))
