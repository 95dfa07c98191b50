"""The tool lists of public MCP servers that are kept in tests/fixtures."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import export_names

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
CATALOGS: Final = ("catalogs",)
FOLDERS: Final = (*CATALOGS, "measured_catalogs")


def recorded(folders: Collection[str] = FOLDERS) -> dict[str, dict[str, Any]]:
    """What is kept of each server, by name: `server`, and the `tools` as it lists them."""
    files = sorted(
        (file for folder in folders for file in (FIXTURES / folder).glob("*.json")),
        key=lambda file: file.stem,
    )
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def server_of(
    server_id: str, tools: list[dict[str, Any]], name: str, version: str | None = None
) -> ServerEntry:
    """A server with tools as in an answer to `tools/list`."""
    listed = {tool["name"]: tool for tool in tools}
    members = ("description", "annotations", "inputSchema", "outputSchema")
    entries = tuple(
        ToolEntry(tool_name, export, *(listed[tool_name].get(member) for member in members))
        for tool_name, export in export_names(listed).items()
    )
    return ServerEntry(server_id, name, server_id, version, tools=entries)


def recorded_tools() -> list[dict[str, Any]]:
    """The tools of all servers whose lists are not kept for a measurement alone."""
    return [tool for document in recorded(CATALOGS).values() for tool in document["tools"]]


def recorded_catalog(names: Collection[str] | None = None, folders: Collection[str] = FOLDERS) -> Catalog:
    """Recorded servers as a catalog; all of them when none is named."""
    kept = recorded(folders)
    servers = {
        name: server_of(
            name, kept[name]["tools"], kept[name]["server"]["name"], kept[name]["server"].get("version")
        )
        for name in names or kept
    }
    return Catalog(1, servers)
