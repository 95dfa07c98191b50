#!/usr/bin/env python3
"""Regenerate tests/fixtures/{catalogs,measured_catalogs}/*.json: the `tools/list` answers of public MCP servers.

Each server is installed from its registry at the pinned version (install scripts off), started
over stdio with dummy credentials, asked for its tools, and stopped. Where the kernel allows it the
server runs in an empty network namespace, so a dump can neither leak nor depend on a network.

    python scripts/dump_catalogs.py                     # all of them
    python scripts/dump_catalogs.py @playwright/mcp     # one, by package name

Needs npm and node for the npm packages. Exit status 1 if any server failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

Shape = Callable[[dict[str, Any]], dict[str, Any]]

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """One server to dump. `executable` is the console script; `{tmp}` in `args` and `env` is a folder with `files`."""

    name: str
    registry: str
    package: str
    version: str
    executable: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    also: tuple[str, ...] = ()  # further requirements that this version needs beside it
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: str = "catalogs"  # of tests/fixtures; `catalogs` is also what search is measured with


SOURCES = (
    Source(
        "everything",
        "npm",
        "@modelcontextprotocol/server-everything",
        "2026.8.31",
        "mcp-server-everything",
        ("stdio",),
    ),
    Source(
        "filesystem",
        "npm",
        "@modelcontextprotocol/server-filesystem",
        "2026.8.31",
        "mcp-server-filesystem",
        ("{tmp}",),
    ),
    Source("memory", "npm", "@modelcontextprotocol/server-memory", "2026.8.31", "mcp-server-memory"),
    Source(
        "sequential-thinking",
        "npm",
        "@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        "mcp-server-sequential-thinking",
    ),
    Source(
        "github",
        "npm",
        "@modelcontextprotocol/server-github",
        "2025.4.8",
        "mcp-server-github",
        env={"GITHUB_PERSONAL_ACCESS_TOKEN": "dummy"},
    ),
    Source(
        "slack",
        "npm",
        "@modelcontextprotocol/server-slack",
        "2025.4.25",
        "mcp-server-slack",
        env={"SLACK_BOT_TOKEN": "dummy", "SLACK_TEAM_ID": "dummy"},
    ),
    Source(
        "google-maps",
        "npm",
        "@modelcontextprotocol/server-google-maps",
        "0.6.2",
        "mcp-server-google-maps",
        env={"GOOGLE_MAPS_API_KEY": "dummy"},
    ),
    Source("playwright", "npm", "@playwright/mcp", "0.0.83", "playwright-mcp"),
    Source(
        "chrome-devtools",
        "npm",
        "chrome-devtools-mcp",
        "1.11.0",
        "chrome-devtools-mcp",
        ("--no-usage-statistics",),
    ),
    Source(
        "notion",
        "npm",
        "@notionhq/notion-mcp-server",
        "2.5.2",
        "notion-mcp-server",
        env={"NOTION_TOKEN": "dummy"},
    ),
    Source("context7", "npm", "@upstash/context7-mcp", "4.1.1", "context7-mcp"),
    Source(
        "supabase",
        "npm",
        "@supabase/mcp-server-supabase",
        "0.13.0",
        "mcp-server-supabase",
        # Without `docs`: that group fetches its own description from the network.
        (
            "--access-token",
            "dummy",
            "--features=account,database,debugging,development,functions,branching,storage",
        ),
    ),
    Source("time", "pypi", "mcp-server-time", "2026.10.19", "mcp-server-time", ("--local-timezone", "UTC")),
    Source("git", "pypi", "mcp-server-git", "2026.10.19", "mcp-server-git"),
    Source("fetch", "pypi", "mcp-server-fetch", "2026.10.24", "mcp-server-fetch"),
    # With the sample database that DBHub brings along. It needs Node 22.
    Source(
        "dbhub",
        "npm",
        "@bytebase/dbhub",
        "1.4.0",
        "dbhub",
        ("--transport", "stdio", "--demo"),
        folder="measured_catalogs",
    ),
    Source(
        "taskmanager",
        "npm",
        "@kazuph/mcp-taskmanager",
        "1.1.1",
        "mcp-taskmanager",
        env={"TASK_MANAGER_FILE_PATH": "tasks.json"},
        folder="measured_catalogs",
    ),
    Source("sqlite", "pypi", "mcp-server-sqlite", "2025.4.25", "mcp-server-sqlite", also=("mcp<2",)),
)


def install(source: Source, folder: Path) -> Path:
    """Install one package into `folder/<name>`; the path of its executable. Raises CalledProcessError."""
    home = folder / source.name
    if source.registry == "npm":
        executable = home / "node_modules" / ".bin" / source.executable
        spec = f"{source.package}@{source.version}"
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        command = ["npm", "install", "--prefix", str(home), *flags, spec, *source.also]
    else:
        executable = home / "bin" / source.executable
        if not executable.exists():
            venv.create(home, with_pip=True)
        spec = f"{source.package}=={source.version}"
        command = [str(home / "bin" / "pip"), "install", "--quiet", spec, *source.also]
    home.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True)
    return executable


def no_network_prefix() -> list[str]:
    """The argv prefix that starts a command without any network, or nothing where that is impossible."""
    prefix = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is not None:
        trial = subprocess.run([*prefix, "true"], check=False, capture_output=True)
        if trial.returncode == 0:
            return prefix
    print("note: no network namespace here, the server keeps the network", file=sys.stderr)
    return []


async def dump(source: Source, executable: Path, scratch: Path) -> dict[str, Any]:
    """Start the server and return the fixture document. Raises TimeoutError or what the SDK raises."""
    args = [argument.replace("{tmp}", str(scratch)) for argument in source.args]
    command = [*no_network_prefix(), str(executable), *args]
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env={name: value.replace("{tmp}", str(scratch)) for name, value in source.env.items()} or None,
        cwd=scratch,
    )
    tools: list[dict[str, Any]] = []
    async with asyncio.timeout(START_TIMEOUT_S), Client(parameters) as client:
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                # exclude_unset, not exclude_none: a `"default": null` inside a schema is upstream's own text.
                raw = tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
                raw.pop("icons", None)  # data: URIs, large and of no use to any test
                tools.append(raw)
            cursor = page.next_cursor
            if cursor is None:
                break
        info = client.server_info
        server = {} if info is None else info.model_dump(mode="json", by_alias=True, exclude_unset=True)
        server.pop("icons", None)
        server["instructions"] = client.instructions
    text = json.dumps(tools)
    if str(scratch) in text or str(ROOT) in text:
        raise ValueError(f"{source.name}: a path of this machine is in the tool list")
    package = {"registry": source.registry, "name": source.package, "version": source.version}
    return {"server": server, "package": package, "tools": tools}


def main(sources: Sequence[Source], about: str, shape: Shape = lambda document: document) -> int:
    """Dump the servers named on the command line (default: all). Returns the exit status."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("packages", nargs="*", help="package names or fixture names; default all")
    parser.add_argument("--install-dir", type=Path, default=ROOT / ".servers" / "catalogs")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "fixtures")
    options = parser.parse_args()
    wanted: list[str] = options.packages
    known = {name for source in sources for name in (source.name, source.package)}
    if unknown := sorted(set(wanted) - known):
        parser.error(f"unknown: {', '.join(unknown)}")
    out: Path = options.out
    installs: Path = options.install_dir.resolve()
    failed = 0
    for source in sources:
        if wanted and source.name not in wanted and source.package not in wanted:
            continue
        try:
            executable = install(source, installs)
            scratch = installs / source.name / "scratch"
            scratch.mkdir(parents=True, exist_ok=True)
            for name, content in source.files.items():
                (scratch / name).write_text(content, encoding="utf-8")
            document = shape(asyncio.run(dump(source, executable, scratch)))
        except Exception as error:  # noqa: BLE001 - one broken server must not lose the others
            failed += 1
            print(f"{source.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        file = out / source.folder / f"{source.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"{source.name}: {len(document['tools'])} tools, {len(text.encode()) / 1024:.0f} KiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(SOURCES, __doc__ or ""))
