"""What a server has beside tools: resources, their templates and prompts, each list read when somebody asks for it; and
the subscriptions to resources, made again on each connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from cellblock.base.callbacks import tell
from cellblock.base.json import is_object
from cellblock.base.visible import visible, visible_schema
from cellblock.tools.catalog.model import CAPABILITIES, Kind, Withheld
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Upstream
from cellblock.tools.upstream.definitions import (
    MALFORMED,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    MAX_TOOL_BYTES,
    left_out,
)
from cellblock.tools.upstream.dispatcher import Session
from cellblock.tools.upstream.listing import LIST_SECONDS, Listing, read_pages
from cellblock.tools.upstream.wire.messages import decoded

Entry = types.Resource | types.ResourceTemplate | types.Prompt

MAX_KEY_CHARS: Final = 4_096
"""Bounds a URI, which is compared with others and told to people."""


def key_of(entry: Entry) -> str:
    """Returns what an entry is asked for by: its URI, URI template or name."""
    if isinstance(entry, types.Resource):
        return entry.uri
    return entry.uri_template if isinstance(entry, types.ResourceTemplate) else entry.name


_LISTS: Final[Mapping[Kind, tuple[str, str, type[Entry]]]] = {
    "resources": ("resource", "resources/list", types.Resource),
    "resourceTemplates": ("template", "resources/templates/list", types.ResourceTemplate),
    "prompts": ("prompt", "prompts/list", types.Prompt),
}


def new_listing(kind: Kind) -> Listing[Entry]:
    """Makes what reads a list of resources or prompts."""
    what, _, item = _LISTS[kind]
    return Listing(what, partial(_admitted, item))


def _admitted(model: type[Entry], item: bytes) -> tuple[str, int, Entry] | Withheld:
    entry: Entry | None = _read(model, item) if len(item) <= MAX_TOOL_BYTES else None
    if entry is None:
        return left_out(MALFORMED, "it is malformed, or too large")
    key = key_of(entry)
    texts = (entry.name, MAX_NAME_CHARS), (entry.title, MAX_TEXT_CHARS)
    for text, most in (*texts, (entry.description, MAX_TEXT_CHARS), (key, MAX_KEY_CHARS)):
        if text is not None and len(text) > most:
            return left_out(entry.name, f"one of its texts has over {most} characters")
    # A prompt is asked for by its name.
    is_prompt = isinstance(entry, types.Prompt)
    return key, len(item), entry if is_prompt else entry.model_copy(update={"name": visible(entry.name)})


def _read(model: type[BaseModel], item: bytes) -> Any:
    """Reads an item; of one that does not fit, those members are dropped that do not, where the rest is one."""
    try:
        given: object = visible_schema(decoded(item))
    except (ValueError, RecursionError):
        return None
    if not is_object(given):
        return None
    if not given.get("name"):
        # It is asked for by its URI all the same.
        given = {**given, "name": str(given.get("uri") or given.get("uriTemplate") or "")[:MAX_NAME_CHARS]}
    for _ in range(2):
        try:
            entry = model.model_validate(given, by_name=False)
        except ValidationError as error:
            odd = {
                str(one["loc"][0])
                for one in error.errors(include_url=False, include_input=False)
                if one["loc"]
            }
            given = {key: value for key, value in given.items() if key not in odd}
        else:
            return entry if given.get("name") else None
    return None


NEWS_SECONDS: Final = 0.25
"""Sets the pause between two words of a server that its lists have changed: in a loop, it does not keep ours busy."""


class Resources:
    """Holds what one server lists beside tools.

    Args:
        server: The server.
        on_change: Called when what was listed has become old.
        followed: The URIs whose updates are wanted.
        on_update: Called with a URI when one of these has changed.

    Attributes:
        revision: Counts how often what was listed has become old.
    """

    def __init__(
        self,
        server: Upstream,
        on_change: Callable[[], None],
        followed: set[str],
        on_update: Callable[[str], object] | None,
    ) -> None:
        self.revision = 0
        self.followed = followed
        self._server, self._on_change, self._on_update = server, on_change, on_update
        self._known: dict[Kind, Listing[Entry]] = {}
        self._turns: defaultdict[Kind, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._news: asyncio.TimerHandle | None = None

    async def entries(self, kind: Kind, session: Session | None, *, fresh: bool) -> list[Entry]:
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
            return held.kept
        with contextlib.suppress(TimeoutError):
            # One at a time: who has waited takes what has come meanwhile.
            async with asyncio.timeout(2 * LIST_SECONDS), self._turns[kind]:
                if self._known.get(kind) is held:
                    self._known[kind] = await self._listed(kind, session, held)
        held = self._known.get(kind)
        return held.kept if held is not None else []

    def note_change(self) -> None:
        """Notes that the server's lists may have changed; where nobody has asked for a list, nobody is to hear it."""
        if self._known and self._news is None:
            self._news = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._is_news)

    def close(self) -> None:
        """Stops telling of changes in the server's lists."""
        if self._news is not None:
            self._news.cancel()

    def note_update(self, uri: str) -> None:
        """Takes the word of the server that a resource has changed."""
        if uri in self.followed:
            tell(self._on_update, uri)

    async def follow(self, session: Session) -> None:
        """Subscribes again, on a new connection, to the resources that the one before was subscribed to."""
        self.note_change()
        for uri in [*self.followed]:
            if await self._asked(session, "resources/subscribe", uri):
                tell(self._on_update, uri)

    async def unfollow(self, uri: str, session: Session | None) -> None:
        """Ends the subscription to a resource, as far as the server does."""
        self.followed.discard(uri)
        await self._asked(session, "resources/unsubscribe", uri)

    # ---- inside --------------------------------------------------------------------------------------

    async def _asked(self, session: Session | None, method: str, uri: str) -> bool:
        with contextlib.suppress(MCPError, TimeoutError):
            async with asyncio.timeout(self._server.bounds.call_timeout_ms / 1000):
                if session is not None:
                    await session.ask(method, {"uri": uri})
                    return True
        return False

    async def _listed(self, kind: Kind, session: Session, before: Listing[Entry] | None) -> Listing[Entry]:
        """Reads a list; where that cannot be, gives what was known, and the next reader need not wait for it."""
        listing = new_listing(kind)
        try:
            await read_pages(listing, session, _LISTS[kind][1], kind)
            listing.close()
            if listing.left_out:
                first, many = listing.left_out[0], f"{len(listing.left_out)} of its {listing.what}s"
                listing.notes.append(f"{many} are left out; the first, {first.name}: {first.why}.")
        except (TimeoutError, MCPError) as error:
            listing.kept = before.kept if before is not None else []
            if not isinstance(error, MCPError) or error.code != types.METHOD_NOT_FOUND:
                listing.notes.append(
                    f"Its {listing.what} list cannot be read: {failures.reason_of(error, self._server.redactor)}."
                )
        for note in listing.notes:
            self._server.note(note)
        return listing

    def _is_news(self) -> None:
        self._news = None
        self._known.clear()
        self.revision += 1
        tell(self._on_change)
