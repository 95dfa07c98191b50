"""The MCP clients that are known: where each keeps its servers, and how one that runs Cellblock is written there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from cellblock.app.cli.streams import warn
from cellblock.app.config.client_permissions import CODES, claude_state, dot_config, settings_folder
from cellblock.app.config.edit import KeyPath
from cellblock.base.json import is_object

NAME: Final = "cellblock"
"""Names the server in a client's configuration."""

LONGEST_CALL_SECONDS: Final = 600
"""Bounds a call in clients that would otherwise give up before a script's own time limit."""

START_SECONDS: Final = 30
"""Bounds the start in clients that would otherwise give up while a daemon starts."""


class Launch(NamedTuple):
    """A launch is the program that a client starts, and its arguments."""

    command: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A client is one program that speaks MCP.

    `files` are those of the user, of which the first that exists is meant, else the first; `project` is its file in a
    project's folder; `servers` is the key that holds its servers; `program` the command that starts it.
    """

    title: str
    files: Callable[[], tuple[Path, ...]]
    project: str | None
    servers: KeyPath
    entry: Callable[[Launch], Mapping[str, Any]]
    next_step: str
    program: str | None = None
    further: Callable[[], tuple[Path, ...]] = lambda: ()
    """Gives files that may name servers, too."""

    def file(self, project: Path | None) -> Path | None:
        """Returns the file of the user, or that of a project; None where the client has none there."""
        if project is not None:
            return None if self.project is None else project / self.project
        files = self.files()
        return next((file for file in files if file.exists()), files[0])

    @property
    def detected(self) -> bool:
        """Says whether the client seems to be on this machine: by its program, its file, or that file's folder."""
        has_program = self.program is not None and shutil.which(self.program) is not None
        # `~` itself is there on every machine.
        return has_program or any(file.exists() or _is_own_folder(file.parent) for file in self.files())

    def key(self, data: Mapping[str, Any]) -> KeyPath:
        """Returns the keys to Cellblock's entry in a file with this data."""
        below = data.get(self.servers[0])
        servers = below.get("servers") if is_object(below) and self.servers == ("mcp",) else None
        # opencode 2 has a map of servers one level below; in opencode 1 that may be a server's name.
        nested = is_object(servers) and not servers.keys() & {"type", "enabled"}
        return (*self.servers, *(("servers",) if nested else ()), NAME)


def _is_own_folder(folder: Path) -> bool:
    return folder.is_dir() and folder not in (Path.home(), settings_folder())


def _in(folder: Callable[[], Path], *names: str) -> Callable[[], tuple[Path, ...]]:
    """Returns what gives files in a folder that is asked for when they are: the environment may name it."""
    return lambda: tuple(folder() / name for name in names)


def _below(variable: str, name: str, otherwise: str) -> Callable[[], tuple[Path, ...]]:
    """Returns what gives a file in the folder that a variable names, or else in one below the user's own."""
    return lambda: (Path(os.environ.get(variable) or Path.home() / otherwise) / name,)


def _plain(launch: Launch) -> dict[str, Any]:
    return {"command": launch.command, "args": list(launch.args)}


def _typed(launch: Launch) -> dict[str, Any]:
    return {"type": "stdio", **_plain(launch)}


def _codex(launch: Launch) -> dict[str, Any]:
    return {
        **_plain(launch),
        "startup_timeout_sec": START_SECONDS,
        "tool_timeout_sec": LONGEST_CALL_SECONDS,
    }


def _gemini(launch: Launch) -> dict[str, Any]:
    return {**_plain(launch), "timeout": LONGEST_CALL_SECONDS * 1000}


def _zed(launch: Launch) -> dict[str, Any]:
    return {"source": "custom", **_plain(launch), "env": {}}


def _opencode(launch: Launch) -> dict[str, Any]:
    return {
        "type": "local",
        "command": [launch.command, *launch.args],
        "enabled": True,
        "timeout": START_SECONDS * 1000,
    }


def _goose(launch: Launch) -> dict[str, Any]:
    return {
        "enabled": True,
        "type": "stdio",
        "name": NAME,
        "description": "Runs a script that calls the tools of MCP servers.",
        "cmd": launch.command,
        "args": list(launch.args),
        "envs": {},
        "timeout": LONGEST_CALL_SECONDS,
    }


CLIENTS: Final[Mapping[str, Client]] = {
    "claude-code": Client(
        "Claude Code",
        lambda: (claude_state(),),
        ".mcp.json",
        ("mcpServers",),
        _typed,
        "Start Claude Code anew; `/mcp` shows the server.",
        "claude",
    ),
    "claude-desktop": Client(
        "Claude Desktop",
        _in(settings_folder, "Claude/claude_desktop_config.json"),
        None,
        ("mcpServers",),
        _plain,
        "Quit Claude Desktop and open it again.",
    ),
    "cursor": Client(
        "Cursor",
        _in(Path.home, ".cursor/mcp.json"),
        ".cursor/mcp.json",
        ("mcpServers",),
        _plain,
        "Switch the server on in Cursor's settings, under MCP.",
        "cursor",
    ),
    "vscode": Client(
        "VS Code",
        _in(settings_folder, *(f"{code}/User/mcp.json" for code in CODES)),
        ".vscode/mcp.json",
        ("servers",),
        _typed,
        "Run `MCP: List Servers` in VS Code's command palette, and start it.",
        "code",
        _in(settings_folder, *(f"{code}/User/settings.json" for code in CODES)),
    ),
    "codex": Client(
        "Codex",
        _below("CODEX_HOME", "config.toml", ".codex"),
        ".codex/config.toml",
        ("mcp_servers",),
        _codex,
        "Start Codex anew; `/mcp` shows the server.",
        "codex",
    ),
    "gemini": Client(
        "Gemini CLI",
        _in(Path.home, ".gemini/settings.json"),
        ".gemini/settings.json",
        ("mcpServers",),
        _gemini,
        "Start Gemini CLI anew; `/mcp` shows the server.",
        "gemini",
    ),
    "windsurf": Client(
        "Windsurf",
        _in(Path.home, ".codeium/windsurf/mcp_config.json"),
        None,
        ("mcpServers",),
        _plain,
        "Press Refresh in Windsurf's list of MCP servers.",
        "windsurf",
    ),
    "zed": Client(
        "Zed",
        _in(dot_config, "zed/settings.json"),
        ".zed/settings.json",
        ("context_servers",),
        _zed,
        "Zed takes it over at once; its agent panel shows the server.",
        "zed",
    ),
    "opencode": Client(
        "opencode",
        _in(dot_config, "opencode/opencode.json", "opencode/opencode.jsonc"),
        "opencode.json",
        ("mcp",),
        _opencode,
        "Start opencode anew; `opencode mcp list` shows the server.",
        "opencode",
    ),
    "goose": Client(
        "goose",
        _in(dot_config, "goose/config.yaml"),
        None,
        ("extensions",),
        _goose,
        "Start goose anew.",
        "goose",
    ),
}
"""Maps the names that the command line takes to the clients; the formats are in docs/clients.md, with their sources."""


_RUNNERS: Final = (
    (re.compile(r"/(?:archive|environments|builds)-v\d+/"), ("uvx", "cellblock")),
    (re.compile(r"/pipx/\.cache/|/\.cache/pipx/"), ("pipx", "run", "cellblock")),
)
"""Matches where programs are kept that were only to run once, and what runs them again."""


def own_command() -> tuple[str, ...]:
    """Returns an absolute path and first arguments: clients with windows do not have a shell's PATH."""
    for place, (runner, *words) in _RUNNERS:
        if place.search(f"{sys.prefix}/"):
            if found := shutil.which(runner):
                return (found, *words)
            warn(
                f"this program is in a cache, {sys.prefix}, and no {runner} is found to run it again: install it"
            )
    started = shutil.which(sys.argv[0]) if sys.argv[0] else None
    if started is not None and os.path.basename(started) == "cellblock":  # noqa: PTH119
        # Not where a link leads: the link stays when a new version is installed.
        return (os.path.abspath(started),)  # noqa: PTH100
    # Nothing of the working directory, which may be anybody's repository.
    return (sys.executable, "-P", "-m", "cellblock.cli")
