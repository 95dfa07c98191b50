"""The servers that MCP clients on this machine have, as entries of `mcpServers`, with what else is said of them there.

What an entry says of its server's tools is kept as keys; times become settings; what is left is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.config_file import ConfigFile, UnreadableFile
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.config.client_permissions import ClientPermissions, shown
from cellblock.app.config.formats import (
    APPROVALS,
    ON_KEYS,
    PROJECTS_KEY,
    SERVERS_KEY,
    SILENT_KEYS,
    TOOL_KEYS,
    URL_KEYS,
    normal,
)
from cellblock.base.json import is_array, is_object, mapped
from cellblock.base.settings.positions import Path as KeyPath
from cellblock.base.settings.problems import dotted
from cellblock.base.settings.server import SERVER_KEYS

_DOLLAR: Final = re.compile(r"\$(?=\{[^{}]*\})")
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(:-[^{}]*)?\}|([A-Za-z_]\w*))")
_BRACED: Final = re.compile(r"\{(env|file):([^{}]+)\}")


@dataclass(slots=True)
class Entry:
    """An entry is what a client's file says of one server.

    `entry` has our keys, `bounds` are settings of `upstream`, `variables` those that the client keeps
    elsewhere, `restrictions` says what its client's other settings add to it, `left` names what is not carried over,
    and `trouble` says why nothing is.
    """

    entry: Any
    path: KeyPath
    bounds: dict[str, int] = field(default_factory=dict[str, int])
    variables: list[str] = field(default_factory=list[str])
    restrictions: tuple[str, ...] = ()
    left: list[str] = field(default_factory=list[str])
    trouble: str = ""


@dataclass(slots=True)
class Entries:
    """Holds all servers of one file, by name, and VS Code's inputs."""

    servers: dict[str, Entry] = field(default_factory=dict[str, Entry])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def entries_of(client: str, raw: Mapping[str, Any], file: Path, project: Path) -> Entries:
    """Returns the servers that a client's file names.

    Args:
        client: The client, by its name on the command line.
        raw: What the file says.
        file: The file.
        project: The folder whose own servers Claude Code's file may have.
    """
    reader = _READERS.get(client)
    if reader is None:
        return _common(client, raw, project)
    path = CLIENTS[client].key(raw)[:-1]
    below: Any = raw
    for key in path:
        below = _object(below).get(key)
    read = {name: reader(name, entry, raw, file) for name, entry in _objects(below)}
    found = {name: one for name, one in read.items() if one is not None}
    made = normal({SERVERS_KEY: {name: one.entry for name, one in found.items()}})
    for name, one in found.items():
        one.path = (*path, name)
        one.entry = made.entries()[name]
        troubles = [problem for problem in made.problems if problem.path[1:2] == (name,)]
        if troubles:
            one.trouble = f"{dotted(troubles[0].path[2:])}: {troubles[0].message}"
    return Entries(found)


# ---- inside ------------------------------------------------------------------------------------------


def _common(client: str, raw: Mapping[str, Any], project: Path) -> Entries:
    """Reads `mcpServers`, as most clients have them."""
    own = client == "claude-code"
    config = normal(raw, project=project if own or PROJECTS_KEY in raw else None)
    found = Entries(inputs=config.inputs)
    # Gemini puts variables in without braces, too.
    change = _with_variables if client == "gemini" else _as_it_is
    for name, entry in config.entries().items():
        path = config.origins.get(name, (SERVERS_KEY, name))
        one = found.servers[name] = Entry(mapped(entry, change), path)
        if not is_object(entry):
            continue
        troubles = [problem for problem in config.problems if problem.path[: len(path)] == path]
        if troubles:
            one.trouble = f"{dotted(troubles[0].path[len(path) :])}: {troubles[0].message}"
        known = {*SERVER_KEYS, *URL_KEYS, *TOOL_KEYS, *ON_KEYS, *APPROVALS}
        if client in ("claude-code", "gemini") and _take_bound(one, entry, "timeout", "call_timeout_ms", 1):
            known.add("timeout")
        _leave(one, entry, known)
    return found


def _codex(_name: str, entry: Mapping[str, Any], _raw: Mapping[str, Any], _file: Path) -> Entry:
    given = mapped(entry, _literal)
    one = Entry(_kept(given, *_CODEX_KEYS), ())
    headers = {**_object(given.get("http_headers"))}
    headers |= {
        header: f"${{env:{variable}}}" for header, variable in _object(given.get("env_http_headers")).items()
    }
    if isinstance(token := given.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
    if headers:
        one.entry["headers"] = headers
    passed = [item.get("name") if is_object(item) else item for item in _array(given.get("env_vars"))]
    if passed:
        # Codex passes those on that are set.
        variables = {str(variable): f"${{{variable}:-}}" for variable in passed}
        one.entry["env"] = variables | _object(given.get("env"))
    _take_bound(one, entry, "startup_timeout_ms", "connect_timeout_ms", 1)
    _take_bound(one, entry, "startup_timeout_sec", "connect_timeout_ms", 1000)
    _take_bound(one, entry, "tool_timeout_sec", "call_timeout_ms", 1000)
    read = ("http_headers", "env_http_headers", "bearer_token_env_var", "env_vars")
    times = ("startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec")
    _leave(one, entry, {*_CODEX_KEYS, *read, *times})
    return one


_CODEX_KEYS: Final = (
    *("command", "args", "env", "cwd", "url", "enabled", "enabled_tools", "disabled_tools"),
    *APPROVALS,
)


def _zed(_name: str, entry: Mapping[str, Any], _raw: Mapping[str, Any], _file: Path) -> Entry:
    # Older files have the program in an object of its own.
    inner = entry.get("command")
    given = mapped({**entry, **_object(inner)} if is_object(inner) else entry, _literal)
    if is_object(inner):
        given["command"] = given.get("path")
    one = Entry(_kept(given, "command", "args", "env", "cwd", "url", "headers", "enabled"), ())
    if "command" not in given and "url" not in given:
        one.trouble = "an extension of Zed starts it"
    seconds = given.get("timeout")
    # Milliseconds in older versions.
    small = isinstance(seconds, int) and seconds < 1000
    _take_bound(one, given, "timeout", "call_timeout_ms", 1000 if small else 1)
    known = {"command", "path", "args", "env", "cwd", "url", "headers", "enabled", "timeout"}
    _leave(one, given, known)
    return one


def _opencode(_name: str, entry: Mapping[str, Any], _raw: Mapping[str, Any], file: Path) -> Entry:
    given = mapped(entry, lambda text: _with_braced(text, file))
    one = Entry(_kept(given, "cwd", "url", "headers", "enabled", "disabled"), ())
    command = given.get("command")
    if is_array(command) and command:
        one.entry |= {"command": command[0], "args": command[1:]}
    elif command is not None:
        one.entry["command"] = command
    if is_object(given.get("environment")):
        one.entry["env"] = given["environment"]
    timeout = entry.get("timeout")
    if is_object(timeout):
        _take_bound(one, timeout, "startup", "connect_timeout_ms", 1)
        _take_bound(one, timeout, "request", "call_timeout_ms", 1)
    else:
        _take_bound(one, entry, "timeout", "connect_timeout_ms", 1)
    known = {"command", "environment", "cwd", "url", "headers", "enabled", "disabled", "timeout"}
    _leave(one, entry, known)
    return one


def _goose(_name: str, entry: Mapping[str, Any], _raw: Mapping[str, Any], _file: Path) -> Entry | None:
    kind = entry.get("type")
    if kind in ("builtin", "platform"):
        return None  # goose's own, in its process
    one = Entry({}, ())
    if kind not in ("stdio", "streamable_http", "sse"):
        one.trouble = f"only goose itself runs the type {kind}"
        return one
    given = mapped(entry, _literal if kind == "stdio" else _with_variables)
    one.entry = _kept(given, "args", "headers", "cwd", "enabled")
    if given.get("available_tools"):
        # An empty list is every tool there.
        one.entry["available_tools"] = given["available_tools"]
    if kind == "stdio":
        one.entry["command"] = given.get("cmd")
        variables = {str(variable): f"${{env:{variable}}}" for variable in _array(entry.get("env_keys"))}
        one.variables = [*variables]
        one.entry["env"] = variables | _object(given.get("envs"))
    else:
        one.entry |= {"url": given.get("uri"), "type": "sse" if kind == "sse" else "http"}
    _take_bound(one, entry, "timeout", "call_timeout_ms", 1000)
    known = {
        "cmd",
        "args",
        "envs",
        "env_keys",
        "uri",
        "headers",
        "timeout",
        "enabled",
        "available_tools",
        "cwd",
    }
    _leave(one, entry, known)
    return one


_Reader = Callable[[str, Mapping[str, Any], Mapping[str, Any], Path], Entry | None]

_READERS: Final[Mapping[str, _Reader]] = {
    "codex": _codex,
    "zed": _zed,
    "opencode": _opencode,
    "goose": _goose,
}


def _take_bound(one: Entry, given: Mapping[str, Any], key: str, setting: str, factor: int) -> bool:
    """Takes a time over as a setting, in milliseconds."""
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return False
    one.bounds[setting] = max(1, round(value * factor))
    return True


def _leave(one: Entry, given: Mapping[str, Any], known: set[str]) -> None:
    """Names the keys that are not carried over and say something."""
    silent = known | SILENT_KEYS | {"type"}
    one.left += [key for key, value in given.items() if key not in silent and key[:1].isalpha() and value]


def _kept(given: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given and given[key] is not None}


def _objects(value: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(name, one) for name, one in _object(value).items() if is_object(one)]


def _object(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _array(value: Any) -> list[Any]:
    return value if is_array(value) else []


def _as_it_is(text: str) -> str:
    return text


def _literal(text: str) -> str:
    """Escapes what looks like a reference: these clients have none."""
    return _DOLLAR.sub("$$", text)


def _with_variables(text: str) -> str:
    """Writes `$NAME` and `${NAME}` as references."""
    return _VARIABLE.sub(lambda found: f"${{{found[1] or found[3]}{found[2] or ''}}}", text)


def _with_braced(text: str, file: Path) -> str:
    """Writes opencode's `{env:NAME}` and `{file:path}` as references; the paths are relative to its file."""

    def reference(found: re.Match[str]) -> str:
        if found[1] == "env":
            return f"${{env:{found[2].strip()}}}"
        return f"${{file:{file.parent / Path(found[2].strip()).expanduser()}}}"

    return _BRACED.sub(reference, _literal(text))


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
