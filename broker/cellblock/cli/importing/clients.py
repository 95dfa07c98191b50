"""Clients finds where the MCP clients of this machine keep their servers, and reads those files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_object
from cellblock.config.file.formats import PROJECTS_KEY, SERVERS_KEY, normal
from cellblock.config.file.positions import Path as KeyPath
from cellblock.config.file.syntax import SyntaxFault, parse

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bounds a client's file: that of Claude Code also keeps histories."""

TITLES: Final = {
    "claude-code": "Claude Code",
    "claude-desktop": "Claude Desktop",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "windsurf": "Windsurf",
}
"""Names the clients, by the names that `--from` takes, in the order in which their servers go before others'."""


@dataclass(frozen=True, slots=True)
class Found:
    """Found is one server of one client: its entry as `mcpServers` has it, and where that stands."""

    name: str
    entry: object
    client: str
    file: Path
    path: KeyPath
    inputs: Mapping[str, Any]
    project: Path | None
    """Names the folder that the entry belongs to; None when it is the user's."""


@dataclass(slots=True)
class Search:
    """A search has what was found. `unreadable` maps files to why they cannot be used."""

    servers: list[Found] = field(default_factory=list[Found])
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    unreadable: dict[Path, str] = field(default_factory=dict[Path, str])


def find_servers(project: Path, clients: Sequence[str]) -> Search:
    """Reads the files of the clients that are there; `project` is the folder whose own files are looked at."""
    search = Search()
    for client in clients:
        for kind, name in _FILES[client]:
            file = (project if kind == _PROJECT else _folder(kind)) / name
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            try:
                raw = _read(file)
            except (OSError, TypeError, ValueError) as error:
                search.unreadable[file] = _why(error)
                continue
            found = list(_servers(raw, client, file, project if kind == _PROJECT else None, project))
            search.files[file] = len(found)
            search.servers += found
    return search


def settings_folder() -> Path:
    """Returns the folder in which programs with windows keep their settings."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


# ---- inside ------------------------------------------------------------------------------------------


_PROJECT, _HOME, _SETTINGS, _CLAUDE = "project", "home", "settings", "claude"

_FILES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "claude-code": ((_PROJECT, ".mcp.json"), (_CLAUDE, ".claude.json")),
    "claude-desktop": ((_SETTINGS, "Claude/claude_desktop_config.json"),),
    "cursor": ((_PROJECT, ".cursor/mcp.json"), (_HOME, ".cursor/mcp.json")),
    "vscode": (
        (_PROJECT, ".vscode/mcp.json"),
        *(
            (_SETTINGS, f"{product}/User/{name}.json")
            for product in ("Code", "Code - Insiders", "VSCodium")
            for name in ("mcp", "settings")
        ),
    ),
    "windsurf": ((_HOME, ".codeium/windsurf/mcp_config.json"),),
}
"""Maps each client to its files, and the folders that they are in."""


def _folder(kind: str) -> Path:
    if kind == _CLAUDE:
        return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home())
    return Path.home() if kind == _HOME else settings_folder()


def _read(file: Path) -> Mapping[str, Any]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is over {MAX_FILE_BYTES} bytes")
    try:
        raw: object = parse(file.read_text(encoding="utf-8-sig") or "{}", toml=False)
    except SyntaxFault as error:
        raise ValueError(
            f"line {error.position.line}, column {error.position.column}: {error.message}"
        ) from None
    if not is_object(raw):
        raise TypeError("it holds no object")
    return raw


def _servers(
    raw: Mapping[str, Any], client: str, file: Path, project: Path | None, wanted: Path
) -> Iterator[Found]:
    config = normal(raw, project=wanted if client == "claude-code" else None)
    for name, entry in config.entries().items():
        path = config.origins.get(name, (SERVERS_KEY, name))
        of_project = wanted if path[0] == PROJECTS_KEY else project
        yield Found(name, entry, client, file, path, config.inputs, of_project)


def _why(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) else error) or type(error).__name__
