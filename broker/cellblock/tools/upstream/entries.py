"""Reads what a server lists beside tools (resources, their templates, prompts), as its tool list is read.

Every item is taken as the server sent it, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp import Client

from cellblock.tools.catalog.requests import Kind
from cellblock.tools.upstream.definitions import MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TOOL_BYTES
from cellblock.tools.upstream.heavy import HeavyMessages, other_page
from cellblock.tools.upstream.lenience import malformed_of
from cellblock.tools.upstream.listing import MAX_LISTED_BYTES, MAX_TOOLS, read_pages

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
    result: type[types.ListResourcesResult | types.ListResourceTemplatesResult | types.ListPromptsResult]
    field: str


_LISTS: Final[Mapping[Kind, _List]] = {
    "resources": _List("resource", types.ListResourcesRequest, types.ListResourcesResult, "resources"),
    "resourceTemplates": _List(
        "template",
        types.ListResourceTemplatesRequest,
        types.ListResourceTemplatesResult,
        "resource_templates",
    ),
    "prompts": _List("prompt", types.ListPromptsRequest, types.ListPromptsResult, "prompts"),
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
        self._field = _LISTS[kind].field
        self._seen: set[str] = set()
        self._bytes = 0
        self._left_out = 0

    def take(self, page: types.PaginatedResult) -> bool:
        """Takes one page; returns whether no more items can be taken."""
        self._left_out += len(malformed_of(page))
        items: Sequence[Entry] = getattr(page, self._field)
        for item in items:
            if len(self._seen) >= MAX_TOOLS:
                self.notes.append(f"It lists more than {MAX_TOOLS:,} {self.what}s; the rest is left out.")
                return True
            self._take(item)
        return False

    def close(self) -> None:
        """Adds a note on the items that are left out."""
        if self._left_out:
            self.notes.append(
                f"{self._left_out} of its {self.what}s are left out: malformed, listed twice, or over a cap."
            )

    def _take(self, item: Entry) -> None:
        key = key_of(item)[: MAX_KEY_CHARS + 1]
        is_new = key not in self._seen
        # One that comes twice counts, too: a list of one item without end is one.
        self._seen.add(key if is_new else f"{len(self._seen)} {key}")
        texts = (item.name, MAX_NAME_CHARS), (item.title, MAX_TEXT_CHARS)
        texts = (*texts, (item.description, MAX_TEXT_CHARS), (key, MAX_KEY_CHARS))
        fits = is_new and all(text is None or len(text) <= most for text, most in texts)
        size = len(item.model_dump_json(by_alias=True, exclude_none=True)) if fits else 0
        if not fits or size > MAX_TOOL_BYTES or self._bytes + size > MAX_LISTED_BYTES:
            self._left_out += 1
            return
        self._bytes += size
        self.found.append(item)


async def list_entries(kind: Kind, client: Client, heavy: HeavyMessages) -> Entries:
    """Reads a whole list, as `read_pages`."""
    listing, of = Entries(kind), _LISTS[kind]

    async def fetch(cursor: str | None) -> Any:
        request = of.request(params=types.PaginatedRequestParams(cursor=cursor))
        return await other_page(client, heavy, request, of.result)

    await read_pages(listing, fetch)
    listing.close()
    return listing
