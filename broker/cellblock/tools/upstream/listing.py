"""Reads what a server lists, page by page, within its caps: what is over one is left out, the rest is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import mcp_types as types
from mcp import Client

from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream.definitions import (
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    ToolDefinition,
    admit,
    left_out,
    shown,
)
from cellblock.tools.upstream.lenience import malformed_of

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

Page = TypeVar("Page", bound=types.PaginatedResult)
Taken = TypeVar("Taken", contravariant=True)


class Taker(Protocol[Taken]):
    """Takes the pages of one list."""

    what: str
    notes: list[str]

    def take(self, page: Taken) -> bool:
        """Takes one page; returns whether no more items can be taken."""
        ...


async def list_tools(fetch: Callable[[str | None], Awaitable[types.ListToolsResult]]) -> Listing:
    """Reads a whole list of tools, as `read_pages`."""
    listing = Listing()
    await read_pages(listing, fetch)
    listing.close()
    return listing


async def read_pages(listing: Taker[Page], fetch: Callable[[str | None], Awaitable[Page]]) -> None:
    """Reads all pages of a list.

    Args:
        listing: Takes them.
        fetch: Asks for the page of a cursor, None for the first.

    Raises:
        TimeoutError: Not even one page came within `LIST_SECONDS`, as it says.
        MCPError: The server refused; what `fetch` raises goes through.
    """
    cursor: str | None = None
    pages = 0
    try:
        async with asyncio.timeout(LIST_SECONDS):
            while True:
                page = await fetch(cursor)
                pages += 1
                full = listing.take(page)
                if full or not page.next_cursor or page.next_cursor == cursor:
                    break
                if pages >= MAX_PAGES:
                    listing.notes.append(
                        f"Its {listing.what} list goes on after {MAX_PAGES} pages, which are all that is read."
                    )
                    break
                cursor = page.next_cursor
    except TimeoutError:
        if pages == 0:
            raise TimeoutError(f"no {listing.what} list within {LIST_SECONDS:g} s") from None
        listing.notes.append(
            f"Its {listing.what} list was not complete within {LIST_SECONDS:g} s; {pages} pages of it are used."
        )


class Listing:
    """Reads a tool list, page by page.

    Attributes:
        tools: Those that are kept.
        left_out: Those that are not, and why.
        notes: Sentences about the list as a whole.
    """

    what = "tool"

    def __init__(self) -> None:
        self.tools: list[ToolDefinition] = []
        self.left_out: list[Withheld] = []
        self.notes: list[str] = []
        self._names: set[str] = set()
        self._bytes = 0
        self._unnamed = 0
        self._twice: dict[str, None] = {}

    def take(self, page: types.ListToolsResult) -> bool:
        """Takes one page; returns whether no more tools can be taken."""
        for why in malformed_of(page):
            self._leave_out(left_out("(malformed)", why))
        for tool in page.tools:
            if len(self._names) >= MAX_TOOLS:
                self.notes.append(f"It lists more than {MAX_TOOLS:,} tools; the rest is left out.")
                return True
            self._take_tool(tool)
        return False

    def close(self) -> None:
        """Adds the notes on tools that are left out unnamed, or listed twice."""
        if self._unnamed:
            self.notes.append(f"{self._unnamed} more of its tools are left out.")
        if self._twice:
            names = ", ".join([*self._twice][:MAX_NAMED])
            self.notes.append(
                f"It lists {len(self._twice)} names more than once, and the first of each is kept: {names}."
            )

    def _take_tool(self, tool: types.Tool) -> None:
        name = tool.name[: MAX_NAME_CHARS + 1]
        if name in self._names:
            # Of two definitions under one name, a script could not tell which it calls.
            self._twice.setdefault(shown(name))
            return
        self._names.add(name)
        admitted = admit(tool)
        if isinstance(admitted, Withheld):
            self._leave_out(admitted)
        elif self._bytes + admitted.size > MAX_LISTED_BYTES:
            why = f"the server's definitions together have over {MAX_LISTED_BYTES} bytes"
            self._leave_out(left_out(tool.name, why))
        else:
            self._bytes += admitted.size
            self.tools.append(admitted)

    def _leave_out(self, tool: Withheld) -> None:
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(tool)
        else:
            self._unnamed += 1


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Holds what one reading gave: identity, tools, tools that are over a cap, and what is to be said of the list as a
    whole."""

    name: str | None
    version: str | None
    instructions: str | None
    capabilities: tuple[str, ...]
    tools: tuple[ToolDefinition, ...]
    left_out: tuple[Withheld, ...] = ()
    notes: tuple[str, ...] = ()

    def all_notes(self) -> Iterator[str]:
        """Yields a sentence for each tool that is left out, then those about the whole list."""
        for tool in self.left_out:
            yield f"The tool {tool.name} is left out: {tool.why}."
        yield from self.notes


def facts_of(client: Client, listing: Listing) -> ServerFacts:
    """Returns the facts of a client that is connected; names and instructions are cut at their caps."""
    info = client.server_info
    return ServerFacts(
        name=_cut(info.title or info.name, MAX_NAME_CHARS) if info else None,
        version=_cut(info.version or None, MAX_NAME_CHARS) if info else None,
        instructions=_cut(client.instructions, MAX_TEXT_CHARS),
        capabilities=tuple(sorted(client.server_capabilities.model_dump(exclude_none=True))),
        tools=tuple(listing.tools),
        left_out=tuple(listing.left_out),
        notes=tuple(listing.notes),
    )


def _cut(text: str | None, most: int) -> str | None:
    return text[:most] if text else None
