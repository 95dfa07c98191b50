"""Clients finds where the MCP clients of this machine keep their servers, and reads those files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellblock.base.json import is_array, is_object
from cellblock.cli.config_file import ConfigFile, UnreadableFile
from cellblock.cli.importing.entries import Entry, entries_of
from cellblock.cli.install.clients import CLIENTS
from cellblock.config.file.formats import PROJECTS_KEY
from cellblock.config.file.positions import Path as KeyPath


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

    def data(self, file: Path) -> Mapping[str, Any]:
        """Returns what a file says, which need not be there; nothing, and a word in `unreadable`, of one that cannot be
        read."""
        try:
            return ConfigFile(file).data
        except UnreadableFile as error:
            self.unreadable[file] = error.why
            return {}


def find_servers(project: Path, clients: Sequence[str]) -> Search:
    """Reads the files of the clients that are there; `project` is the folder whose own files are looked at."""
    search = Search()
    for client in clients:
        known = CLIENTS[client]
        own = () if known.project is None else (project / known.project,)
        for file in dict.fromkeys((*own, *known.files(), *known.further())):
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            raw = search.data(file)
            if file not in search.unreadable:
                found = list(_servers(search, raw, client, file, project if file in own else None, project))
                search.files[file] = len(found)
                search.servers += found
    return search


# ---- inside ------------------------------------------------------------------------------------------


def _servers(
    search: Search, raw: Mapping[str, Any], client: str, file: Path, project: Path | None, wanted: Path
) -> Iterator[Found]:
    config = entries_of(client, raw, file, wanted)
    off = _switched_off(search, wanted) if client == "claude-code" and project is not None else ()
    for name, one in config.servers.items():
        of_project = wanted if one.path[0] == PROJECTS_KEY else project
        if name in off and is_object(one.entry):
            one.entry = {**one.entry, "disabled": True}
        yield Found(name, one.entry, client, file, one.path, config.inputs, of_project, one)


def _switched_off(search: Search, project: Path) -> list[str]:
    """Returns the servers of a project's `.mcp.json` that Claude Code has been told not to use."""
    said = [search.data(project / f".claude/settings{kind}.json") for kind in ("", ".local")]
    for file in CLIENTS["claude-code"].files():
        projects = search.data(file).get(PROJECTS_KEY)
        own = projects.get(str(project)) if is_object(projects) else None
        said.append(own if is_object(own) else {})
    lists = [one.get(key) for one in said for key in ("disabledMcpjsonServers", "disabledMcpServers")]
    return [str(name) for listed in lists if is_array(listed) for name in listed]
