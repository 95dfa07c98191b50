"""Reads what a server lists, page by page, within its caps: what is over one is left out, the rest is kept; and keeps
its tools current: they are listed anew when the server says that they have changed, at most once a second, and without
holding runs up where such lists change nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import mcp_types as types
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.base.callbacks import tell
from cellblock.base.errors import first_few
from cellblock.base.json import is_object
from cellblock.base.raw_json import next_step
from cellblock.base.visible import visible
from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Upstream
from cellblock.tools.upstream.definitions import (
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    TEXTS,
    ToolDefinition,
    admit,
    from_json,
    left_out,
    shown,
)
from cellblock.tools.upstream.dispatcher import Session
from cellblock.tools.upstream.wire.messages import quoted
from cellblock.tools.upstream.wire.repair import page

logger = logging.getLogger("cellblock.tools.upstream")

_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,31}", re.ASCII)

MAX_LEFT_OUT: Final = 100
"""Bounds the tools that are named as left out; of more than these only the number is said."""

MAX_NAMED: Final = 5
"""Bounds the names in one note."""

LIST_SECONDS: Final = 20.0
"""Bounds the time for all pages of one list; what was read by then is kept."""

MAX_PAGES: Final = 500
"""Caps the pages of one list, so that endless cursors stop."""

MAX_TOOLS: Final = 2_000
"""Caps the items taken of one list, so that an endless one stops."""

MAX_LISTED_BYTES: Final = 8 * 1024 * 1024
"""Caps all items of one list together, as JSON: they stay in memory, and those of tools in the pin file."""

STEP_BYTES: Final = 64 * 1024
ITEM_BYTES: Final = 3 * 1024
"""Set how much is read before the loop goes on with something else, and what an item takes beside its own bytes."""


async def list_tools(session: Session) -> Listing[ToolDefinition]:
    """Reads a whole list of tools, as `read_pages`; those that cannot be called over HTTP are left out (MCP 2026-07-28,
    x-mcp-header)."""
    listing = Listing("tool", _tool_of)
    await read_pages(listing, session, "tools/list", "tools")
    listing.close()
    if odd := [shown(tool.name) for tool in listing.kept if tool.odd]:
        named = first_few(odd, MAX_NAMED)
        listing.notes.append(f"Parts of the schemas of {len(odd)} tools are no JSON Schema: {named}.")
    long = [
        shown(one.name)
        for one in listing.kept
        if max(len(one.definition.get(key, "")) for key in TEXTS) > MAX_TEXT_CHARS
    ]
    if long:
        named = first_few(long, MAX_NAMED)
        listing.notes.append(f"Texts of {len(long)} tools are cut at {MAX_TEXT_CHARS} characters: {named}.")
    session.connection.task_tools = frozenset(tool.name for tool in listing.kept if tool.as_task)
    if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        session.param_headers = _param_headers(listing)
    return listing


async def read_pages(listing: Listing[Any], session: Session, method: str, key: str) -> None:
    """Reads all pages of a list; what was read when a further page is refused, or does not come, is kept.

    Args:
        listing: Takes the items.
        session: The connection.
        method: Asks for a page.
        key: The member of a page that has the items.

    Raises:
        TimeoutError: Not even one page came within `LIST_SECONDS`, as it says.
        MCPError: The server refused the first page.
    """
    cursor: str | None = None
    cursors: set[str | None] = {None}
    pages = 0
    try:
        async with asyncio.timeout(LIST_SECONDS):
            while pages < MAX_PAGES:
                answer = await session.ask(method, {} if cursor is None else {"cursor": cursor})
                read = page(answer.fields, key)
                pages += 1
                listing.notes = [*dict.fromkeys((*listing.notes, *answer.notes, *read.notes))]
                if await _is_full(listing, read.items) or read.cursor is None or read.cursor in cursors:
                    return
                cursor = read.cursor
                cursors.add(cursor)
        listing.notes.append(
            f"Its {listing.what} list goes on after {MAX_PAGES} pages, which are all that is read."
        )
    except TimeoutError:
        if pages == 0:
            raise TimeoutError(f"no {listing.what} list within {LIST_SECONDS:g} s") from None
        listing.notes.append(
            f"Its {listing.what} list was not complete within {LIST_SECONDS:g} s; {pages} pages of it are used."
        )
    except MCPError as error:
        # Whose tools nobody knows may have resources.
        is_unknown = error.code == types.METHOD_NOT_FOUND and not isinstance(error, failures.HttpRefused)
        if pages == 0 and not (is_unknown and method == "tools/list"):
            raise
        said = quoted(error.message.encode("utf-8", "replace"))
        listing.notes.append(f"Its {listing.what} list ends at page {pages + 1}, which it refused: {said}.")


async def _is_full(listing: Listing[Any], items: list[bytes]) -> bool:
    read = 0
    for item in items:
        if listing.take(item):
            return True
        read += ITEM_BYTES + len(item)
        if read > STEP_BYTES:
            read = 0
            await next_step()
    return False


T = TypeVar("T")


class Listing(Generic[T]):
    """Takes a list, page by page.

    Args:
        what: Names an item.
        admit: Gives the name that an item is known by, its size in bytes, and what is kept of it; or why it is left
            out.

    Attributes:
        kept: What is kept.
        left_out: What is not, and why.
        notes: Sentences about the list as a whole.
    """

    def __init__(self, what: str, admit: Callable[[bytes], tuple[str, int, T] | Withheld]) -> None:
        self.what, self._admit = what, admit
        self.kept: list[T] = []
        self.left_out: list[Withheld] = []
        self.notes: list[str] = []
        self._names: set[str] = set()
        self._bytes = self._unnamed = 0
        self._twice: dict[str, None] = {}

    def take(self, item: bytes) -> bool:
        """Takes one item; returns whether no more can be taken."""
        if len(self._names) >= MAX_TOOLS:
            self.notes.append(f"It lists more than {MAX_TOOLS:,} {self.what}s; the rest is left out.")
            return True
        admitted = self._admit(item)
        name = admitted.name if isinstance(admitted, Withheld) else admitted[0]
        is_new = not isinstance(admitted, Withheld) and name not in self._names
        # Each counts: a list of what is malformed, or of one item, without end is one.
        self._names.add(name if is_new else f"{len(self._names)} {name}")
        if isinstance(admitted, Withheld):
            self.leave_out(admitted)
        elif not is_new:
            # Of two definitions under one name, a script could not tell which it calls.
            self._twice.setdefault(shown(name))
        elif self._bytes + admitted[1] > MAX_LISTED_BYTES:
            why = f"the server's {self.what}s together have over {MAX_LISTED_BYTES} bytes"
            self.leave_out(left_out(name, why))
        else:
            self._bytes += admitted[1]
            self.kept.append(admitted[2])
        return False

    def leave_out(self, item: Withheld) -> None:
        """Notes what is not kept."""
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(item)
        else:
            self._unnamed += 1

    def close(self) -> None:
        """Adds the notes on items that are left out unnamed, or listed twice."""
        if self._unnamed:
            self.notes.append(f"{self._unnamed} more of its {self.what}s are left out.")
        if self._twice:
            named = first_few([*self._twice], MAX_NAMED)
            self.notes.append(
                f"It lists {len(self._twice)} {self.what}s more than once, and the first of each is kept: {named}."
            )


def _tool_of(item: bytes) -> tuple[str, int, ToolDefinition] | Withheld:
    tool = admit(item)
    return tool if isinstance(tool, Withheld) else (tool.name, tool.size, tool)


def _param_headers(listing: Listing[ToolDefinition]) -> dict[str, dict[tuple[str, ...], str]]:
    """Returns which inputs of tools are repeated in headers, and leaves out the tools that say so wrongly."""
    known: dict[str, dict[tuple[str, ...], str]] = {}
    for tool in [*listing.kept]:
        schema: object = tool.definition.get("inputSchema")
        given = schema if is_object(schema) else {}
        if (why := find_invalid_x_mcp_header(given)) is not None:
            listing.kept.remove(tool)
            listing.leave_out(left_out(tool.name, f"its x-mcp-header is invalid ({why})"))
        elif header_map := x_mcp_header_map(given):
            known[tool.name] = header_map
    return known


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Holds what one reading gave: identity, tools, tools that are over a cap, and what is to be said of the list as a
    whole, and of how the server introduced itself."""

    name: str | None
    version: str | None
    instructions: str | None
    capabilities: tuple[str, ...]
    tools: tuple[ToolDefinition, ...]
    left_out: tuple[Withheld, ...] = ()
    notes: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()

    @property
    def reviewed(self) -> tuple[ToolDefinition, ...]:
        """Returns all that a model reads of the server, to be held against its pins: its tools, and under an empty
        name, which no tool has, how it introduces itself."""
        return (*self.tools, from_json({"name": "", "title": self.name, "description": self.instructions}))

    def all_notes(self) -> Iterator[str]:
        """Yields a sentence for each tool that is left out, then those about the whole list, and the server."""
        for tool in self.left_out:
            yield f"The tool {tool.name} is left out: {visible(tool.why)}."
        yield from (visible(note, instead=" ") for note in (*self.notes, *self.odd))


def in_order_of(known: ServerFacts, facts: ServerFacts) -> ServerFacts:
    """Returns the facts with their tools in the order that is known, where they are the same tools: another order is no
    change, for which runs would wait."""
    one, other = (sorted(each.tools, key=lambda tool: tool.name) for each in (known, facts))
    # Those that were the same already are left as they are: they are known by their identity.
    return replace(facts, tools=known.tools) if one == other and facts.tools != known.tools else facts


def facts_of(session: Session, listing: Listing[ToolDefinition]) -> ServerFacts:
    """Returns the facts of a session that is connected; names and instructions are cut at their caps."""
    info, capabilities = session.server_info, session.server_capabilities
    return ServerFacts(
        name=_cut(info.title or info.name or None, MAX_NAME_CHARS) if info else None,
        # Every release changes it, so that it has no pin, and room for no sentence.
        version=info.version if info and _VERSION.fullmatch(info.version or "") else None,
        instructions=_cut(session.instructions, MAX_TEXT_CHARS),
        capabilities=tuple(sorted(capabilities.model_dump(exclude_none=True))) if capabilities else (),
        tools=tuple(listing.kept),
        left_out=tuple(listing.left_out),
        notes=tuple(listing.notes),
        odd=session.connection.notes,
    )


def as_pinned(pins: Sequence[ToolDefinition]) -> ServerFacts:
    """Returns what `reviewed` of a server's facts was when it was pinned."""
    said = next((one.definition for one in pins if not one.name), dict[str, Any]())
    tools = tuple(one for one in pins if one.name)
    return ServerFacts(said.get("title"), None, said.get("description"), (), tools)


def _cut(text: str | None, most: int) -> str | None:
    return visible(text[:most], keep="\n\t") if text else None


RELISTEN_SECONDS: Final = 5.0
"""Sets the pause before a stream of changes that a server has ended is asked for again."""

RELIST_SECONDS: Final = 1.0
"""Sets the least time from one list of changed tools to the next, however often the server announces changes."""

MOST_IDLE_LISTS: Final = 3
QUIET_SECONDS: Final = 30.0
"""Sets how many lists in a row may have changed nothing until no run waits for the next one, and the pause after which
they are forgotten."""


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
        self._announced = self._taken = self._idle_lists = 0
        self._listed_at = 0.0
        self._changed, self._was_read = asyncio.Event(), asyncio.Event()

    @property
    def stale(self) -> bool:
        """Says whether the server has announced a change of its tools that is not read yet, and for which runs wait."""
        return self._taken < self._announced

    async def fresh(self) -> None:
        """Waits until the changes that are announced by now are read; bound it."""
        announced = self._announced
        while self._taken < announced:
            await self._was_read.wait()

    def note_change(self) -> None:
        """Takes the word of the server that its list has changed."""
        if asyncio.get_running_loop().time() - self._listed_at > QUIET_SECONDS:
            self._idle_lists = 0
        if self._idle_lists < MOST_IDLE_LISTS:
            self._announced += 1
        self._changed.set()

    def done(self, announced: int | None = None) -> None:
        """Ends a list, which is as new as so many announced changes; None: all, as the next connection reads it
        anew."""
        self._taken = self._announced if announced is None else announced
        was_read, self._was_read = self._was_read, asyncio.Event()
        was_read.set()

    async def first(self, session: Session) -> None:
        """Reads the list on a new connection."""
        self.facts = await self._read(session)

    async def keep(self, session: Session) -> None:
        """Lists anew whenever the server says that its tools have changed; bounded by the connection's end."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._listed_at + RELIST_SECONDS - clock())
            self._changed.clear()
            self._listed_at, announced = clock(), self._announced
            try:
                async with asyncio.timeout(self._server.bounds.connect_timeout_ms / 1000):
                    facts = await self._read(session)
            except (TimeoutError, MCPError) as error:
                why = failures.reason_of(error, self._server.redactor)
                logger.warning(
                    "upstream %s: its changed tool list cannot be read: %s", self._server.name, why
                )
                if isinstance(error, TimeoutError):
                    # Nobody knows its tools now: it is asked again.
                    self._changed.set()
                else:
                    self.done(announced)
                continue
            self._idle_lists += 1
            if facts != self.facts:
                self.facts, self._idle_lists = facts, 0
                tell(self._on_change)
            self.done(announced)

    async def listen(self, session: Session) -> None:
        """Asks for the stream of changes where there is one (MCP 2026-07-28); older servers announce unasked."""
        tools = session.server_capabilities.tools if session.server_capabilities is not None else None
        if (
            session.protocol_version not in MODERN_PROTOCOL_VERSIONS
            or tools is None
            or not tools.list_changed
        ):
            return
        while True:
            try:
                async with listen(session, tools_list_changed=True) as changes:
                    # There is no replay: a change between the list and this stream would go unseen.
                    self.note_change()
                    async for _ in changes:
                        self.note_change()
            except (MCPError, SubscriptionLost) as error:
                why = failures.reason_of(error, self._server.redactor)
                logger.info("upstream %s: its stream of changes ended: %s", self._server.name, why)
            if session.connection.ended.is_set():
                return
            await asyncio.sleep(RELISTEN_SECONDS)

    async def _read(self, session: Session) -> ServerFacts:
        listing = Listing("tool", _tool_of)
        if session.server_capabilities is not None and session.server_capabilities.tools is not None:
            listing = await list_tools(session)
        facts, text = facts_of(session, listing), self._server.redactor.text
        facts = replace(facts, notes=tuple(map(text, facts.notes)), odd=tuple(map(text, facts.odd)))
        for note in facts.all_notes():
            self._server.note(note)
        if self._prepare is not None:
            facts = await self._prepare(facts)
        return facts if self.facts is None else in_order_of(self.facts, facts)
