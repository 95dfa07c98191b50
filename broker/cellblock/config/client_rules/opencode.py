"""Opencode reads the rules of opencode's `tools` and `permission`, of which the last one that fits counts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.config.client_rules.places import dot_config
from cellblock.config.client_rules.rules import Files, Rule, Server, fits, rest_of, shown

_UNNAMED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_OWN: Final = "cellblock_"
"""Begins the names of Cellblock's own tools there: what is said of them goes on being said by the client."""


class _Said(NamedTuple):
    """Holds a pattern of tools' names, and `allow`, `ask` or `deny`; None: something else."""

    pattern: str
    effect: str | None
    key: str


def rules(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what opencode's settings say of a server's tools, those of the user before those of the project."""
    home, project = dot_config() / "opencode", server.project
    named = os.environ.get("OPENCODE_CONFIG")
    places = [home / f"{name}" for name in ("config.json", "opencode.json", "opencode.jsonc")]
    places += [Path(named)] if named else []
    places += [
        folder / f"opencode.{end}" for folder in (project, project / ".opencode") for end in ("json", "jsonc")
    ]
    start = f"{_UNNAMED.sub('_', server.name)}_"
    found: list[tuple[str, str, str]] = []
    for file in places:
        data = files.data(file)
        for said in _said(data):
            for tool in rest_of(said.pattern, start):
                place = shown(file, said.key)
                if said.effect is None:
                    yield Rule("unclear", place, why=f"has a rule for some inputs alone ({said.pattern})")
                elif not (said.effect == "allow" and "?" in said.pattern):
                    found.append((tool, said.effect, place))
        for key in ("agent", "agents", "mode"):
            agents = data.get(key)
            for name, agent in agents.items() if is_object(agents) else ():
                if is_object(agent) and _restricts(agent, start):
                    yield Rule("unclear", shown(file, key, name), why="keeps tools of it from one agent")
    for folder in (home, project / ".opencode"):
        for kind in ("agent", "agents", "mode", "modes"):
            for file in files.in_folder(folder / kind, "*.md"):
                if _restricts(files.frontmatter(file), start):
                    yield Rule("unclear", shown(file), why="keeps tools of it from one agent")
    yield from _reduced(found)


# ---- inside ------------------------------------------------------------------------------------------


def _said(data: Mapping[str, Any]) -> Iterator[_Said]:
    """Gives the rules of one level, in their order."""
    tools, permission, ordered = data.get("tools"), data.get("permission"), data.get("permissions")
    for pattern, on in tools.items() if is_object(tools) else ():
        yield _Said(pattern, "allow" if on is True else "deny" if on is False else None, "tools")
    if isinstance(permission, str):
        yield _Said("*", _effect(permission), "permission")
    for pattern, effect in permission.items() if is_object(permission) else ():
        yield _Said(pattern, _effect(effect), "permission")
    for rule in ordered if is_array(ordered) else ():
        if is_object(rule) and isinstance(pattern := rule.get("action"), str):
            whole = rule.get("resource", "*") == "*"
            effect = _effect(rule.get("effect"))
            if whole or effect != "allow":
                yield _Said(pattern, effect if whole else None, "permissions")


def _effect(said: object) -> str | None:
    if is_object(said):
        # For some inputs only.
        effects = {_effect(one) for one in said.values()}
        return effects.pop() if len(effects) == 1 else None
    return said if isinstance(said, str) and said in ("allow", "ask", "deny") else None


def _restricts(agent: Mapping[str, Any], start: str) -> bool:
    return any(
        said.effect != "allow" and rest_of(said.pattern, start) and not rest_of(said.pattern, _OWN)
        for said in _said(agent)
    )


def _reduced(found: Iterable[tuple[str, str, str]]) -> Iterator[Rule]:
    """Gives rules whose order does not matter for those in which the last one counts; in doubt, what restricts more."""
    off: dict[str, str] = {}
    asked: dict[str, str] = {}
    on: dict[str, str] = {}
    free: dict[str, str] = {}
    for tool, effect, place in found:
        if effect == "allow" and tool != "*":
            on[tool] = free[tool] = place
            continue
        for kept in [free] if effect == "ask" and tool != "*" else [on, free]:
            for one in [one for one in kept if fits(tool, one)]:
                del kept[one]
        if tool == "*":
            off, asked = {}, {}
        if effect == "deny":
            off[tool] = place
        elif effect == "ask":
            asked[tool] = place
            if "*" in off:
                on[tool] = place
    if "*" in off and on:
        del off["*"]
        yield from (Rule("on", place, tool) for tool, place in on.items())
    if "*" in asked and free:
        del asked["*"]
        yield from (Rule("free", place, tool) for tool, place in free.items())
    yield from (Rule("off", place, tool) for tool, place in off.items())
    yield from (Rule("ask", place, tool) for tool, place in asked.items())
