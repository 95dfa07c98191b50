"""What a connected server said of itself, within its caps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp import Client

from cellblock.catalog.model import Withheld
from cellblock.config.settings import UpstreamSettings
from cellblock.upstream.definitions import ToolDefinition
from cellblock.upstream.listing import Listing


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One reading: identity, tools, tools that are over a cap, and what is to be said of the list as a whole."""

    name: str | None
    version: str | None
    instructions: str | None
    capabilities: tuple[str, ...]
    tools: tuple[ToolDefinition, ...]
    left_out: tuple[Withheld, ...] = ()
    notes: tuple[str, ...] = ()

    def all_notes(self) -> Iterator[str]:
        """A sentence for each tool that is left out, then those about the whole list."""
        for tool in self.left_out:
            yield f"The tool {tool.name} is left out: {tool.why}."
        yield from self.notes


def facts_of(client: Client, listing: Listing, settings: UpstreamSettings) -> ServerFacts:
    """The facts of a client that is connected; names and instructions are cut at their caps."""
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
