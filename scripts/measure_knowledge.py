"""Counts which tools of real servers have a typed output, before any call and after one call of each tool.

    python scripts/measure_knowledge.py          (after `bash scripts/test` has installed the servers once)

Servers that are installed are started and called. Of the others there is the recorded list of tools
(tests/fixtures/catalogs): what they declare is counted, and what a call would teach is not known. Prints Markdown.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from cellblock import Broker
from cellblock.catalog.model import ServerEntry
from cellblock.catalog.outputs import ToolOutput, stated_output
from cellblock.catalog.typescript import declare_tool
from cellblock.config import parse_settings
from cellblock.knowledge import find_server

TESTS: Final = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from fixtures_servers import _git, node_entry, python_entry  # noqa: E402  # pyright: ignore

RECORDED: Final = ("github", "notion", "playwright")
EXTRACTS: Final = (("everything", "get-env"), ("everything", "get-resource-links"), ("git", "git_log"))
LEARN_BOUND_SECONDS: Final = 30.0
MAX_EXTRACT_LINES: Final = 14


def calls(repository: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """One representative call of each tool that declares no output, in an order in which they succeed."""
    git: list[tuple[str, dict[str, Any]]] = [
        ("git_status", {}),
        ("git_log", {"max_count": 3}),
        ("git_show", {"revision": "HEAD"}),
        ("git_branch", {"branch_type": "local"}),
        ("git_create_branch", {"branch_name": "other"}),
        ("git_diff", {"target": "HEAD~1"}),
        ("git_diff_unstaged", {}),
        ("git_add", {"files": ["apples.txt"]}),
        ("git_diff_staged", {}),
        ("git_reset", {}),
        ("git_add", {"files": ["apples.txt"]}),
        ("git_commit", {"message": "Add a pear"}),
        ("git_checkout", {"branch_name": "other"}),
    ]
    return {
        "everything": [
            ("echo", {"message": "hello"}),
            ("get-annotated-message", {"messageType": "success"}),
            ("get-env", {}),
            ("get-resource-links", {"count": 2}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("get-sum", {"a": 1, "b": 2}),
            ("get-tiny-image", {}),
            ("gzip-file-as-resource", {"name": "a.gz", "data": "data:text/plain;base64,aGVsbG8="}),
            ("simulate-research-query", {"topic": "tea"}),
            ("toggle-simulated-logging", {}),
            ("toggle-subscriber-updates", {}),
            ("trigger-long-running-operation", {"duration": 1, "steps": 1}),
        ],
        "git": [(name, {"repo_path": repository, **arguments}) for name, arguments in git],
    }


def servers(folder: Path) -> dict[str, Any]:
    """The installed servers, on data of their own under `folder`."""
    repository = folder / "repository"
    repository.mkdir()
    (repository / "apples.txt").write_text("Boskoop\n", encoding="utf-8")
    _git(repository, "init", "--quiet", "--initial-branch=main")
    for number, text in enumerate(["Boskoop\n", "Boskoop\nElstar\n"]):
        (repository / "apples.txt").write_text(text, encoding="utf-8")
        _git(repository, "add", "apples.txt")
        _git(repository, "commit", "--quiet", "--message", f"Apples {number}", day=number + 1)
    _git(repository, "config", "user.name", "Test Author")
    _git(repository, "config", "user.email", "author@example.com")
    (repository / "apples.txt").write_text("Boskoop\nElstar\nConference\n", encoding="utf-8")
    memory = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    return {
        "everything": node_entry("server-everything", "stdio", env={"name": "Buy milk", "due": "2026-12-01"}),
        "filesystem": node_entry("server-filesystem", str(folder)),
        "git": python_entry("mcp-server-git", "--repository", str(repository)),
        "memory": node_entry("server-memory", env=memory),
        "time": python_entry("mcp-server-time", "--local-timezone=UTC"),
    }


async def call(broker: Broker, server: ServerEntry, name: str, arguments: dict[str, Any]) -> str | None:
    """Calls one tool from a script. Gives what went wrong, or None."""
    tool = next(tool for tool in server.tools if tool.tool_name == name)
    code = (
        f'import * as server from "@codemode/servers/{server.server_id}";\n'
        f"await server[{json.dumps(tool.export_name)}]({json.dumps(arguments)});\n"
    )
    response = await broker.run(code)
    return None if response.ok else response.diagnostics[0].message


def typed(output: ToolOutput | None) -> bool:
    """Whether a type other than "anything" is known."""
    return output is not None and output.as_schema() not in (True, {})


def kinds(outputs: list[ToolOutput]) -> str:
    """How many are what, of those that were observed."""
    observed = [output for output in outputs if output.source == "observed"]
    counts = {
        "JSON text": sum(output.document is not None for output in observed),
        "structured": sum(output.schema is not None for output in observed),
        "text": sum(output.text for output in observed),
        "MCP result": sum(output.result for output in observed),
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def extract(text: str) -> str:
    """What a declaration says of the output, cut."""
    lines = text[text.index("): Promise<") + 3 :].rstrip().splitlines()
    cut = [*lines[:MAX_EXTRACT_LINES], "…"] if len(lines) > MAX_EXTRACT_LINES else lines
    return "\n".join(["```ts", *cut, "```"])


async def main() -> None:
    """Prints the table, and the extracts."""
    rows: list[str] = []
    extracts: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = {"mcpServers": servers(folder), "cellblock": {"state_dir": str(folder / "state")}}
        async with Broker(parse_settings(raw)) as broker:
            await broker.settled()
            for server_name, planned in calls(str(folder / "repository")).items():
                server = find_server(broker.catalog, server_name)
                for tool, arguments in planned:
                    failed = await call(broker, server, tool, arguments)
                    if failed is not None:
                        sys.stderr.write(f"{server_name}.{tool} failed: {failed[:200]}\n")
            await broker.learnt(LEARN_BOUND_SECONDS)
            for server in broker.catalog.servers.values():
                declared = sum(tool.output_schema is not None for tool in server.tools)
                known = [
                    output
                    for tool in server.tools
                    if typed(output := broker.output_of(server, tool)) and output
                ]
                how = "installed, called" if declared < len(server.tools) else "installed"
                observed = f" ({found})" if (found := kinds(known)) else ""
                rows.append(
                    f"| {server.server_id} {server.version} | {how} | {len(server.tools)} | {declared} "
                    f"| {len(known)}{observed} |"
                )
            for server_name, tool_name in EXTRACTS:
                server = find_server(broker.catalog, server_name)
                tool = next(tool for tool in server.tools if tool.tool_name == tool_name)
                extracts += [
                    f"\nThe output of `{server_name}.{tool_name}`, before and after one call:\n",
                    extract(declare_tool(tool, stated_output(server, tool))),
                    "",
                    extract(declare_tool(tool, broker.output_of(server, tool))),
                ]
    for server_name in RECORDED:
        catalog = json.loads((TESTS / "fixtures" / "catalogs" / f"{server_name}.json").read_text("utf-8"))
        tools = catalog["tools"]
        declared = sum(tool.get("outputSchema") is not None for tool in tools)
        version = catalog["server"]["version"]
        rows.append(f"| {server_name} {version} | recorded list | {len(tools)} | {declared} | not called |")
    sys.stdout.write(
        "| server | how | tools | declared | typed after a call of each (observed as) |\n|---|---|---|---|---|\n"
    )
    sys.stdout.write("\n".join([*rows, *extracts]) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
