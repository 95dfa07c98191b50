"""Clients finds where the MCP clients of this machine keep their servers, and reads those files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.cli.importing.entries import Entry, entries_of
from cellblock.cli.install.clients import CLIENTS
from cellblock.config.file.edit import EditFault, format_of, read
from cellblock.config.file.formats import PROJECTS_KEY
from cellblock.config.file.positions import Path as KeyPath
from cellblock.config.file.syntax import SyntaxFault

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bounds a client's file: that of Claude Code also keeps histories."""


@dataclass(frozen=True, slots=True)
class Found:
    """Holds one server of one client: its entry as `mcpServers` has it, and where that stands."""

    name: str
    entry: object
    client: str
    file: Path
    path: KeyPath
    inputs: Mapping[str, Any]
    project: Path | None
    """Names the folder that the entry belongs to; None when it is the user's."""
    conversion: Entry = field(default_factory=lambda: Entry({}, ()))
    """Holds what the file says of it beside the entry."""


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
        known = CLIENTS[client]
        own = () if known.project is None else (project / known.project,)
        for file in dict.fromkeys((*own, *known.files(), *known.further())):
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            try:
                raw = _read(file)
            except (OSError, TypeError, ValueError) as error:
                search.unreadable[file] = _why(error)
                continue
            found = list(_servers(raw, client, file, project if file in own else None, project))
            search.files[file] = len(found)
            search.servers += found
    return search


# ---- inside ------------------------------------------------------------------------------------------


def _read(file: Path) -> Mapping[str, Any]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is over {MAX_FILE_BYTES} bytes")
    try:
        raw: object = read(file.read_text(encoding="utf-8-sig"), format_of(file.name)) or {}
    except EditFault as error:
        raise ValueError(str(error)) from None
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
    config = entries_of(client, raw, file, wanted)
    off = _switched_off(wanted) if client == "claude-code" and project is not None else ()
    for name, one in config.servers.items():
        of_project = wanted if one.path[0] == PROJECTS_KEY else project
        if name in off and is_object(one.entry):
            one.entry = {**one.entry, "disabled": True}
        yield Found(name, one.entry, client, file, one.path, config.inputs, of_project, one)


def _switched_off(project: Path) -> list[str]:
    """Returns the servers of a project's `.mcp.json` that Claude Code has been told not to use."""
    names: list[str] = []
    for file in (project / ".claude/settings.json", project / ".claude/settings.local.json"):
        try:
            listed = _read(file).get("disabledMcpjsonServers")
        except (OSError, TypeError, ValueError):
            continue
        names += map(str, listed) if is_array(listed) else ()
    for file in CLIENTS["claude-code"].files():
        try:
            projects = _read(file).get(PROJECTS_KEY)
        except (OSError, TypeError, ValueError):
            continue
        own = projects.get(str(project)) if is_object(projects) else None
        for key in ("disabledMcpjsonServers", "disabledMcpServers"):
            listed = own.get(key) if is_object(own) else None
            names += map(str, listed) if is_array(listed) else ()
    return names


def _why(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) else error) or type(error).__name__
