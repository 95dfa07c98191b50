"""Keeps what is known of a server's tools current: it is listed anew when the server says that it has changed, at most
once a second, and without holding runs up where such lists change nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cellblock.base.callbacks import tell
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Link, Upstream
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.listing import Listing, ServerFacts, facts_of, list_tools

logger = logging.getLogger("cellblock.tools.upstream")

RELISTEN_SECONDS: Final = 5.0
"""Sets the pause before a stream of changes that a server has ended is asked for again."""

RELIST_SECONDS: Final = 1.0
"""Sets the least time from one list of changed tools to the next, however often the server announces changes."""

MOST_IDLE_LISTS: Final = 3
QUIET_SECONDS: Final = 30.0
"""Sets how many lists in a row may have changed nothing until no run waits for the next one, and the pause after which
they are forgotten."""


class Announced:
    """Counts the changes that a server has announced, and those that are read. Pure: times are the caller's.

    Attributes:
        count: Those that are announced.
    """

    def __init__(self) -> None:
        self.count = self._read = self._idle_lists = 0
        self._listed_at = 0.0

    @property
    def stale(self) -> bool:
        """Says whether a change is announced, and not read, for which runs wait."""
        return not self.has_read(self.count)

    def has_read(self, count: int) -> bool:
        """Says whether as many changes are read."""
        return self._read >= count

    def note(self, now: float) -> None:
        """Takes the word of the server that its list has changed."""
        if now - self._listed_at > QUIET_SECONDS:
            self._idle_lists = 0
        if self._idle_lists < MOST_IDLE_LISTS:
            self.count += 1

    def pause(self, now: float) -> float:
        """Returns the seconds until the next list may be asked for."""
        return max(0.0, RELIST_SECONDS - (now - self._listed_at))

    def begin(self, now: float) -> int:
        """Begins a list; returns what to give to `done`."""
        self._listed_at = now
        return self.count

    def done(self, count: int, *, changed: bool | None = None) -> None:
        """Ends a list; `changed` says whether it was another than the last, None that it could not be read."""
        self._read = count
        if changed is not None:
            self._idle_lists = 0 if changed else self._idle_lists + 1


class ToolList:
    """What one server is and lists, by its last word.

    Args:
        server: The server.
        prepare: Waited for before facts are taken over; gives those that are.
        on_change: Called when they have changed.

    Attributes:
        facts: What is known; None before the first connection.
    """

    def __init__(
        self,
        server: Upstream,
        prepare: Callable[[ServerFacts], Awaitable[ServerFacts]] | None,
        on_change: Callable[[], None],
    ) -> None:
        self.facts: ServerFacts | None = None
        self._server, self._prepare, self._on_change = server, prepare, on_change
        self._announced = Announced()
        self._changed, self._was_read = asyncio.Event(), asyncio.Event()

    @property
    def stale(self) -> bool:
        """Says whether the server has announced a change of its tools that is not read yet."""
        return self._announced.stale

    async def fresh(self) -> None:
        """Waits until the changes that are announced by now are read; bound it."""
        count = self._announced.count
        while not self._announced.has_read(count):
            await self._was_read.wait()

    def note_change(self) -> None:
        """Takes the word of the server that its list has changed."""
        self._announced.note(asyncio.get_running_loop().time())
        self._changed.set()

    def done(self, count: int | None = None, *, changed: bool | None = None) -> None:
        """Ends a list as `Announced.done`; without a count, the next connection reads the list anew."""
        self._announced.done(self._announced.count if count is None else count, changed=changed)
        was_read, self._was_read = self._was_read, asyncio.Event()
        was_read.set()

    async def first(self, client: ClientSession, connection: Connection) -> None:
        """Reads the list on a new connection."""
        self.facts = await self._read(client, connection)

    async def keep(self, link: Link) -> None:
        """Lists anew whenever the server says that its tools have changed; bounded by the connection's end."""
        clock, assured = asyncio.get_running_loop().time, link.client
        assert assured is not None and link.connection is not None
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._announced.pause(clock()))
            self._changed.clear()
            count = self._announced.begin(clock())
            try:
                async with asyncio.timeout(self._server.bounds.connect_timeout_ms / 1000):
                    facts = await self._read(assured, link.connection)
            except (TimeoutError, MCPError, ValidationError) as error:
                why = failures.reason_of(error, self._server.redactor)
                logger.warning(
                    "upstream %s: its changed tool list cannot be read: %s", self._server.name, why
                )
                if isinstance(error, TimeoutError):
                    # Nobody knows its tools now: it is asked again.
                    self._changed.set()
                else:
                    self.done(count)
                continue
            is_other = facts != self.facts
            if is_other:
                self.facts = facts
                tell(self._on_change)
            self.done(count, changed=is_other)

    async def listen(self, link: Link) -> None:
        """Asks for the stream of changes where there is one (MCP 2026-07-28); older servers announce unasked."""
        client = link.client
        assert client is not None
        tools = client.server_capabilities.tools if client.server_capabilities is not None else None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with listen(client, tools_list_changed=True) as changes:
                    # There is no replay: a change between the list and this stream would go unseen.
                    self.note_change()
                    async for _ in changes:
                        self.note_change()
            except (MCPError, SubscriptionLost) as error:
                why = failures.reason_of(error, self._server.redactor)
                logger.info("upstream %s: its stream of changes ended: %s", self._server.name, why)
            if link.ended.is_set():
                return
            await asyncio.sleep(RELISTEN_SECONDS)

    async def _read(self, client: ClientSession, connection: Connection) -> ServerFacts:
        listing = Listing()
        if client.server_capabilities is not None and client.server_capabilities.tools is not None:
            listing = await list_tools(client, connection)
        facts = facts_of(client, listing, connection.notes)
        if facts != self.facts:
            for note in facts.all_notes():
                logger.warning("upstream %s: %s", self._server.name, self._server.redactor.text(note))
        return facts if self._prepare is None else await self._prepare(facts)
