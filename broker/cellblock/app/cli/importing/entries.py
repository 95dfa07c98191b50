"""The servers that MCP clients on this machine have, as entries of `mcpServers`, with what else is said of them there.

What an entry says of its server's tools is kept as keys; times become settings; what is left is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.config_file import ConfigFile
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.config.client_permissions import ClientPermissions, shown
from cellblock.app.config.edit import UnreadableFile
from cellblock.app.config.formats import (
    APPROVALS,
    ON_KEYS,
    PROJECTS_KEY,
    SERVERS_KEY,
    SILENT_KEYS,
    TOOL_KEYS,
    TRANSPORT_KEYS,
    URL_KEYS,
    Normal,
    normal,
)
from cellblock.app.config.references import literal, translated, variable
from cellblock.base.json import is_array, is_object, mapped
from cellblock.base.settings.problems import dotted
from cellblock.base.settings.server import SERVER_KEYS
from cellblock.base.settings.syntax import Path as KeyPath


@dataclass(slots=True)
class Found:
    """One server of one client: its entry, with our keys, and where that stands."""

    name: str
    entry: Any
    client: str
    file: Path
    path: KeyPath
    inputs: Mapping[str, Any]
    project: Path | None
    """Names the folder that the entry belongs to; None when it is the user's."""
    bounds: dict[str, int] = field(default_factory=dict[str, int])
    """Holds settings of `upstream`."""
    variables: list[str] = field(default_factory=list[str])
    """Names variables that the client keeps elsewhere."""
    restrictions: tuple[str, ...] = ()
    """Says what the client's other settings add to the entry."""
    left: list[str] = field(default_factory=list[str])
    """Names what is not carried over."""
    trouble: str = ""
    """Says why nothing is."""


@dataclass(slots=True)
class Search:
    """A search has the servers that were found, and the files that were read. `unreadable` maps files to why they
    cannot be used."""

    servers: list[Found] = field(default_factory=list[Found])
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    unreadable: dict[Path, str] = field(default_factory=dict[Path, str])


def find_servers(clients: Sequence[str], project: Path | None) -> Search:
    """Reads the files of the clients that are there, and those of a project's folder; None: only the user's own."""
    search = Search()
    place = project or Path.cwd()
    for client in clients:
        known = CLIENTS[client]
        own = () if known.project is None or project is None else (project / known.project,)
        found: list[Found] = []
        for file in dict.fromkeys((*own, *known.files(), *known.further())):
            if file in search.files or file in search.unreadable or not file.is_file():
                continue
            try:
                raw = ConfigFile(file).data
            except UnreadableFile as error:
                search.unreadable[file] = error.why
                continue
            read = _own if client in _READERS else _common
            here = list(read(client, raw, file, project if file in own else None, place))
            search.files[file] = len(here)
            found += here
        if found:
            permissions = ClientPermissions(client, place)
            for one in found:
                _restrict(one, found, permissions)
            search.servers += found
            search.unreadable |= permissions.unreadable
    return search


# ---- inside ------------------------------------------------------------------------------------------


def _restrict(one: Found, found: Sequence[Found], permissions: ClientPermissions) -> None:
    one.entry, one.restrictions = permissions.restricted(
        one.name, one.entry, of_project=one.project is not None
    )
    if _is_whole(one.entry):
        # A client that merges its files has it say something of this server.
        for other in found:
            if other is not one and other.name == one.name and not _is_whole(other.entry):
                where = shown(other.file, *map(str, other.path))
                one.trouble = one.trouble or f"{where} says something of it, too"


def _is_whole(entry: object) -> bool:
    return is_object(entry) and ("command" in entry or "url" in entry)


def _common(
    client: str, raw: Mapping[str, Any], file: Path, project: Path | None, wanted: Path
) -> Iterator[Found]:
    """Reads `mcpServers`, as most clients have them."""
    config = normal(raw, project=wanted if client == "claude-code" or PROJECTS_KEY in raw else None)
    for name, entry in config.entries().items():
        path = config.origins.get(name, (SERVERS_KEY, name))
        of_project = wanted if path[0] == PROJECTS_KEY else project
        made = mapped(entry, partial(translated, client, file=file))
        one = Found(name, made, client, file, path, config.inputs, of_project)
        if is_object(entry):
            _take_trouble(one, config, path)
            known = {*SERVER_KEYS, *URL_KEYS, *TRANSPORT_KEYS, *TOOL_KEYS, *ON_KEYS, *APPROVALS}
            if client in ("claude-code", "gemini") and _take_bound(
                one, entry, "timeout", "call_timeout_ms", 1
            ):
                known.add("timeout")
            _leave(one, entry, known)
        yield one


def _own(
    client: str, raw: Mapping[str, Any], file: Path, project: Path | None, _wanted: Path
) -> Iterator[Found]:
    """Reads the files of clients with forms of their own."""
    path = CLIENTS[client].key(raw)[:-1]
    below: Any = raw
    for key in path:
        below = _object(below).get(key)
    for name, entry in _object(below).items():
        if not is_object(entry) or (client == "goose" and entry.get("type") in _GOOSE_ITSELF):
            continue
        one = Found(name, {}, client, file, (*path, name), {}, project)
        _READERS[client](one, entry)
        config = normal({SERVERS_KEY: {name: one.entry}})
        one.entry = config.entries()[name]
        _take_trouble(one, config, (SERVERS_KEY, name))
        yield one


def _take_trouble(one: Found, config: Normal, path: KeyPath) -> None:
    for problem in reversed(config.problems):
        if problem.path[: len(path)] == path:
            one.trouble = f"{dotted(problem.path[len(path) :])}: {problem.message}"


def _codex(one: Found, entry: Mapping[str, Any]) -> None:
    given = mapped(entry, literal)
    one.entry = _kept(given, *_CODEX_KEYS)
    headers = {**_object(given.get("http_headers"))}
    headers |= {header: variable(name) for header, name in _object(given.get("env_http_headers")).items()}
    if isinstance(token := given.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer {variable(token)}"
    if headers:
        one.entry["headers"] = headers
    passed = [item.get("name") if is_object(item) else item for item in _array(given.get("env_vars"))]
    if passed:
        # Codex passes those on that are set.
        variables = {str(name): variable(name, ":-") for name in passed}
        one.entry["env"] = variables | _object(given.get("env"))
    _take_bound(one, entry, "startup_timeout_ms", "connect_timeout_ms", 1)
    _take_bound(one, entry, "startup_timeout_sec", "connect_timeout_ms", 1000)
    _take_bound(one, entry, "tool_timeout_sec", "call_timeout_ms", 1000)
    _leave(one, entry, {*_CODEX_KEYS, *_CODEX_READ})


_CODEX_KEYS: Final = (
    *("command", "args", "env", "cwd", "url", "enabled", "enabled_tools", "disabled_tools"),
    *APPROVALS,
)
_CODEX_READ: Final = (
    *("http_headers", "env_http_headers", "bearer_token_env_var", "env_vars"),
    *("startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec"),
)


def _zed(one: Found, entry: Mapping[str, Any]) -> None:
    # Older files have the program in an object of its own.
    inner = entry.get("command")
    given = mapped({**entry, **_object(inner)} if is_object(inner) else entry, literal)
    if is_object(inner):
        given["command"] = given.get("path")
    known = ("command", "args", "env", "cwd", "url", "headers", "enabled")
    one.entry = _kept(given, *known)
    if "command" not in given and "url" not in given:
        one.trouble = "an extension of Zed starts it"
    seconds = given.get("timeout")
    # Milliseconds in older versions.
    small = isinstance(seconds, int) and seconds < 1000
    _take_bound(one, given, "timeout", "call_timeout_ms", 1000 if small else 1)
    _leave(one, given, {*known, "path", "timeout"})


def _opencode(one: Found, entry: Mapping[str, Any]) -> None:
    given = mapped(entry, partial(translated, "opencode", file=one.file))
    known = ("cwd", "url", "headers", "enabled", "disabled")
    one.entry = _kept(given, *known)
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
    _leave(one, entry, {*known, "command", "environment", "timeout"})


_GOOSE_ITSELF: Final = ("builtin", "platform")
"""Names the types of goose's own servers, which run in its process."""


def _goose(one: Found, entry: Mapping[str, Any]) -> None:
    kind = entry.get("type")
    if kind not in ("stdio", "streamable_http", "sse"):
        one.trouble = f"only goose itself runs the type {kind}"
        return
    given = mapped(entry, literal if kind == "stdio" else partial(translated, "goose", file=one.file))
    known = ("args", "headers", "cwd", "enabled")
    one.entry = _kept(given, *known)
    if given.get("available_tools"):
        # An empty list is every tool there.
        one.entry["available_tools"] = given["available_tools"]
    if kind == "stdio":
        one.entry["command"] = given.get("cmd")
        variables = {str(name): variable(name) for name in _array(entry.get("env_keys"))}
        one.variables = [*variables]
        one.entry["env"] = variables | _object(given.get("envs"))
    else:
        one.entry |= {"url": given.get("uri"), "type": "sse" if kind == "sse" else "http"}
    _take_bound(one, entry, "timeout", "call_timeout_ms", 1000)
    _leave(one, entry, {*known, "cmd", "envs", "env_keys", "uri", "timeout", "available_tools"})


_READERS: Final[Mapping[str, Callable[[Found, Mapping[str, Any]], None]]] = {
    "codex": _codex,
    "zed": _zed,
    "opencode": _opencode,
    "goose": _goose,
}


def _take_bound(one: Found, given: Mapping[str, Any], key: str, setting: str, factor: int) -> bool:
    """Takes a time over as a setting, in milliseconds."""
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return False
    one.bounds[setting] = max(1, round(value * factor))
    return True


def _leave(one: Found, given: Mapping[str, Any], known: set[str]) -> None:
    """Names the keys that are not carried over and say something."""
    silent = known | SILENT_KEYS | {"type"}
    one.left += [key for key, value in given.items() if key not in silent and key[:1].isalpha() and value]


def _kept(given: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given and given[key] is not None}


def _object(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _array(value: Any) -> list[Any]:
    return value if is_array(value) else []
