"""Tells clients that what they were shown has changed: in sessions of the older revisions by notifications, since
2026-07-28 on the streams that clients ask for (`subscriptions/listen`).

What a client is shown is compared as text, so a server that only reconnects, or tools that it may not call, tell it
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)

from cellblock.base.tasks import TaskSet
from cellblock.serve.kept_outputs import output_uri
from cellblock.serve.mcp.context import rendered_in_thread, resource_uri, text_of
from cellblock.serve.mcp.front import Front
from cellblock.serve.service import Context, Owner
from cellblock.tools.catalog.model import Catalog

logger = logging.getLogger("cellblock.serve")

LISTEN: Final = "subscriptions/listen"

GATHER_SECONDS: Final = 0.25
"""Sets the time from a change to looking at it: the servers of a configuration come one after the other."""

PAUSE_SECONDS: Final = 2.0
"""Sets the pause between two looks: a server that changes its tools all the time does not have every client list them
all the time."""

TELL_SECONDS: Final = 5.0
"""Bounds the time for a client to take a notification; one that does not read is not waited for."""

_FOLLOWED: Final = "cellblock/followed"
"""Marks the state of a connection whose client is told."""

MAX_STREAMS: Final = 256
"""Bounds the streams that are open at once."""


class Gathering:
    """Has many changes looked at together, and not again for a while.

    Args:
        look: Looks at them.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look_at_them = look
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    def note(self) -> None:
        """Notes a change."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + GATHER_SECONDS, self._not_before), self._look)

    def cancel(self) -> None:
        """Looks at nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self._not_before = asyncio.get_running_loop().time() + PAUSE_SECONDS
        self._look_at_them()


@dataclass(frozen=True, slots=True)
class Shown:
    """Holds what a client is shown: the description of its tool, and its resources by URI; `starting` are the servers
    in it that were still starting."""

    description: str
    resources: Mapping[str, str]
    starting: frozenset[str] = field(default=frozenset(), compare=False)


Tell = Callable[[ServerEvent], Awaitable[None]]
"""Tells a client of an event."""


@dataclass(eq=False, slots=True)
class _Audience:
    owner: Owner
    shown: Shown
    tell: Tell


class ListChanges:
    """Tells the clients of one front-end of changes. Kept outputs are resources of their owners.

    Args:
        front: Says what each client is shown.
        proxied: Says, where servers' own resources and prompts are passed on, what a principal has of them: another
            value is another list.
    """

    def __init__(
        self,
        front: Front,
        proxied: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        self._front, self._proxied = front, proxied
        # The profile `proxy` keeps no outputs.
        self._kept = front.kept if proxied is None else None
        self._audiences: set[_Audience] = set()
        self._streams: set[ListenHandler] = set()
        self._telling = TaskSet()
        self._changes = Gathering(lambda: self._telling.start(self._compare()))
        self._known: dict[tuple[int, str, frozenset[str]], tuple[Catalog, Shown]] = {}

    def listed(self, context: Context, catalog: Catalog) -> None:
        """Notes that the client of a request is shown the list of tools with this catalog, which may be a while old:
        what has started since is no news to it then."""
        owner = self._front.owner_of(context)
        shown = self._shown(owner, catalog)
        is_old = self._note_if_old(owner, catalog)
        for audience in self._audiences:
            if audience.owner == owner and (audience.shown.starting or is_old):
                audience.shown = replace(
                    audience.shown, description=shown.description, starting=shown.starting
                )

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Notices changes inside the block."""
        unwatch = [self._front.service.watch_catalog(self._note)]
        if self._kept is not None:
            unwatch.append(self._kept.watch(self._note))
        try:
            yield
        finally:
            for undo in unwatch:
                undo()
            self._changes.cancel()
            self._telling.cancel()

    async def greeted(self, context: Context, _params: types.NotificationParams) -> None:
        """Handles `notifications/initialized`: a session of an older revision is told until it ends."""
        session = context.session
        # The SDK has cleanup belong there, and shows it to handlers in no other way yet.
        connection = session._connection  # pyright: ignore[reportPrivateUsage]
        if connection.state.setdefault(_FOLLOWED, context) is not context:
            # Said once more, it is no other client.
            return

        async def tell(event: ServerEvent) -> None:
            # Of a resource's content it is told where it has subscribed to that.
            if not isinstance(event, ResourceUpdated):
                await session.send_notification(event_to_notification(event, {}))

        audience = await self._join(context, tell)
        connection.exit_stack.callback(self._audiences.discard, audience)

    async def listen(
        self,
        context: Context,
        params: types.SubscriptionsListenRequestParams,
        bus: InMemorySubscriptionBus | None = None,
    ) -> types.SubscriptionsListenResult:
        """Handles `subscriptions/listen`: the client is told until it hangs up, or `close`; also of what others give to
        the bus.

        Raises:
            MCPError: Too many listen already.
        """
        bus = bus or InMemorySubscriptionBus()
        stream = ListenHandler(bus)
        audience = await self._join(context, bus.publish)
        try:
            if len(self._streams) >= MAX_STREAMS:
                raise MCPError(types.INTERNAL_ERROR, f"{MAX_STREAMS} streams of changes are open already.")
            self._streams.add(stream)
            return await stream(context, params)
        finally:
            self._streams.discard(stream)
            self._audiences.discard(audience)

    def close(self) -> None:
        """Ends all streams; each says that it was meant to end."""
        for stream in self._streams:
            stream.close()

    # ---- inside ------------------------------------------------------------------------------------------

    async def _join(self, context: Context, tell: Tell) -> _Audience:
        owner = self._front.owner_of(context)
        catalog = self._front.known_catalog_of(owner.principal)
        await rendered_in_thread(catalog)
        audience = _Audience(owner, self._shown(owner, catalog), tell)
        self._audiences.add(audience)
        self._note_if_old(owner, catalog)
        return audience

    def _note_if_old(self, owner: Owner, catalog: Catalog) -> bool:
        """Notes a change where a client's catalog is not the newest."""
        is_old = self._front.known_catalog_of(owner.principal) is not catalog
        if is_old:
            self._note()
        return is_old

    def _note(self) -> None:
        self._known.clear()
        if self._audiences:
            self._changes.note()

    async def _compare(self) -> None:
        for audience in list(self._audiences):
            catalog = self._front.known_catalog_of(audience.owner.principal)
            await rendered_in_thread(catalog)
            before, audience.shown = audience.shown, self._shown(audience.owner, catalog)
            # That a server has started is no change, if it has what it was shown with.
            if self._shown(audience.owner, catalog, before.starting) != before:
                self._telling.start(told(audience.tell, *self._events(before, audience.shown)))

    def _events(self, before: Shown, after: Shown) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        if before.description != after.description:
            events.append(ToolsListChanged())
        if before.resources.keys() != after.resources.keys():
            events.append(ResourcesListChanged())
            if self._proxied is not None:
                events.append(PromptsListChanged())
        for uri, text in after.resources.items():
            if before.resources.get(uri, text) != text:
                events.append(ResourceUpdated(uri))
        return events

    def _shown(self, owner: Owner, catalog: Catalog, as_starting: frozenset[str] = frozenset()) -> Shown:
        key = id(catalog), owner.principal, as_starting
        held = self._known.get(key)
        if held is None:
            given, catalog = catalog, catalog.as_starting(as_starting) if as_starting else catalog
            declared = (
                {resource_uri(server.server_id): text_of(server) for server in catalog.servers.values()}
                if self._proxied is None
                else self._proxied(owner.principal)
            )
            description = self._front.description(catalog, owner.principal).text
            shown = Shown(description, declared, catalog.starting)
            held = self._known[key] = given, shown
        shown = held[1]
        outputs = self._kept.list_for(owner) if self._kept is not None else ()
        if not outputs:
            return shown
        return replace(shown, resources={**shown.resources, **{output_uri(one): "" for one in outputs}})


async def told(tell: Tell, *events: ServerEvent) -> None:
    """Waits until a client has been told of events, or cannot be told."""
    try:
        async with asyncio.timeout(TELL_SECONDS):
            for event in events:
                await tell(event)
    except Exception as error:  # noqa: BLE001 - one client that cannot be told is its own loss
        logger.info("a client cannot be told of a change: %s", type(error).__name__)
