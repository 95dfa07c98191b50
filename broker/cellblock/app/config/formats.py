"""Reads the formats of other MCP clients as one.

Claude Code and Desktop, Cursor and Windsurf keep `mcpServers`; VS Code keeps `servers` with `inputs`, in a file of
their own or under `mcp` of its settings; Claude Code also keeps servers of single projects in `~/.claude.json`.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import inside, is_array, is_object
from cellblock.base.settings.older import without_removed
from cellblock.base.settings.problems import SECTION_KEY, Problem, nearest
from cellblock.base.settings.syntax import Path as KeyPath

SERVERS_KEY: Final = "mcpServers"
VSCODE_KEY: Final = "servers"
PROJECTS_KEY: Final = "projects"

NEAR_MISS: Final = 0.8
"""Sets the similarity from which a key that other clients may well use is taken for a slip of the pen."""

URL_KEYS: Final = ("serverUrl", "httpUrl")
"""Names what Windsurf and Gemini call `url`."""

TOOL_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("includeTools", "enabled_tools", "available_tools"), "enabledTools"),
    **dict.fromkeys(("excludeTools", "disabled_tools"), "disabledTools"),
    "alwaysAllow": "autoApprove",
}
"""Maps what clients call their lists of tools to what we do: Gemini and Amp, Codex, goose, Roo Code; ours are the words
of Kiro and Cline. All mean the tools' own names; wildcards are Amp's."""

TRANSPORT_KEYS: Final = ("type", "transport", "transportType")
"""Names what clients call the transport; the last is Cline's."""

_TRANSPORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(("http", "streamablehttp", "streamable", "httpstream"), "http"),
    "sse": "sse",
}
"""Maps how clients spell the transports, in small letters alone, to our words."""

ON_KEYS: Final = ("enabled", "isActive")
"""Names what Codex, Zed, opencode and others write for the opposite of `disabled`."""

APPROVALS: Final = ("default_tools_approval_mode", "tools")
"""Names where Codex says which tools it asks about. A list under `tools` is Copilot's, of the only tools there are."""

_FREE: Final = ("auto", "approve")
_ASKING: Final = ("prompt", "writes")
"""Names Codex's modes that ask; `writes` does about tools that do not say that they only read, and here about all."""


@dataclass(slots=True)
class Normal:
    """Holds a configuration in our own format. `origins` says where each server's entry stands in the file."""

    servers: object = None
    section: object = None
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])
    renamed: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Maps a server's name and one of our keys to the key that stands for it in the file."""
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
            server, keys = path[1], path[2:]
            if keys and isinstance(keys[0], str):
                keys = (self.renamed.get((server, keys[0]), keys[0]), *keys[1:])
            return (*self.origins[path[1]], *keys)
        return path


def normal(raw: Mapping[str, Any], *, project: Path | None = None) -> Normal:
    """Returns a parsed file of any of the clients as one of ours; its servers for `project` go before others."""
    section, removed = without_removed(raw.get(SECTION_KEY), (SECTION_KEY,))
    made = Normal(section=section, problems=[*misspelt_top_level(raw), *removed])
    if SERVERS_KEY in raw:
        _take(made, (SERVERS_KEY,), raw[SERVERS_KEY])
    for above, settings in (((), raw), (("mcp",), raw.get("mcp"))):
        if is_object(settings) and VSCODE_KEY in settings:
            _take(made, (*above, VSCODE_KEY), settings[VSCODE_KEY])
            inputs = settings.get("inputs")
            made.inputs |= {
                one["id"]: one
                for one in (inputs if is_array(inputs) else ())
                if is_object(one) and isinstance(one.get("id"), str)
            }
    for folder, known in _of_project(raw, project).items():
        if is_object(servers := known.get(SERVERS_KEY)) and servers:
            _take(made, (PROJECTS_KEY, folder, SERVERS_KEY), servers, instead=True)
    for name in _switched_off(raw, made.entries(), project):
        entry = made.entries()[name]
        if is_object(entry):
            made.entries()[name] = {**entry, "disabled": True}
    return made


def misspelt_top_level(raw: Mapping[str, Any]) -> list[Problem]:
    """Finds keys that were meant to be ours. All others at the top level are other programs' own."""
    others = raw.keys() - {SERVERS_KEY, SECTION_KEY, VSCODE_KEY, *_GEMINI_LISTS}
    near = {key: nearest(key, (SERVERS_KEY, SECTION_KEY), NEAR_MISS) for key in raw if key in others}
    return [
        Problem((key,), "unknown key", f"Did you mean {meant}?", at_key=True)
        for key, meant in near.items()
        if meant is not None
    ]


def value_at(value: object, path: KeyPath) -> object:
    """Returns what stands in plain data at a path; None when nothing does."""
    with contextlib.suppress(LookupError):
        return reduce(inside, path, value)
    return None


# ---- inside ------------------------------------------------------------------------------------------


_GEMINI_LISTS: Final = ("allowMCPServers", "excludeMCPServers")


def _of_project(raw: Mapping[str, Any], project: Path | None) -> dict[str, dict[str, Any]]:
    """Returns what Claude Code keeps of a project in `~/.claude.json`, by its folder as written there."""
    projects = raw.get(PROJECTS_KEY)
    known = projects.items() if is_object(projects) else ()
    return {folder: one for folder, one in known if Path(folder) == project and is_object(one)}


def _switched_off(raw: Mapping[str, Any], names: Collection[str], project: Path | None) -> list[str]:
    """Returns the servers that a client's own file says elsewhere are not to be used: Gemini's `mcp` or its older keys,
    and what Claude Code keeps of a project."""
    settings = raw.get("mcp")
    gemini = settings if is_object(settings) else {}
    allowed = gemini.get("allowed", raw.get(_GEMINI_LISTS[0]))
    lists = [gemini.get("excluded"), raw.get(_GEMINI_LISTS[1])]
    lists += [known.get("disabledMcpServers") for known in _of_project(raw, project).values()]
    return [
        name
        for name in names
        if (is_array(allowed) and name not in allowed)
        or any(is_array(listed) and name in listed for listed in lists)
    ]


def _take(made: Normal, path: KeyPath, servers: Any, *, instead: bool = False) -> None:
    if not is_object(servers):
        # Said by the validation, which knows what it should be.
        if made.servers is None:
            made.servers = servers
        return
    into = made.servers = made.entries()
    for name, entry in servers.items():
        if name in into and not instead:
            message = f"a server of this name is under {made.origins[name][0]} too"
            made.problems.append(Problem((*path, name), message, "Rename one of them."))
            continue
        made.origins[name] = (*path, name)
        into[name] = _entry(made, name, entry)


def _entry(made: Normal, name: str, entry: Any) -> Any:
    """Returns an entry with our keys for those of other clients that we read."""
    if not is_object(entry):
        return entry
    has_transport = "url" in entry or "command" in entry
    written: dict[str, Any] = {}

    def put(key: str, value: Any, origin: str) -> None:
        if key in written:
            hint = f"Keep one of {made.renamed.get((name, key), key)} and {origin}."
            made.problems.append(
                Problem((*made.origins[name], origin), "this is said twice", hint, at_key=True)
            )
        written[key] = value
        if key != origin:
            made.renamed[name, key] = origin

    for key, value in entry.items():
        if key in URL_KEYS and not has_transport:
            put("url", value, key)
        elif key in TRANSPORT_KEYS and isinstance(value, str):
            said = _TRANSPORTS.get("".join(filter(str.isalpha, value.lower())))
            if key == "type":
                put("type", said or value, key)
            elif said is not None and "type" not in {*entry, *written}:
                put("type", said, key)
        elif key in TOOL_KEYS or key in TOOL_KEYS.values():
            if value is not None:
                put(TOOL_KEYS.get(key, key), value, key)
        elif key in ON_KEYS:
            if not isinstance(value, bool):
                made.problems.append(
                    Problem((*made.origins[name], key), "true or false is needed", "Correct it.")
                )
            elif not value:
                written["disabled"] = True
        elif key == "disabled":
            written[key] = value if written.get(key) is not True else True
        elif key == "tools" and is_array(value):
            put("enabledTools", value, key)
        elif key not in APPROVALS:
            written[key] = value
    _take_approvals(made, name, entry, written)
    return written


def _take_approvals(made: Normal, name: str, entry: Mapping[str, Any], written: dict[str, Any]) -> None:
    tools = entry.get("tools", {})
    if not is_object(tools) and not is_array(tools):
        path = (*made.origins[name], "tools")
        made.problems.append(Problem(path, "a list of tools is needed", "Use enabledTools.", at_key=True))
    modes: dict[str, Any] = {"*": entry.get(APPROVALS[0])}
    for tool, one in tools.items() if is_object(tools) else ():
        modes[tool] = one.get("approval_mode") if is_object(one) and one.keys() <= {"approval_mode"} else ""
    for tool, mode in modes.items():
        if mode not in (*_FREE, *_ASKING, None):
            path = (*made.origins[name], *(APPROVALS[:1] if tool == "*" else ("tools", tool)))
            made.problems.append(
                Problem(
                    path,
                    "this may restrict tools, and Cellblock does not know how",
                    "Write auto, approve, prompt or writes; or use askTools or disabledTools.",
                    at_key=True,
                )
            )
    asks_all = modes.pop("*") in _ASKING
    free = [tool for tool, mode in modes.items() if mode in _FREE]
    asked = [tool for tool, mode in modes.items() if mode in _ASKING]
    if asks_all and free:
        _add_names(written, "autoApprove", free)
    elif asks_all:
        asked = ["*"]
    if asked:
        _add_names(written, "askTools", asked)


def _add_names(written: dict[str, Any], key: str, names: Sequence[str]) -> None:
    """Adds names to a list of tools; what is no list is left for the validation to refuse."""
    before = written.get(key, [])
    if is_array(before):
        written[key] = [*before, *names]


SILENT_KEYS: Final = frozenset(
    [
        *("alwaysLoad", "autoStart", "bundled", "description", "gallery", "icon", "id", "logoUrl", "name"),
        *("note", "provider", "providerUrl", "registryUrl", "required", "scope", "source", "tags", "title"),
        *("trust", "version"),
    ]
)
"""Names the keys of other clients that change nothing of what a server may do, or how it is reached."""

FOREIGN_KEYS: Final = SILENT_KEYS | frozenset(
    [
        # Claude Code and Claude Desktop
        *("headersHelper", "oauth", "timeout"),
        # Cursor
        "auth",
        # VS Code and Copilot
        *("dev", "sandbox", "sandboxEnabled"),
        # Cline, Roo Code, Kilo Code, Kiro
        *("networkTimeout", "watchPaths"),
        # Gemini
        *("authProviderType", "extensionName", "targetAudience", "targetServiceAccount"),
        # Codex
        *("bearer_token_env_var", "env_http_headers", "env_vars", "http_headers", "oauth_resource", "scopes"),
        *("startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec"),
        # Others
        *("longRunning", "roots", "settings"),
    ]
)
"""Names keys that other clients put into an entry: none of them is a slip of the pen, however alike it is to one of
ours."""


def slips(entry: Mapping[str, Any], known: Sequence[str]) -> dict[str, str]:
    """Returns the keys of an entry that are near misses of known ones, each with the one that was probably meant."""
    meant = {key: _meant(key, known) for key in entry if not _is_other(key, known)}
    return {key: word for key, word in meant.items() if word is not None}


def places_of_slipped_transports(made: Normal, known: Sequence[str]) -> set[KeyPath]:
    """Returns the entries in the file that say how their server is reached, but for a slip of the pen."""
    return {
        made.origins[name]
        for name, entry in made.entries().items()
        if is_object(entry) and {"command", "url"} & {*slips(entry, known).values()}
    }


def slip_hint(meant: str) -> str:
    return f"Did you mean {meant}? Rename it, or take it out."


def entry_problems(made: Normal, known: Sequence[str]) -> Iterator[Problem]:
    """Yields what is wrong with the keys of the servers' entries, and with those that the entries stand under.

    A near miss of a known key is an error: what it was to say would be left unsaid. One that nobody is known to read is
    a warning: an editor may have added it since this version.
    """
    for name, entry in made.entries().items():
        origin = made.origins.get(name, (SERVERS_KEY, name))
        if not name.strip():
            yield Problem(origin, "a server has no name here", "Give it one.", at_key=True)
        if not is_object(entry):
            continue
        wrong = slips(entry, known)
        if (words := _shell_words(entry)) is not None:
            hint = f'Write "command": {json.dumps(words[0])}, "args": {json.dumps(words[1:])}.'
            message = "there is no such program: arguments go into args, and no shell reads this"
            yield Problem((*origin, "command"), message, hint, "warning")
        for key in entry:
            path = (*origin, key)
            if key in wrong:
                yield Problem(path, "unknown key", slip_hint(wrong[key]), at_key=True)
            elif key == "sandboxEnabled" and entry[key]:
                message, hint = "this sandbox of the server is not put up", "Start it in one of your own."
                yield Problem(path, message, hint, "warning", at_key=True)
            elif not _is_other(key, known):
                hint = f"Keys here: {', '.join(known)}. Notes begin with _ or //."
                yield Problem(path, "unknown key", hint, "warning", at_key=True)


def _shell_words(entry: Mapping[str, Any]) -> list[str] | None:
    """Returns the words of a `command` that is a whole line for a shell, and no program's name with blanks in it."""
    command = entry.get("command")
    if not isinstance(command, str) or " " not in command.strip() or shutil.which(command) is not None:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    args = entry.get("args")
    return [*words, *map(str, args)] if is_array(args) else words


def _is_other(key: str, known: Sequence[str]) -> bool:
    """Says whether there is nothing to say of a key: it is one of ours or of another client, or stands for a note."""
    # `_args`, `//args` and `$comment` are how people write notes, and take keys out, where there are no comments.
    ours = {*known, *URL_KEYS, *TRANSPORT_KEYS, *TOOL_KEYS, *ON_KEYS, *APPROVALS}
    return key in ours or key in FOREIGN_KEYS or not key[:1].isalpha()


def _meant(key: str, known: Sequence[str]) -> str | None:
    """Returns the known key that was probably meant: a similar one, or one of the same letters."""
    letters = sorted(key.lower())
    return nearest(key, known, NEAR_MISS) or next(
        (one for one in known if sorted(one.lower()) == letters), None
    )
