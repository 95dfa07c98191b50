"""Clients finds where the MCP clients of this machine keep their servers, and reads those files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellblock.app.cli.config_file import ConfigFile, UnreadableFile
from cellblock.app.cli.importing.entries import Entry, entries_of
from cellblock.app.cli.install.clients import CLIENTS
from cellblock.app.config.client_permissions import ClientPermissions, shown
from cellblock.app.config.formats import PROJECTS_KEY
from cellblock.base.json import is_object
from cellblock.base.settings.positions import Path as KeyPath


@dataclass(slots=True)
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
    """Holds the parts of the client's entry that were carried over, and those that were not."""


@dataclass(slots=True)
class Search:
    """A search has the servers that were found, and the files that were read. `unreadable` maps files to why they
    cannot be used."""

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
        found: list[Found] = []
        for file in dict.fromkeys((*own, *known.files(), *known.further())):
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            raw = search.data(file)
            if file not in search.unreadable:
                here = list(_servers(raw, client, file, project if file in own else None, project))
                search.files[file] = len(here)
                found += here
        if found:
            permissions = ClientPermissions(client, project)
            for one in found:
                _restrict(one, found, permissions)
            search.servers += found
            search.unreadable |= permissions.unreadable
    return search


# ---- inside ------------------------------------------------------------------------------------------


def _servers(
    raw: Mapping[str, Any], client: str, file: Path, project: Path | None, wanted: Path
) -> Iterator[Found]:
    config = entries_of(client, raw, file, wanted)
    for name, one in config.servers.items():
        of_project = wanted if one.path[0] == PROJECTS_KEY else project
        yield Found(name, one.entry, client, file, one.path, config.inputs, of_project, one)


def _restrict(one: Found, found: Sequence[Found], permissions: ClientPermissions) -> None:
    made = permissions.restricted(one.name, one.entry, of_project=one.project is not None)
    one.entry, one.conversion.restrictions = made.entry, made.told
    if _is_whole(one.entry):
        # A client that merges its files has it say something of this server.
        for other in found:
            if other is not one and other.name == one.name and not _is_whole(other.entry):
                where = shown(other.file, *map(str, other.path))
                one.conversion.trouble = one.conversion.trouble or f"{where} says something of it, too"


def _is_whole(entry: object) -> bool:
    return is_object(entry) and ("command" in entry or "url" in entry)
