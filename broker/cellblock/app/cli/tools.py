"""Tools runs the commands `types`, `search` and `inspect`: what the servers' tools are, as JSON or for a terminal."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.loading import catalog_of, reading, with_state_dir
from cellblock.app.cli.streams import write_data, write_json
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import Painter, legible
from cellblock.types.lookup import declare_found, find_tools, inspect_tool, search_tools, show_types

DESCRIPTION_CHARS: Final = 100
"""Bounds a description in a list."""

WIDTH: Final = 100
"""Counts the columns of running text."""


@reading(with_state_dir)
async def types(parsed: argparse.Namespace, settings: Settings) -> int:
    catalog, broker = await catalog_of(settings)

    def declarations(names: Sequence[str]) -> str:
        return show_types(catalog, names, broker.output_of, reading=not parsed.compiler)

    if parsed.json:
        write_json({name: declarations([name]) for name in parsed.servers or catalog.servers})
    else:
        write_data(declarations(parsed.servers))
    return EXIT_OK


@reading(with_state_dir)
async def search(parsed: argparse.Namespace, settings: Settings) -> int:
    """Prints the tools that fit a description.

    Raises:
        UsageError: The options cannot be used.
    """
    if parsed.limit < 1:
        raise UsageError("--limit must be 1 or more")
    if parsed.json and parsed.types:
        raise UsageError("give --json or --types")
    catalog, broker = await catalog_of(settings)
    wanted: dict[str, Any] = {"server": parsed.server, "limit": parsed.limit}
    if parsed.types:
        write_data(declare_found(find_tools(catalog, parsed.query, **wanted), broker.output_of))
        return EXIT_OK
    results = search_tools(catalog, parsed.query, **wanted, outputs=broker.output_of)
    if parsed.json:
        write_json(results)
    else:
        sys.stdout.write(search_text(results, Painter(sys.stdout)) + "\n")
    return EXIT_OK


@reading(with_state_dir)
async def inspect(parsed: argparse.Namespace, settings: Settings) -> int:
    catalog, broker = await catalog_of(settings)
    found = inspect_tool(catalog, parsed.tool, broker.output_of, broker.observed_of)
    if parsed.json or not sys.stdout.isatty():
        write_json(found)
    else:
        sys.stdout.write(tool_text(found, Painter(sys.stdout)) + "\n")
    return EXIT_OK


def search_text(results: Sequence[Mapping[str, Any]], paint: Painter) -> str:
    """Returns search results, a line each, without what a terminal would act on."""
    lines: list[str] = []
    for result in results:
        description = " ".join(str(result.get("description") or "").split())[:DESCRIPTION_CHARS]
        server = paint(f"{legible(str(result['serverId']))}.", "dim")
        tool = paint(legible(str(result["toolName"])), "bold", "cyan")
        lines.append(f"{server}{tool}  {legible(description)}".rstrip())
    return "\n".join(lines) or "nothing found"


def tool_text(found: Mapping[str, Any], paint: Painter) -> str:
    """Returns one tool as `inspect` has it, without what a terminal would act on."""
    lines = [paint(legible(f"{found['serverId']}.{found['toolName']}"), "bold", "cyan")]
    if found.get("warning"):
        lines += ["", paint(legible(str(found["warning"])), "yellow")]
    for paragraph in str(found.get("description") or "").split("\n"):
        lines += textwrap.wrap(legible(paragraph), WIDTH) or [""]
    lines += ["", paint("In a script", "bold")]
    lines += [f'  import {{ {found["exportName"]} }} from "{found["module"]}";']
    lines += ["", paint("Declaration", "bold")]
    lines += [f"  {legible(line)}" for line in str(found.get("declaration") or "").rstrip().split("\n")]
    if found.get("note"):
        lines += ["", *textwrap.wrap(str(found["note"]), WIDTH)]
    for example in found.get("examples", ()):
        lines += ["", paint("Example", "bold"), f"  {legible(str(example))}"]
    return "\n".join([*lines, "", paint("With --json: the schemas.", "dim")])
