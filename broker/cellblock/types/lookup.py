"""Answers questions about tools from outside a script, the same for the command line and the `extended` profile."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from cellblock.base.errors import ConfigError
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.tools.catalog.model import (
    Catalog,
    OutputLookup,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    nothing_observed,
    stated_output,
)
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.discovery import Discovery, describe_server, tool_definition
from cellblock.types.search import SearchHit
from cellblock.types.typescript import ServerText, declare_all, declare_server, declare_tool
from cellblock.types.typescript.text import one_line

NAMESPACE: Final = "mcp__"

NO_OUTPUT_SCHEMA: Final = "No output schema defined by the upstream server."

MAX_FOUND_CHARS: Final = 16_000
"""Bounds the declarations in the answer to one search: about 5,000 tokens of a model's context."""

MAX_REST_NAME_CHARS: Final = 100

NOTHING_FOUND: Final = "// nothing found\n"


def show_types(
    catalog: Catalog, names: Sequence[str], outputs: OutputLookup = stated_output, *, reading: bool = True
) -> str:
    """Writes TypeScript declarations of the named servers, or of everything a script can import.

    Names are ids or names in the configuration. `outputs` is what types use; without `reading` they are as a compiler
    is given them.

    Raises:
        ConfigError: A named server is not connected.
    """
    if not names:
        return declare_all(catalog, outputs, reading=reading)
    return "\n".join(
        declare_server(find_server(catalog, name), outputs=outputs, reading=reading) for name in names
    )


def find_tools(
    catalog: Catalog, query: str, *, server: str | None = None, limit: int, discovery: Discovery | None = None
) -> Sequence[SearchHit]:
    """Finds at most `limit` tools for what they are to do or a name, best first.

    `server` is the id or configured name of the only one to search; `discovery` that of the catalog, with its index.

    Raises:
        ConfigError: The named server is not connected.
    """
    server_id = None if server is None else find_server(catalog, server).server_id
    return (discovery or Discovery(catalog)).hits(query, server_id, limit)


def declare_found(hits: Sequence[SearchHit], outputs: OutputLookup = stated_output) -> str:
    """Writes TypeScript declarations of found tools, as known now; a module for each server, the best one first.

    Within `MAX_FOUND_CHARS`: the functions that do not fit are named.
    """
    chosen: dict[str, tuple[ServerEntry, list[ToolEntry]]] = {}
    rest: list[str] = []
    left = MAX_FOUND_CHARS
    for hit in hits:
        length = len(declare_tool(hit.tool, outputs(hit.server, hit.tool)))
        if length > left and chosen:
            rest.append(f"{hit.server.server_id}.{hit.tool.tool_name}")
            continue
        left -= length
        chosen.setdefault(hit.server.server_id, (hit.server, []))[1].append(hit.tool)
    parts = [ServerText(server, tools, outputs, meta=False).whole() for server, tools in chosen.values()]
    if rest:
        shown = ", ".join(one_line(name, MAX_REST_NAME_CHARS) for name in rest)
        parts.append(f"// Found too, and left out here: {shown}\n")
    return "\n".join(parts) or NOTHING_FOUND


def search_tools(
    catalog: Catalog, query: str, *, server: str | None, limit: int, outputs: OutputLookup = stated_output
) -> list[dict[str, Any]]:
    """Finds the best tools for a query, each as `getTool` gives it and with its declaration.

    Raises:
        ConfigError: The named server is not connected.
    """
    found: list[dict[str, Any]] = []
    for hit in find_tools(catalog, query, server=server, limit=limit):
        output = outputs(hit.server, hit.tool)
        definition = tool_definition(hit.tool, "full", output)
        declaration = declare_tool(hit.tool, output)
        found.append({"serverId": hit.server.server_id, **definition, "declaration": declaration})
    return found


def list_servers(catalog: Catalog) -> dict[str, Any]:
    """Lists every server: as `describeServer` gives it, with the number of its tools; and those that are out of
    reach."""
    servers = [
        {
            **describe_server(server),
            "module": f"{SERVERS_PREFIX}{server.server_id}",
            "tools": len(server.tools),
            **({"leftOut": left_out} if (left_out := sum(tool.granted for tool in server.withheld)) else {}),
        }
        for server in catalog.servers.values()
    ]
    return {"servers": servers, "notConnected": dict(catalog.unavailable)}


class NoSuchTool(ConfigError):
    """Tells that no tool has the name that was asked for."""


def inspect_tool(
    catalog: Catalog,
    name: str,
    outputs: OutputLookup = stated_output,
    observed: OutputLookup = nothing_observed,
    *,
    finder: str = "`cellblock search`",
) -> dict[str, Any]:
    """Describes one tool with its schemas: declared, given and observed ones each under a name of their own.

    Args:
        catalog: The servers.
        name: `SERVER.TOOL`, `mcp__SERVER__TOOL`, or a unique `TOOL`; names of exports serve too.
        outputs: What types use: given, declared or observed.
        observed: What has been observed, whatever the others say.
        finder: What whoever asks can find tools with.

    Raises:
        NoSuchTool: No tool has that name.
        ConfigError: More than one has, or it is left out.
    """
    server, tool = _named(catalog, name, finder)
    output, seen = outputs(server, tool), observed(server, tool)
    stated = stated_output(server, tool)
    given = stated if stated is not None and stated.source == "given" else None
    shown: dict[str, Any] = {
        "name": f"{NAMESPACE}{server.config_name}__{tool.tool_name}",
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
    }
    if tool.output_schema is None:
        shown["note"] = _note(given, seen)
    if given is not None:
        shown["givenOutputSchema"] = given.as_schema()
    if seen is not None:
        shown["observedOutputSchema"] = seen.as_schema()
    if tool.annotations:
        shown["annotations"] = dict(tool.annotations)
    examples = tool.given.examples if tool.given is not None else ()
    if examples:
        shown["examples"] = [
            {"input": one.input, **({} if one.output is None else {"output": one.output})} for one in examples
        ]
    shown |= {
        "serverId": server.server_id,
        "toolName": tool.tool_name,
        "exportName": tool.export_name,
        "module": f"{SERVERS_PREFIX}{server.server_id}",
        "output": None if output is None else output.as_json(),
        "declaration": declare_tool(tool, output),
    }
    if tool.tool_name in server.unpinned:
        review = f"`cellblock pins approve {shlex.quote(server.config_name)}`"
        shown["warning"] = f"Not as pinned: {server.unpinned[tool.tool_name]}. Review it: {review}."
    return shown


def _note(given: ToolOutput | None, seen: ToolOutput | None) -> str:
    if given is not None:
        return f"{NO_OUTPUT_SCHEMA} What the user says of it is under givenOutputSchema."
    if seen is not None:
        return (
            f"{NO_OUTPUT_SCHEMA} What results looked like is under observedOutputSchema; others may differ."
        )
    return (
        f"{NO_OUTPUT_SCHEMA} Inspect the return value in your script (e.g., console.log(typeof result, "
        "JSON.stringify(result).slice(0, 300))) to determine the structure."
    )


def _named(catalog: Catalog, name: str, finder: str) -> tuple[ServerEntry, ToolEntry]:
    found = [
        (server, tool)
        for server in catalog.servers.values()
        for tool in server.tools
        if name in _names_of(server, tool.tool_name, tool.export_name)
    ]
    if len(found) == 1:
        return found[0]
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
    without = f"Try {finder}." if known else catalog.who_is_connected()
    raise NoSuchTool(f"There is no tool {name}.", hint=did_you_mean(nearest_names(name, known), without))


def find_server(catalog: Catalog, name: str) -> ServerEntry:
    """Finds a connected server by its id or its name in the configuration. Raises ConfigError."""
    server_id = catalog.id_of(name)
    server = catalog.servers.get(server_id)
    if server is not None:
        return server
    reason = catalog.unavailable.get(server_id)
    if reason is not None:
        if server_id in catalog.logins:
            hint = f"Log in: {catalog.logins[server_id]}."
        elif server_id in catalog.starting:
            hint = "Try again in a moment."
        else:
            wanted = catalog.wants.get(server_id, "`cellblock doctor` says what to do")
            hint = f"{wanted[0].upper()}{wanted[1:]}."
        raise ConfigError(f"Server {name} is not connected: {reason}.", hint=hint)
    if server_id in catalog.denied:
        raise ConfigError(f"Server {name} is not granted to this client.", hint=catalog.denied[server_id])
    near = nearest_names(name, [*catalog.servers, *catalog.unavailable], 1)
    raise ConfigError(f"There is no server {name}.", hint=did_you_mean(near, catalog.who_is_connected()))


def _names_of(server: ServerEntry, *tools: str) -> set[str]:
    servers = {server.server_id, server.config_name}
    qualified = {f"{one}.{other}" for one in servers for other in tools}
    namespaced = {f"{NAMESPACE}{one}__{other}" for one in servers for other in tools}
    return {*tools} | qualified | namespaced
