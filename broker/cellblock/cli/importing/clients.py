"""Where the MCP clients of this machine keep their servers, and what is in those files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from cellblock.config.file.formats import PROJECTS_KEY, SERVERS_KEY, normal
from cellblock.config.file.positions import Path as KeyPath
from cellblock.config.file.syntax import SyntaxFault, parse

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Of a client's file: that of Claude Code also keeps histories."""

TITLES: Final = {
    "claude-code": "Claude Code",
    "claude-desktop": "Claude Desktop",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "windsurf": "Windsurf",
}
"""The clients, by the names that `--from` takes, in the order in which their servers go before others'."""


@dataclass(frozen=True, slots=True)
class Found:
    """One server of one client: its entry as `mcpServers` has it, and where that stands."""

    name: str
    entry: object
    client: str
    file: Path
    path: KeyPath
    inputs: Mapping[str, Any]
    project: Path | None
    """The folder that the entry belongs to, or None when it is the user's."""


@dataclass(slots=True)
class Search:
    """What was found. `unreadable` maps files to why they cannot be used."""

    servers: list[Found] = field(default_factory=list[Found])
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    unreadable: dict[Path, str] = field(default_factory=dict[Path, str])


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of this user; `project` is the folder whose own files are looked at."""

    home: Path
    project: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    mac: bool = sys.platform == "darwin"

    def settings(self) -> Path:
        """Where programs with windows keep their settings."""
        if self.mac:
            return self.home / "Library" / "Application Support"
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")


def find_servers(places: Places, clients: list[str]) -> Search:
    """Reads the files of the clients that are there."""
    search = Search()
    for client in clients:
        for file, project in _FILES[client](places):
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            try:
                raw = _read(file)
            except (OSError, TypeError, ValueError) as error:
                search.unreadable[file] = _why(error)
                continue
            found = list(_servers(raw, client, file, project, places.project))
            search.files[file] = len(found)
            search.servers += found
    return search


# ---- inside ------------------------------------------------------------------------------------------

Files = Iterator[tuple[Path, Path | None]]


def _claude_code(places: Places) -> Files:
    yield places.project / ".mcp.json", places.project
    folder = places.environment.get("CLAUDE_CONFIG_DIR")
    yield (Path(folder) if folder else places.home) / ".claude.json", None


def _claude_desktop(places: Places) -> Files:
    yield places.settings() / "Claude" / "claude_desktop_config.json", None


def _cursor(places: Places) -> Files:
    yield places.project / ".cursor" / "mcp.json", places.project
    yield places.home / ".cursor" / "mcp.json", None


def _vscode(places: Places) -> Files:
    yield places.project / ".vscode" / "mcp.json", places.project
    for product in ("Code", "Code - Insiders", "VSCodium"):
        user = places.settings() / product / "User"
        yield user / "mcp.json", None
        yield user / "settings.json", None


def _windsurf(places: Places) -> Files:
    yield places.home / ".codeium" / "windsurf" / "mcp_config.json", None


_FILES: Final[Mapping[str, Callable[[Places], Files]]] = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "cursor": _cursor,
    "vscode": _vscode,
    "windsurf": _windsurf,
}


def _read(file: Path) -> Mapping[str, Any]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is over {MAX_FILE_BYTES} bytes")
    try:
        raw: object = parse(file.read_text(encoding="utf-8-sig") or "{}", toml=False)
    except SyntaxFault as error:
        raise ValueError(
            f"line {error.position.line}, column {error.position.column}: {error.message}"
        ) from None
    if not isinstance(raw, dict):
        raise TypeError("it holds no object")
    return cast("dict[str, Any]", raw)


def _servers(
    raw: Mapping[str, Any], client: str, file: Path, project: Path | None, wanted: Path
) -> Iterator[Found]:
    made = normal(raw, project=wanted if client == "claude-code" else None)
    for name, entry in made.entries().items():
        path = made.origins.get(name, (SERVERS_KEY, name))
        of_project = wanted if path[0] == PROJECTS_KEY else project
        yield Found(name, entry, client, file, path, made.inputs, of_project)


def _why(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) else error) or type(error).__name__
