"""Reads the formats of other MCP clients as one.

Claude Code and Desktop, Cursor and Windsurf keep `mcpServers`; VS Code keeps `servers` with `inputs`, in a file of
their own or under `mcp` of its settings; Claude Code also keeps servers of single projects in `~/.claude.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.config.file.positions import Path as KeyPath
from cellblock.config.file.problems import Problem, nearest

SERVERS_KEY: Final = "mcpServers"
SECTION_KEY: Final = "cellblock"
VSCODE_KEY: Final = "servers"
PROJECTS_KEY: Final = "projects"

NEAR_MISS: Final = 0.8
"""Similarity from which a key that other clients may well use is taken for a slip of the pen."""

URL_KEYS: Final = ("serverUrl", "httpUrl")
"""Names what Windsurf and Gemini call `url`."""


@dataclass(slots=True)
class Normal:
    """Holds a configuration in our own format. `origins` says where each server's entry stands in the file."""

    servers: object = None
    section: object = None
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])
    problems: list[Problem] = field(default_factory=list[Problem])

    def entries(self) -> dict[str, Any]:
        """Returns the servers' entries by name; none when they are no object."""
        return self.servers if is_object(self.servers) else {}

    def as_settings(self) -> dict[str, Any]:
        """Returns the data for `Settings.model_validate`."""
        both = {SERVERS_KEY: self.servers, SECTION_KEY: self.section}
        return {key: value for key, value in both.items() if value is not None}

    def path_in_file(self, path: KeyPath) -> KeyPath:
        """Returns where in the file something of `as_settings` stands."""
        if len(path) >= 2 and path[0] == SERVERS_KEY and path[1] in self.origins:
            return (*self.origins[path[1]], *path[2:])
        return path


def normal(raw: Mapping[str, Any], *, project: Path | None = None) -> Normal:
    """Returns a parsed file of any of the clients as one of ours; its servers for `project` go before others."""
    made = Normal(section=raw.get(SECTION_KEY), problems=misspelt_top_level(raw))
    groups: list[tuple[KeyPath, Any]] = []
    if SERVERS_KEY in raw:
        groups.append(((SERVERS_KEY,), raw[SERVERS_KEY]))
    if VSCODE_KEY in raw:
        groups.append(((VSCODE_KEY,), raw[VSCODE_KEY]))
        made.inputs |= _inputs(raw.get("inputs"))
    settings = raw.get("mcp")
    if is_object(settings) and VSCODE_KEY in settings:
        groups.append((("mcp", VSCODE_KEY), settings[VSCODE_KEY]))
        made.inputs |= _inputs(settings.get("inputs"))
    for path, servers in groups:
        _take(made, path, servers)
    if project is not None:
        for folder, servers in project_servers(raw).items():
            if Path(folder) == project:
                _take(made, (PROJECTS_KEY, folder, SERVERS_KEY), servers, instead=True)
    return made


def project_servers(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the servers of single projects in `~/.claude.json`, by the project's folder."""
    projects = raw.get(PROJECTS_KEY)
    found: dict[str, dict[str, Any]] = {}
    if is_object(projects):
        for folder, project in projects.items():
            servers = project.get(SERVERS_KEY) if is_object(project) else None
            if is_object(servers) and servers:
                found[folder] = servers
    return found


def misspelt_top_level(raw: Mapping[str, Any]) -> list[Problem]:
    """Keys that were meant to be ours. All others at the top level are other programs' own."""
    found: list[Problem] = []
    for key in raw:
        if key not in (SERVERS_KEY, SECTION_KEY, VSCODE_KEY):
            near = nearest(key, (SERVERS_KEY, SECTION_KEY), NEAR_MISS)
            if near is not None:
                found.append(Problem((key,), "unknown key", f"Did you mean {near}?", at_key=True))
    return found


def value_at(value: object, path: KeyPath) -> object:
    """Returns what stands in plain data at a path; None when nothing does."""
    for key in path:
        if is_object(value) and isinstance(key, str):
            value = value.get(key)
        elif is_array(value) and isinstance(key, int):
            value = value[key] if key < len(value) else None
        else:
            return None
    return value


# ---- inside ------------------------------------------------------------------------------------------


def _take(made: Normal, path: KeyPath, servers: Any, *, instead: bool = False) -> None:
    if not is_object(servers):
        # Said by the validation, which knows what it should be.
        if made.servers is None:
            made.servers = servers
        return
    into = made.servers = made.entries()
    for name, entry in servers.items():
        if name in into and not instead:
            hint = "Rename one of them."
            problem = Problem(
                (*path, name), f"a server of this name is under {made.origins[name][0]} too", hint
            )
            made.problems.append(problem)
            continue
        into[name] = _entry(entry)
        made.origins[name] = (*path, name)


def _entry(entry: Any) -> Any:
    if not is_object(entry) or "url" in entry or "command" in entry:
        return entry
    return {"url" if key in URL_KEYS else key: value for key, value in entry.items()}


def _inputs(raw: Any) -> dict[str, Any]:
    if not is_array(raw):
        return {}
    return {one["id"]: one for one in raw if is_object(one) and isinstance(one.get("id"), str)}
