"""What a server has beside tools: resources, their templates and prompts, each list read when somebody asks for it; and
the subscriptions to resources, made again on each connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic import BaseModel, ValidationError

from cellblock.base.callbacks import tell
from cellblock.base.json import is_object
from cellblock.base.visible import visible, visible_schema
from cellblock.tools.catalog.model import CAPABILITIES, Kind
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Link, Upstream
from cellblock.tools.upstream.definitions import MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TOOL_BYTES
from cellblock.tools.upstream.listing import LIST_SECONDS, MAX_LISTED_BYTES, MAX_TOOLS, read_pages
from cellblock.tools.upstream.wire.messages import decoded

Entry = types.Resource | types.ResourceTemplate | types.Prompt

MAX_KEY_CHARS: Final = 4_096
"""Bounds a URI, which is compared with others and told to people."""


def key_of(entry: Entry) -> str:
    """Returns what an entry is asked for by: its URI, URI template or name."""
    if isinstance(entry, types.Resource):
        return entry.uri
    return entry.uri_template if isinstance(entry, types.ResourceTemplate) else entry.name


@dataclass(frozen=True, slots=True)
class _List:
    what: str
    request: type[types.ListResourcesRequest | types.ListResourceTemplatesRequest | types.ListPromptsRequest]
    item: type[types.Resource | types.ResourceTemplate | types.Prompt]


_LISTS: Final[Mapping[Kind, _List]] = {
    "resources": _List("resource", types.ListResourcesRequest, types.Resource),
    "resourceTemplates": _List("template", types.ListResourceTemplatesRequest, types.ResourceTemplate),
    "prompts": _List("prompt", types.ListPromptsRequest, types.Prompt),
}


class Entries:
    """Reads a list of resources or prompts, page by page.

    Attributes:
        found: What is kept.
        notes: Sentences about the list as a whole.
    """

    def __init__(self, kind: Kind) -> None:
        self.what = _LISTS[kind].what
        self.found: list[Entry] = []
        self.notes: list[str] = []
        self._model = _LISTS[kind].item
        self._seen: set[str] = set()
        self._bytes = 0
        self._left_out = 0

    def take(self, item: bytes) -> bool:
        """Takes one item; returns whether no more can be taken."""
        if len(self._seen) >= MAX_TOOLS:
            self.notes.append(f"It lists more than {MAX_TOOLS:,} {self.what}s; the rest is left out.")
            return True
        entry = _read(self._model, item) if len(item) <= MAX_TOOL_BYTES else None
        if entry is None:
            self._seen.add(f"{len(self._seen)} ")
            self._left_out += 1
        else:
            self._take(entry, len(item))
        return False

    def close(self) -> None:
        """Adds a note on the items that are left out."""
        if self._left_out:
            self.notes.append(
                f"{self._left_out} of its {self.what}s are left out: malformed, listed twice, or over a cap."
            )

    def _take(self, item: Entry, size: int) -> None:
        key = key_of(item)[: MAX_KEY_CHARS + 1]
        is_new = key not in self._seen
        # One that comes twice counts, too: a list of one item without end is one.
        self._seen.add(key if is_new else f"{len(self._seen)} {key}")
        texts = (item.name, MAX_NAME_CHARS), (item.title, MAX_TEXT_CHARS)
        texts = (*texts, (item.description, MAX_TEXT_CHARS), (key, MAX_KEY_CHARS))
        fits = is_new and all(text is None or len(text) <= most for text, most in texts)
        if not fits or self._bytes + size > MAX_LISTED_BYTES:
            self._left_out += 1
            return
        self._bytes += size
        # A prompt is asked for by its name.
        self.found.append(
            item if isinstance(item, types.Prompt) else item.model_copy(update={"name": visible(item.name)})
        )


async def list_entries(kind: Kind, session: ClientSession) -> Entries:
    """Reads a whole list, as `read_pages`."""
    listing = Entries(kind)
    await read_pages(listing, session, _LISTS[kind].request)
    listing.close()
    return listing


def _read(model: type[BaseModel], item: bytes) -> Any:
    """Reads an item; of one that does not fit, those members are dropped that do not, where the rest is one."""
    try:
        given: object = visible_schema(decoded(item))
    except (ValueError, RecursionError):
        return None
    if not is_object(given):
        return None
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


logger = logging.getLogger("cellblock.tools.upstream")

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

    def note_update(self, uri: str) -> None:
        """Takes the word of the server that a resource has changed."""
        if uri in self.followed:
            tell(self._on_update, uri)

    async def follow(self, link: Link) -> None:
        """Subscribes again, on a new connection, to the resources that the one before was subscribed to."""
        self.note_change()
        for uri in [*self.followed]:
            request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            if await self._asked(link.client, request):
                tell(self._on_update, uri)

    async def unfollow(self, uri: str, session: ClientSession | None) -> None:
        """Ends the subscription to a resource, as far as the server does."""
        self.followed.discard(uri)
        request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
        await self._asked(session, request)

    # ---- inside --------------------------------------------------------------------------------------

    async def _asked(
        self, session: ClientSession | None, request: types.SubscribeRequest | types.UnsubscribeRequest
    ) -> bool:
        with contextlib.suppress(MCPError, ValidationError, TimeoutError):
            async with asyncio.timeout(self._server.bounds.call_timeout_ms / 1000):
                if session is not None:
                    await session.send_request(request, types.EmptyResult)
                    return True
        return False

    async def _listed(self, kind: Kind, session: ClientSession, before: Entries | None) -> Entries:
        """Reads a list; where that cannot be, gives what was known, and the next reader need not wait for it."""
        listing = Entries(kind)
        try:
            listing = await list_entries(kind, session)
        except (TimeoutError, MCPError, ValidationError) as error:
            listing.found = before.found if before is not None else []
            if not isinstance(error, MCPError) or error.code != types.METHOD_NOT_FOUND:
                listing.notes.append(
                    f"Its {listing.what} list cannot be read: {failures.reason_of(error, self._server.redactor)}."
                )
        for note in listing.notes:
            if before is None or note not in before.notes:
                logger.warning("upstream %s: %s", self._server.name, self._server.redactor.text(note))
        return listing

    def _is_news(self) -> None:
        self._news = None
        self._known.clear()
        self.revision += 1
        tell(self._on_change)
