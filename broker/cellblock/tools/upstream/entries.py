"""Reads what a server lists beside tools (resources, their templates, prompts), as its tool list is read.

Every item is taken as the server sent it, without hidden characters in its texts, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp.client.session import ClientSession
from pydantic import BaseModel, ValidationError

from cellblock.base.json import is_object
from cellblock.base.visible import visible, visible_schema
from cellblock.tools.catalog.requests import Kind
from cellblock.tools.upstream.definitions import MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TOOL_BYTES
from cellblock.tools.upstream.listing import MAX_LISTED_BYTES, MAX_TOOLS, read_pages
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
        is_shown = not isinstance(item, types.Prompt)
        self.found.append(item.model_copy(update={"name": visible(item.name)}) if is_shown else item)


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
