"""The commands that show what is known about tools: `types`, `search` and `inspect`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from cellblock.catalog.discovery import Discovery, tool_definition
from cellblock.catalog.model import Catalog, ServerEntry
from cellblock.catalog.outputs import OutputLookup, stated_output
from cellblock.catalog.suggest import nearest_names
from cellblock.catalog.typescript import declare_all, declare_server, declare_tool
from cellblock.errors import ConfigError

NAMESPACE = "mcp__"


def show_types(catalog: Catalog, names: Sequence[str], outputs: OutputLookup = stated_output) -> str:
    """TypeScript declarations of the named servers, or of everything a script can import.

    Raises:
        ConfigError: A named server is not connected.
    """
    if not names:
        return declare_all(catalog, outputs)
    return "\n".join(declare_server(find_server(catalog, name), outputs=outputs) for name in names)


def search_tools(catalog: Catalog, query: str, *, server: str | None, limit: int) -> list[dict[str, Any]]:
    """The best tools for a query, as `searchTools` gives them.

    Raises:
        ConfigError: The named server is not connected.
    """
    options: dict[str, Any] = {"limit": limit}
    if server is not None:
        options["serverId"] = find_server(catalog, server).server_id
    return Discovery(catalog).search(query, options)["results"]


def inspect_tool(catalog: Catalog, name: str, outputs: OutputLookup = stated_output) -> dict[str, Any]:
    """One tool's definition with its schemas. `name` is `SERVER.TOOL`, `mcp__SERVER__TOOL`, or a unique `TOOL`.

    Raises:
        ConfigError: No tool, or more than one, has that name.
    """
    found = [
        (server, tool)
        for server in catalog.servers.values()
        for tool in server.tools
        if name in _names_of(server, tool.tool_name, tool.export_name)
    ]
    if len(found) == 1:
        server, tool = found[0]
        output = outputs(server, tool)
        definition = tool_definition(tool, "full", output)
        definition["output"] = None if output is None else output.as_json()
        definition["declaration"] = declare_tool(tool, output)
        shown = {"serverId": server.server_id, **definition, "outputSchema": definition.get("outputSchema")}
        if tool.tool_name in server.unpinned:
            review = f"`cellblock approve {shlex.quote(server.config_name)}`"
            shown["warning"] = f"Not as pinned: {server.unpinned[tool.tool_name]}. Review it: {review}."
        return shown
    if found:
        choices = ", ".join(f"{server.server_id}.{tool.tool_name}" for server, tool in found)
        raise ConfigError(f"{name} is a tool of several servers.", hint=f"Choose one of {choices}.")
    for server in catalog.servers.values():
        for withheld in server.withheld:
            if name in _names_of(server, withheld.name, withheld.export_name):
                raise ConfigError(
                    f"The tool {withheld.name} of {server.server_id} is left out: {withheld.why}.",
                    hint=withheld.hint,
                )
    known = [
        f"{server.server_id}.{tool.tool_name}" for server in catalog.servers.values() for tool in server.tools
    ]
    near = nearest_names(name, known)
    raise ConfigError(
        f"There is no tool {name}.",
        hint=f"Did you mean {' or '.join(near)}?" if near else "Try `cellblock search`.",
    )


def find_server(catalog: Catalog, name: str) -> ServerEntry:
    """A connected server by its id or its name in the configuration. Raises ConfigError."""
    for server in catalog.servers.values():
        if name in (server.server_id, server.config_name):
            return server
    reason = catalog.unavailable.get(name)
    if reason is not None:
        raise ConfigError(f"Server {name} is not connected: {reason}.", hint="Start it by hand to see why.")
    near = nearest_names(name, catalog.servers)
    known = ", ".join(catalog.servers) or "none"
    raise ConfigError(
        f"There is no server {name}.",
        hint=f"Did you mean {near[0]}?" if near else f"Connected servers: {known}.",
    )


def as_text(results: Sequence[dict[str, Any]]) -> str:
    """Search results for people: a line each."""
    lines: list[str] = []
    for result in results:
        description = " ".join(str(result.get("description") or "").split())
        lines.append(f"{result['serverId']}.{result['toolName']}  {description[:100]}".rstrip())
    return "\n".join(lines) or "nothing found"


def as_json(value: object) -> str:
    """JSON for machines."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def _names_of(server: ServerEntry, *tools: str) -> set[str]:
    servers = {server.server_id, server.config_name}
    qualified = {f"{one}.{other}" for one in servers for other in tools}
    namespaced = {f"{NAMESPACE}{one}__{other}" for one in servers for other in tools}
    return {*tools} | qualified | namespaced
