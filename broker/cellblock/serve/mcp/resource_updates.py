"""Tells clients that resources of servers have changed that they have subscribed to.

A server hears of a subscription once for each client that asks, and of its end when nobody is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import mcp_types as types
from mcp import MCPError
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent, event_to_notification

from cellblock.base.tasks import TaskSet
from cellblock.serve.mcp.front import Front
from cellblock.serve.mcp.list_changes import Gathering, Tell, told
from cellblock.serve.mcp.proxied_resources import ProxiedResources
from cellblock.serve.service import Context
from cellblock.tools.catalog.model import SUBSCRIBE

logger = logging.getLogger("cellblock.serve")

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
        self._registry.watch_updates(self._note)

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
