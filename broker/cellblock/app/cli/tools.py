"""`types`, `search`, `inspect` and `schemas`: what the servers' tools are and return. No tool is called for it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from cellblock.app.assembly import store_of
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError, reading
from cellblock.app.cli.asking import Person, answered
from cellblock.app.cli.config_check import overlay_faults
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import catalog_of, of_state, opened, settled_catalog
from cellblock.app.cli.streams import answer, write_data, write_json
from cellblock.base.errors import ConfigError, counted
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import prepare_state_dir
from cellblock.base.store import LocalStore
from cellblock.base.terminal import Painter
from cellblock.base.visible import visible
from cellblock.types.definitions import definitions_in, marks_in_comments, published, schema_document
from cellblock.types.learning.overlay import new_overlay, overlay_file
from cellblock.types.learning.store import TABLES, Observations
from cellblock.types.lookup import (
    NOTHING_FOUND,
    declare_found,
    find_server,
    find_tools,
    inspect_tool,
    search_tools,
    show_types,
)
from cellblock_worker.base.folders import FILE, Folder, InTheWay
from cellblock_worker.base.private_files import write_private

DESCRIPTION_CHARS: Final = 100
"""Bounds a description in a list."""

WIDTH: Final = 100
"""Counts the columns of running text."""


@reading(of_state)
async def types(parsed: argparse.Namespace, settings: Settings) -> None:
    found = await _asked(
        parsed,
        settings,
        "types",
        {"servers": parsed.servers, "reading": not parsed.compiler, "each": parsed.json},
    )
    if parsed.json:
        write_json(found)
    else:
        write_data(found)


async def types_of(broker: Broker, wanted: Mapping[str, Any], person: Person) -> str | dict[str, str]:
    """Declares the tools of the servers that are named, or of all; with `each`, for each server."""
    names: list[str] = wanted["servers"]
    catalog = await settled_catalog(broker, names or None, person.tell)

    def declarations(some: Sequence[str]) -> str:
        return show_types(catalog, some, broker.output_of, reading=wanted["reading"])

    if wanted["each"]:
        return {name: await asyncio.to_thread(declarations, [name]) for name in names or catalog.servers}
    return await asyncio.to_thread(declarations, names)


@reading(of_state)
async def search(parsed: argparse.Namespace, settings: Settings) -> int:
    """Prints the tools that fit a description.

    Raises:
        UsageError: The options cannot be used.
    """
    if parsed.json and parsed.types:
        raise UsageError("give --json or --types")
    found = await _asked(
        parsed,
        settings,
        "search",
        {
            "query": parsed.query,
            "types": parsed.types,
            "options": {"server": parsed.server, "limit": parsed.limit},
        },
    )
    if parsed.types:
        write_data(found["found"])
    else:
        text = search_text(found["found"], Painter(sys.stdout), found["missing"])
        answer(parsed, found["found"], f"{text}\n")
    return EXIT_NO if found["missing"] and found["found"] in ([], NOTHING_FOUND) else EXIT_OK


async def search_in(broker: Broker, wanted: Mapping[str, Any], person: Person) -> dict[str, Any]:
    """Finds the tools that fit a query, or with `types` declares them; and says which servers are missing."""
    options: dict[str, Any] = wanted["options"]
    names = None if options["server"] is None else [options["server"]]
    catalog = await settled_catalog(broker, names, person.tell)

    def found() -> Any:
        if wanted["types"]:
            return declare_found(find_tools(catalog, wanted["query"], **options), broker.output_of)
        return search_tools(catalog, wanted["query"], **options, outputs=broker.output_of)

    return {"found": await asyncio.to_thread(found), "missing": [] if names else [*catalog.unavailable]}


@reading(of_state)
async def inspect(parsed: argparse.Namespace, settings: Settings) -> None:
    found = await _asked(parsed, settings, "inspect", {"tool": parsed.tool})
    if parsed.json or not sys.stdout.isatty():
        write_json(found)
    else:
        sys.stdout.write(tool_text(found, Painter(sys.stdout)) + "\n")


async def inspect_in(broker: Broker, wanted: Mapping[str, Any], person: Person) -> dict[str, Any]:
    """Describes a tool; where its server is named, the others are not waited for."""
    tool: str = wanted["tool"]
    named = [
        server_id
        for name, server_id in broker.catalog.ids.items()
        if tool.startswith((f"{name}.", f"{server_id}.", f"mcp__{name}__", f"mcp__{server_id}__"))
    ]
    catalog = await settled_catalog(broker, named or None, person.tell)
    if len(named) == 1 and named[0] in catalog.unavailable:
        find_server(catalog, named[0])
    return inspect_tool(catalog, tool, broker.output_of, broker.observed_of)


async def _asked(parsed: argparse.Namespace, settings: Settings, what: str, wanted: Mapping[str, Any]) -> Any:
    return await answered(parsed, Broker(settings.without_workers()), what, wanted, Person())


def search_text(results: Sequence[Mapping[str, Any]], paint: Painter, missing: Sequence[str] = ()) -> str:
    """Returns search results, a line each, without what a terminal would act on; `missing` are servers that were not
    searched."""
    lines: list[str] = []
    for result in results:
        description = " ".join(str(result.get("description") or "").split())[:DESCRIPTION_CHARS]
        server = paint(f"{visible(str(result['serverId']))}.", "dim")
        tool = paint(visible(str(result["toolName"])), "bold", "cyan")
        lines.append(f"{server}{tool}  {visible(description)}".rstrip())
    nothing = f"nothing found; not connected: {', '.join(missing)}" if missing else "nothing found"
    return "\n".join(lines) or nothing


def tool_text(found: Mapping[str, Any], paint: Painter) -> str:
    """Returns one tool as `inspect` has it, without what a terminal would act on."""
    lines = [paint(visible(f"{found['serverId']}.{found['toolName']}"), "bold", "cyan")]
    if found.get("warning"):
        lines += ["", paint(visible(str(found["warning"])), "yellow")]
    for paragraph in str(found.get("description") or "").split("\n"):
        lines += textwrap.wrap(visible(paragraph), WIDTH) or [""]
    lines += [
        "",
        paint("In a script", "bold"),
        f'  import {{ {found["exportName"]} }} from "{found["module"]}";',
        "",
        paint("Declaration", "bold"),
        *(f"  {visible(line)}" for line in str(found.get("declaration") or "").rstrip().split("\n")),
    ]
    if found.get("note"):
        lines += ["", *textwrap.wrap(str(found["note"]), WIDTH)]
    for example in found.get("examples", ()):
        lines += ["", paint("Example", "bold"), f"  {visible(str(example))}"]
    return "\n".join([*lines, "", paint("With --json: the schemas.", "dim")])


@reading(of_state)
async def init(parsed: argparse.Namespace, settings: Settings) -> None:
    """Writes an overlay file for one server, and prints its path.

    Raises:
        ConfigError: There is no such server, or the file cannot be written.
    """
    catalog, broker = await catalog_of(settings, [parsed.server])
    server = find_server(catalog, parsed.server)
    file = overlay_file(settings.overlay_dir, server.config_name)
    known = ((tool, broker.output_of(server, tool)) for tool in server.tools)
    text = new_overlay(server.config_name, known)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Folder.named(file.parent) as folder:
            folder.check(file.name, FILE)
            if not write_private(folder, file.name, text.encode(), replace=parsed.force):
                raise ConfigError(
                    f"{file} is there already.", hint="Edit it, or use --force to write over it."
                )
    except InTheWay as error:
        raise ConfigError(f"{error}.", hint="Move it away.") from None
    except OSError as error:
        raise ConfigError(f"Cannot write {file}: {error}.", hint="Use another --state-dir.") from None
    sys.stdout.write(f"{file}\n")


@reading(of_state)
async def export(parsed: argparse.Namespace, settings: Settings) -> None:
    """Prints what is known of outputs, or whole definitions. Raises ConfigError: There is no such server."""
    catalog, broker = await catalog_of(settings)
    servers = catalog.servers.values() if parsed.server is None else [find_server(catalog, parsed.server)]
    if parsed.format is not None:
        # Of all servers: a tool has the same name however few are asked for.
        tools = {name: one for name, one in published(catalog).items() if one.server in servers}
        if parsed.format == "typescript":
            names = [] if parsed.server is None else [parsed.server]
            declared = show_types(catalog, names, broker.output_of)
            write_data("\n".join([*marks_in_comments(tools, broker.output_of), "", declared]))
        elif parsed.format == "json-schema":
            write_json(schema_document(tools, broker.output_of))
        else:
            write_json(definitions_in(tools, parsed.format, broker.output_of, broker.observed_of))
        return
    write_json(
        {
            server.server_id: {
                tool.tool_name: {**known.as_json(), "schema": known.as_schema()}
                for tool in server.tools
                if (known := broker.output_of(server, tool)) is not None
            }
            for server in servers
        }
    )


def _opened(settings: Settings) -> contextlib.AbstractContextManager[Observations]:
    """Opens what was observed for a while; raises ConfigError where there is nothing, or it cannot be used."""
    where = store_of(settings)
    if isinstance(where, LocalStore):
        if not where.exists(TABLES):
            raise ConfigError(
                f"Nothing was observed yet: there is no {where.state_dir / TABLES.file}.",
                hint="Check --state-dir.",
            )
        prepare_state_dir(settings.state_dir)
    return opened(
        settings, "What was observed", lambda: contextlib.closing(Observations(where.database(TABLES)))
    )


@reading(of_state)
async def diff(parsed: argparse.Namespace, settings: Settings) -> None:
    """Prints how results of one tool have changed.

    Raises:
        ConfigError: Nothing was observed of it, or the store cannot be used.
    """
    with _opened(settings) as store:
        older = store.versions(parsed.server, parsed.tool)
        newest = [
            seen
            for key, seen in store.load().items()
            if (key.server, key.tool) == (parsed.server, parsed.tool)
        ]
    file = overlay_file(settings.overlay_dir, parsed.server)
    faults = [
        fault
        for fault in overlay_faults(settings)
        if fault.file == file and fault.path[1:] in ((), (parsed.tool,))
    ]
    if not newest and not faults:
        raise ConfigError(
            f"Nothing was observed of {parsed.server}.{parsed.tool}.", hint="Use its name in MCP."
        )
    latest = [(newest[0].version, 0.0, max(newest, key=lambda seen: seen.last_seen))] if newest else []
    lines: list[str] = []
    changes: list[dict[str, Any]] = []
    for (version, until, before), (_, _, after) in pairwise([*older, *latest]):
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
        sentences = before.shape.changes_to(after.shape)
        lines += [f"{at}, after version {version}:", *(f"  {sentence}" for sentence in sentences)]
        changes.append({"after": version, "at": at, "changes": list(sentences)})
    lines = lines or ["It has not changed."]
    lines += [f"{fault.severity}: {fault.text(str(file))} {fault.hint}" for fault in faults]
    answer(parsed, [*changes, *(fault.as_json() for fault in faults)], "\n".join(lines) + "\n")


@reading(of_state)
async def clear(parsed: argparse.Namespace, settings: Settings) -> None:
    """Forgets the observations of a tool, a server, or all. Raises ConfigError: The store cannot be used."""
    with _opened(settings) as store:
        count = store.clear(parsed.server, parsed.tool)
    answer(parsed, {"forgot": count}, f"forgot {counted(count, 'tool')}\n")
