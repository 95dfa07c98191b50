"""Beside tools a server lists resources, their templates and prompts: each list is read when somebody asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic import ValidationError

from cellblock.base.callbacks import tell
from cellblock.base.redaction import Redactor
from cellblock.tools.catalog.requests import CAPABILITIES, Kind
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.entries import Entries, Entry, list_entries
from cellblock.tools.upstream.listing import LIST_SECONDS

logger = logging.getLogger("cellblock.tools.upstream")

NEWS_SECONDS: Final = 0.25
"""Sets the pause between two words of a server that its lists have changed: in a loop, it does not keep ours busy."""


class Beside:
    """Holds what one server lists beside tools.

    Args:
        server: Its name.
        redactor: Keeps its secrets out of logs.
        on_change: Called when what was listed has become old.

    Attributes:
        revision: Counts how often that was so.
    """

    def __init__(self, server: str, redactor: Redactor, on_change: Callable[[], None]) -> None:
        self.revision = 0
        self._server, self._redactor = server, redactor
        self._on_change = on_change
        self._known: dict[Kind, Entries] = {}
        self._turns: defaultdict[Kind, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._news: asyncio.TimerHandle | None = None

    async def entries(self, kind: Kind, session: ClientSession | None, *, fresh: bool) -> list[Entry]:
        """Returns what the server lists; empty where it does not, or cannot be asked.

        Args:
            kind: What.
            session: The connection, if there is one.
            fresh: Asks the server; else what it has listed last is good, if it has not said that this has changed.
        """
        held = self._known.get(kind)
        if session is None or getattr(session.server_capabilities, CAPABILITIES[kind], None) is None:
            return []
        if held is not None and not fresh:
            return held.found
        with contextlib.suppress(TimeoutError):
            # One at a time: who has waited takes what has come meanwhile.
            async with asyncio.timeout(LIST_SECONDS):
                await self._turns[kind].acquire()
            try:
                if self._known.get(kind) is held:
                    self._known[kind] = await self._listed(kind, session, held)
            finally:
                self._turns[kind].release()
        held = self._known.get(kind)
        return held.found if held is not None else []

    def note_change(self) -> None:
        """Notes that the server's lists may have changed; where nobody has asked for a list, nobody is to hear it."""
        if self._known and self._news is None:
            self._news = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._is_news)

    def close(self) -> None:
        """Stops telling of changes in the server's lists."""
        if self._news is not None:
            self._news.cancel()

    # ---- inside --------------------------------------------------------------------------------------

    async def _listed(self, kind: Kind, session: ClientSession, before: Entries | None) -> Entries:
        """Reads a list; where that cannot be, gives what was known, and the next reader need not wait for it."""
        listing = Entries(kind)
        try:
            listing = await list_entries(kind, session)
        except (TimeoutError, MCPError, ValidationError) as error:
            listing.found = before.found if before is not None else []
            if not isinstance(error, MCPError) or error.code != types.METHOD_NOT_FOUND:
                listing.notes.append(
                    f"Its {listing.what} list cannot be read: {failures.reason_of(error, self._redactor)}."
                )
        for note in listing.notes:
            if before is None or note not in before.notes:
                logger.warning("upstream %s: %s", self._server, self._redactor.text(note))
        return listing

    def _is_news(self) -> None:
        self._news = None
        self._known.clear()
        self.revision += 1
        tell(self._on_change)
