"""Reads what a server lists, page by page, within its caps: what is over one is left out, the rest is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import mcp_types as types
from mcp import Client

from cellblock.catalog.model import Withheld
from cellblock.config.settings import UpstreamSettings
from cellblock.upstream.definitions import ToolDefinition, admit, left_out, shown
from cellblock.upstream.lenience import malformed_of

MAX_LEFT_OUT: Final = 100
"""Bounds the tools that are named as left out; of more than these only the number is said."""

MAX_NAMED: Final = 5
"""Bounds the names in one note."""


Page = TypeVar("Page", bound=types.PaginatedResult)
Taken = TypeVar("Taken", contravariant=True)


class Taker(Protocol[Taken]):
    """Takes the pages of one list."""

    what: str
    notes: list[str]

    def take(self, page: Taken) -> bool:
        """Takes one page; returns whether no more items can be taken."""
        ...


async def list_tools(
    fetch: Callable[[str | None], Awaitable[types.ListToolsResult]], settings: UpstreamSettings
) -> Listing:
    """Reads a whole list of tools, as `read_pages`."""
    listing = Listing(settings)
    await read_pages(listing, fetch, settings)
    listing.close()
    return listing


async def read_pages(
    listing: Taker[Page], fetch: Callable[[str | None], Awaitable[Page]], settings: UpstreamSettings
) -> None:
    """Reads all pages of a list.

    Args:
        listing: Takes them.
        fetch: Asks for the page of a cursor, None for the first.
        settings: The caps.

    Raises:
        TimeoutError: Not even one page came within `upstream.list_timeout_ms`, as it says.
        MCPError: The server refused; what `fetch` raises goes through.
    """
    cursor: str | None = None
    pages = 0
    try:
        async with asyncio.timeout(settings.list_timeout_ms / 1000):
            while True:
                page = await fetch(cursor)
                pages += 1
                full = listing.take(page)
                if full or not page.next_cursor or page.next_cursor == cursor:
                    break
                if pages >= settings.max_pages:
                    listing.notes.append(
                        f"Its {listing.what} list goes on after upstream.max_pages = {settings.max_pages} pages, "
                        "which are all that is read."
                    )
                    break
                cursor = page.next_cursor
    except TimeoutError:
        if pages == 0:
            raise TimeoutError(
                f"no {listing.what} list within upstream.list_timeout_ms = {settings.list_timeout_ms}"
            ) from None
        listing.notes.append(
            f"Its {listing.what} list was not complete within upstream.list_timeout_ms = {settings.list_timeout_ms}; "
            f"{pages} pages of it are used."
        )


class Listing:
    """Reads a tool list, page by page.

    Attributes:
        tools: Those that are kept.
        left_out: Those that are not, and why.
        notes: Sentences about the list as a whole.
    """

    what = "tool"

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
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
            self._leave_out(left_out("(malformed)", why, "Report it to the server's authors."))
        for tool in page.tools:
            if len(self._names) >= self._settings.max_tools:
                self.notes.append(
                    f"It lists more than upstream.max_tools = {self._settings.max_tools} tools; "
                    "the rest is left out."
                )
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
        name = tool.name[: self._settings.max_name_chars + 1]
        if name in self._names:
            # Of two definitions under one name, a script could not tell which it calls.
            self._twice.setdefault(shown(name))
            return
        self._names.add(name)
        admitted = admit(tool, self._settings)
        if isinstance(admitted, Withheld):
            self._leave_out(admitted)
        elif self._bytes + admitted.size > (most := self._settings.max_definition_bytes):
            self._leave_out(
                left_out(
                    tool.name,
                    f"the server's definitions together are over upstream.max_definition_bytes = {most}",
                    "Raise upstream.max_definition_bytes in Cellblock's configuration to use it.",
                )
            )
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


def facts_of(client: Client, listing: Listing, settings: UpstreamSettings) -> ServerFacts:
    """Returns the facts of a client that is connected; names and instructions are cut at their caps."""
    info = client.server_info
    return ServerFacts(
        name=_cut(info.title or info.name, settings.max_name_chars) if info else None,
        version=_cut(info.version or None, settings.max_name_chars) if info else None,
        instructions=_cut(client.instructions, settings.max_description_chars),
        capabilities=tuple(sorted(client.server_capabilities.model_dump(exclude_none=True))),
        tools=tuple(listing.tools),
        left_out=tuple(listing.left_out),
        notes=tuple(listing.notes),
    )


def _cut(text: str | None, most: int) -> str | None:
    return text[:most] if text else None
