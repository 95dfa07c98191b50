"""Counts which tools of eight real servers have a typed output, before any call and after one call of each tool.

The servers are real, and called as scripts call them, with knowledge_servers/calls.json: `{server: [[tool,
arguments]]}`, in an order in which the calls succeed; `{files}` and `{repository}` stand for folders made for the run.
No call needs a network or an account. Of three more servers there is only the recorded list of tools
(tests/fixtures/catalogs): what they declare is counted, and what a call would teach is not known. Prints Markdown.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import CATALOGS, ROOT, parser, table
from cellblock import Broker
from cellblock.catalog.lookup import find_server
from cellblock.catalog.model import ServerEntry
from cellblock.catalog.outputs import ToolOutput, stated_output
from cellblock.catalog.typescript import declare_tool
from cellblock.config.settings import parse_settings
from support.public_servers import git, node_entry, python_entry

PLACE: Final = ROOT / ".servers" / "knowledge"
NODE: Final = ROOT / ".servers" / "node" / "bin" / "node"
CALLS: Final = Path(__file__).parent / "knowledge_servers" / "calls.json"
RECORDED: Final = ("github", "notion", "playwright")
EXTRACTS: Final = {
    "everything": "get-env",
    "filesystem": "read_text_file",
    "git": "git_log",
    "memory": "add_observations",
    "time": "get_current_time",
    "sqlite": "read_query",
    "dbhub": "execute_sql",
    "taskmanager": "list_requests",
}
KINDS: Final = ("JSON text", "text", "structured", "MCP result")
STARTUP_WAIT_MS: Final = 60_000  # eight servers at once on a small machine
LEARN_BOUND_SECONDS: Final = 30.0
MAX_EXTRACT_LINES: Final = 24
MAX_REASON_CHARS: Final = 120
DOT_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def npm_entry(package: str, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The entry of an npm server that `scripts/bench knowledge` installs, by the name of its package."""
    script = PLACE / "node" / "node_modules" / package / "dist" / "index.js"
    if not script.exists():
        sys.exit(f"{script} is missing: run `bash scripts/bench knowledge`, which installs it")
    return {"command": str(NODE), "args": [str(script), *args], "env": env or {}}


def make_repository(repository: Path) -> None:
    """A git repository with two commits and a change that is not committed."""
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    for number, text in enumerate(["Boskoop\n", "Boskoop\nElstar\n"]):
        (repository / "apples.txt").write_text(text, encoding="utf-8")
        git(repository, "add", "apples.txt")
        git(repository, "commit", "--quiet", "--message", f"Apples {number}", day=number + 1)
    git(repository, "config", "user.name", "Test Author")
    git(repository, "config", "user.email", "author@example.com")
    (repository / "apples.txt").write_text("Boskoop\nElstar\nConference\n", encoding="utf-8")


def make_files(files: Path) -> None:
    """A folder with a text and an image."""
    files.mkdir()
    (files / "apples.txt").write_text("Boskoop\nElstar\n", encoding="utf-8")
    (files / "dot.png").write_bytes(base64.b64decode(DOT_PNG))


def servers(folder: Path) -> dict[str, Any]:
    """The eight servers, on data of their own under `folder`."""
    return {
        "everything": node_entry("server-everything", "stdio", env={"name": "Buy milk", "due": "2026-12-01"}),
        "filesystem": node_entry("server-filesystem", str(folder / "files")),
        "git": python_entry("mcp-server-git", "--repository", str(folder / "repository")),
        "memory": node_entry("server-memory", env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}),
        "time": python_entry("mcp-server-time", "--local-timezone=UTC"),
        "sqlite": {
            "command": str(PLACE / "venv" / "bin" / "mcp-server-sqlite"),
            "args": ["--db-path", str(folder / "tasks.db")],
        },
        # A sample database that DBHub brings along, in memory.
        "dbhub": npm_entry("@bytebase/dbhub", "--transport", "stdio", "--demo"),
        "taskmanager": npm_entry(
            "@kazuph/mcp-taskmanager", env={"TASK_MANAGER_FILE_PATH": str(folder / "tasks.json")}
        ),
    }


def planned_calls(folder: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The planned calls, with the folders of this run."""
    text = CALLS.read_text(encoding="utf-8")
    for name in ("files", "repository"):
        text = text.replace(f"{{{name}}}", (folder / name).as_posix())
    return json.loads(text)


async def call(broker: Broker, server: ServerEntry, name: str, arguments: dict[str, Any]) -> str | None:
    """Calls one tool from a script. Gives what went wrong, or None."""
    tool = next(tool for tool in server.tools if tool.tool_name == name)
    code = (
        f'import * as server from "@codemode/servers/{server.server_id}";\n'
        f"await server[{json.dumps(tool.export_name)}]({json.dumps(arguments)});\n"
    )
    response = await broker.run(code)
    return None if response.ok else response.diagnostics[0].message


async def call_all(
    broker: Broker, server: ServerEntry, calls: list[tuple[str, dict[str, Any]]]
) -> dict[str, str]:
    """Calls the tools of a server in order. Gives, for each that was not called or failed, why."""
    missed = {tool.tool_name: "no call is planned" for tool in server.tools}
    for name, arguments in calls:
        failed = await call(broker, server, name, arguments)
        if failed is None:
            del missed[name]
        else:
            missed[name] = " ".join(failed.split())[:MAX_REASON_CHARS]
    return missed


def typed(output: ToolOutput | None) -> bool:
    """Whether a type other than "anything" is known."""
    return output is not None and output.as_schema() not in (True, {})


def kind_of(output: ToolOutput) -> str:
    """What an observed output is, as one of `KINDS`."""
    if output.document is not None:
        return "JSON text"
    if output.schema is not None:
        return "structured"
    return "text" if output.text else "MCP result"


def numbers_of(broker: Broker, server: ServerEntry, called: int) -> Counter[str]:
    """The numbers of a server by column."""
    numbers = Counter(tools=len(server.tools), called=called)
    for tool in server.tools:
        output = broker.output_of(server, tool)
        numbers["declared"] += tool.output_schema is not None
        numbers["typed"] += typed(output)
        if output is not None and output.source == "observed" and typed(output):
            numbers[kind_of(output)] += 1
        observed = broker.observed_of(server, tool)
        if tool.output_schema is not None and observed is not None:
            numbers["compared"] += observed.samples > 0
        numbers["misfits"] += output is not None and output.disagreement is not None
    return numbers


def line(name: str, numbers: Counter[str]) -> tuple[object, ...]:
    """One line of the table."""
    return name, *(numbers[column] for column in ("tools", "declared", "called", "typed", *KINDS))


def extract(text: str) -> str:
    """What a declaration says of the output, cut."""
    lines = text[text.index("): Promise<") + 3 :].rstrip().splitlines()
    cut = [*lines[:MAX_EXTRACT_LINES], "…"] if len(lines) > MAX_EXTRACT_LINES else lines
    return "\n".join(["```ts", *cut, "```"])


def before_and_after(broker: Broker, server: ServerEntry, tool_name: str) -> list[str]:
    """The declaration of one tool's output as stated, and as known now; once, when they are the same."""
    tool = next(tool for tool in server.tools if tool.tool_name == tool_name)
    before = extract(declare_tool(tool, stated_output(server, tool)))
    after = extract(declare_tool(tool, broker.output_of(server, tool)))
    name = f"`{server.server_id}.{tool_name}`"
    if before == after:
        return [f"\n{name}, declared, and the same after a call:\n", before]
    return [f"\n{name}, before and after one call:\n", before, "", after]


def recorded() -> list[str]:
    """A line for each server of which there is only the list of tools."""
    lines: list[str] = []
    for name in RECORDED:
        catalog = json.loads((CATALOGS / f"{name}.json").read_text("utf-8"))
        declared = sum(tool.get("outputSchema") is not None for tool in catalog["tools"])
        version = catalog["server"]["version"]
        lines.append(f"- {name} {version}: {len(catalog['tools'])} tools, {declared} declared")
    return lines


async def measure(folder: Path) -> list[str]:
    """Starts the servers, calls them, and gives the lines to print."""
    make_files(folder / "files")
    make_repository(folder / "repository")
    raw = {
        "mcpServers": servers(folder),
        "cellblock": {
            "state_dir": str(folder / "state"),
            "upstream": {"startup_wait_ms": STARTUP_WAIT_MS},
        },
    }
    missed: dict[str, dict[str, str]] = {}
    async with Broker(parse_settings(raw)) as broker:
        await broker.settled()
        for name, calls in planned_calls(folder).items():
            missed[name] = await call_all(broker, find_server(broker.catalog, name), calls)
        await broker.learnt(LEARN_BOUND_SECONDS)
        rows: list[tuple[object, ...]] = []
        total: Counter[str] = Counter()
        extracts: list[str] = []
        for name, tool_name in EXTRACTS.items():
            server = find_server(broker.catalog, name)
            numbers = numbers_of(broker, server, len(server.tools) - len(missed[name]))
            rows.append(line(f"{server.server_id} {server.version}", numbers))
            total += numbers
            extracts += before_and_after(broker, server, tool_name)
    head = ("server", "tools", "declared", "called", "typed after one call each", *KINDS)
    lines = [table(head, [*rows, line("all", total)])]
    lines.append(
        f"\nTools that declare an output and whose result did not fit it: {total['misfits']} of {total['compared']}"
    )
    reasons = [f"- `{name}.{tool}`: {why}" for name, tools in missed.items() for tool, why in tools.items()]
    lines += ["\nNot called:\n", *(reasons or ["none"]), "\nRecorded lists only:\n", *recorded()]
    return [*lines, *extracts]


def main(arguments: Sequence[str]) -> int:
    """Prints the table, what was not called, and the extracts; returns 0."""
    parser("knowledge", __doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write("\n".join(asyncio.run(measure(Path(name)))) + "\n")

    return 0
