"""Claude_code reads the permissions, lists of servers, agents and hooks of Claude Code's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.config.client_rules.places import claude_folder, claude_state, system_folder
from cellblock.config.client_rules.rules import Files, Rule, Server, fits, rest_of, shown

_UNNAMED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_WITH_INPUT: Final = re.compile(r"([^()]*)\(.*\)", re.S)
_HOOKS: Final = ("PreToolUse", "PermissionRequest")
_HOOKED: Final = re.compile(r"mcp__([a-zA-Z0-9_-]+?)(?:__|$)")
_OWN: Final = "mcp__cellblock__"
"""Begins the names of Cellblock's own tools there: what is said of them goes on being said by the client."""


def rules(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what Claude Code's settings say of a server, those of the user, of the machine, and of the project."""
    project = server.project
    machine = system_folder("claude-code", "ClaudeCode")
    managed = [machine / "managed-settings.json", *_all(machine / "managed-settings.d", "json", files)]
    here = _of_folder(project)
    settings = [*managed, claude_folder() / "settings.json", claude_folder() / "settings.local.json", *here]
    for file in dict.fromkeys(settings):
        yield from _permissions(server.name, file, files)
        yield from _hooks(server.name, file, files)
    yield from _allowed_alone(server.name, [*dict.fromkeys(settings)], files)
    yield from _servers(server, [*dict.fromkeys(settings)], managed, files)
    if files.data(machine / "managed-mcp.json"):
        yield Rule("server off", shown(machine / "managed-mcp.json"))
    for folder in (claude_folder(), project / ".claude"):
        for file in _all(folder / "agents", "md", files):
            denied = _names(files.frontmatter(file).get("disallowedTools"))
            if any(_tools(rule, server.name) and not rest_of(rule, _OWN) for rule in denied):
                yield Rule("unclear", shown(file), why="keeps tools of it from one agent")
    projects = files.value(claude_state(), "projects")
    for folder, said in projects.items() if is_object(projects) else ():
        if Path(folder) == project:
            named = _listed(said, "disabledMcpServers") + _listed(said, "disabledMcpjsonServers") * server.own
            if server.name in named:
                yield Rule("server off", shown(claude_state(), "projects", folder, "disabledMcpServers"))
        elif not server.own:
            yield from _elsewhere(server, Path(folder), said, files)


# ---- inside ------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> list[Path]:
    return [folder / ".claude" / f"settings{kind}.json" for kind in ("", ".local")]


def _all(folder: Path, ending: str, files: Files) -> list[Path]:
    return files.in_folder(folder, f"*.{ending}")


def _permissions(name: str, file: Path, files: Files) -> Iterator[Rule]:
    for key, effect in (("deny", "off"), ("ask", "ask")):
        place = shown(file, "permissions", key)
        for rule in files.texts(file, "permissions", key):
            with_input = _WITH_INPUT.fullmatch(rule)
            for tool in _tools(with_input[1] if with_input else rule, name):
                if with_input:
                    yield Rule("unclear", place, why=f"has a rule for some inputs alone ({rule})")
                else:
                    yield Rule("off" if effect == "off" else "ask", place, tool)


def _allowed_alone(name: str, settings: Iterable[Path], files: Files) -> Iterator[Rule]:
    """Gives the only tools of a server in the mode that denies whatever is not allowed before; wherever it is set, as
    which settings go first is for the client to say."""
    file = next(
        (one for one in settings if files.value(one, "permissions", "defaultMode") == "dontAsk"), None
    )
    if file is None:
        return
    place = shown(file, "permissions", "defaultMode")
    rules = [rule for one in settings for rule in files.texts(one, "permissions", "allow")]
    some = [rule for rule in rules if (found := _WITH_INPUT.fullmatch(rule)) and _tools(found[1], name)]
    tools = [tool for rule in rules if rule not in some for tool in _tools(rule, name)]
    if "*" in tools:
        return
    if some:
        yield Rule("unclear", place, why=f"allows a tool for some inputs alone ({some[0]})")
    elif not tools:
        yield Rule("server off", place)
    yield from (Rule("on", place, tool) for tool in tools)


def _tools(rule: str, server: str) -> list[str]:
    """Returns the tools of a server that a rule is for: `mcp__SERVER`, `mcp__SERVER__TOOL`, with `*`."""
    if not rule.startswith(("mcp__", "*")):
        return []
    # As Claude Code writes names.
    own = f"mcp__{_UNNAMED.sub('_', server)}"
    return ["*"] if rule == own else rest_of(rule, f"{own}__")


def _servers(
    server: Server, settings: Iterable[Path], managed: Iterable[Path], files: Files
) -> Iterator[Rule]:
    """Gives the rules of the lists that allow and deny servers."""
    alone = any(files.value(file, "allowManagedMcpServersOnly") is True for file in managed)
    allowed: list[Any] = []
    limiting: Path | None = None
    for file in settings:
        if any(_is_meant(one, server) for one in _listed(files.data(file), "deniedMcpServers")):
            yield Rule("server off", shown(file, "deniedMcpServers"))
        if server.own and server.name in _listed(files.data(file), "disabledMcpjsonServers"):
            yield Rule("server off", shown(file, "disabledMcpjsonServers"))
        if "allowedMcpServers" in files.data(file) and not (alone and file not in managed):
            limiting = limiting or file
            allowed += _listed(files.data(file), "allowedMcpServers")
    if limiting is not None:
        # Where commands or URLs are listed, a name is not enough for a server that has such a one.
        kind = "serverCommand" if server.entry.get("command") else "serverUrl"
        strict = [one for one in allowed if is_object(one) and kind in one]
        if not any(_is_meant(one, server) for one in strict or allowed):
            yield Rule("server off", shown(limiting, "allowedMcpServers"))


def _is_meant(listed: object, server: Server) -> bool:
    if not is_object(listed):
        return False
    args = server.entry.get("args")
    words = [server.entry.get("command"), *(args if is_array(args) else [])]
    url = listed.get("serverUrl")
    return (
        listed.get("serverName") == server.name
        or listed.get("serverCommand") == words
        or (isinstance(url, str) and fits(url, str(server.entry.get("url", ""))))
    )


def _hooks(name: str, file: Path, files: Files) -> Iterator[Rule]:
    """Gives the rules of hooks for a server's tools: each is a program that may refuse a call."""
    for event in _HOOKS:
        for hook in _listed(files.value(file, "hooks"), event):
            matcher = hook.get("matcher") if is_object(hook) else None
            if not isinstance(matcher, str) or "mcp__" not in matcher:
                continue
            named = _HOOKED.findall(matcher)
            if not named or _UNNAMED.sub("_", name) in named:
                yield Rule("unclear", shown(file, "hooks", event), why="has a program look at its calls")


def _elsewhere(server: Server, folder: Path, said: Any, files: Files) -> Iterator[Rule]:
    """Gives what holds in another folder alone, of which Cellblock does not know when a script runs."""
    why = f"holds in {shown(folder)} alone"
    if server.name in _listed(said, "disabledMcpServers"):
        yield Rule("unclear", shown(claude_state(), "projects", str(folder), "disabledMcpServers"), why=why)
    for file in _of_folder(folder):
        denied = [rule for key in ("deny", "ask") for rule in files.texts(file, "permissions", key)]
        off = any(_is_meant(one, server) for one in _listed(files.data(file), "deniedMcpServers"))
        if off or any(
            _tools(rule.partition("(")[0], server.name) and not rest_of(rule, _OWN) for rule in denied
        ):
            yield Rule("unclear", shown(file), why=why)


def _listed(said: Any, key: str) -> list[Any]:
    found = said.get(key) if is_object(said) else None
    return found if is_array(found) else []


def _names(said: Any) -> list[str]:
    """Returns names that stand in a list, or in a text with commas."""
    if isinstance(said, str):
        return [name.strip() for name in said.split(",")]
    return [name for name in said if isinstance(name, str)] if is_array(said) else []
