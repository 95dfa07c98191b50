"""Concerning finds the rules that concern a client's servers, and a client by the place of its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_object
from cellblock.config.client_rules import claude_code, gemini, opencode, others
from cellblock.config.client_rules.rules import Files, Restricted, Rule, Server, restricted, shown

_READERS: Final[Mapping[str, Callable[[Server, Files], Iterator[Rule]]]] = {
    "claude-code": claude_code.rules,
    "cursor": others.cursor,
    "vscode": others.vscode,
    "codex": others.codex,
    "gemini": gemini.rules,
    "zed": others.zed,
    "opencode": opencode.rules,
    "goose": others.goose,
}
"""Maps clients to what reads their rules; the others have none outside of entries, or keep them in a database."""


def under_rules(client: str, server: Server, files: Files) -> Restricted:
    """Returns a server's entry, in our keys, with what its client's rules add to it."""
    reader = _READERS.get(client)
    if reader is None or not is_object(server.entry):
        return Restricted(server.entry)
    rules = [*reader(server, files)]
    for file, why in files.unreadable.items():
        rules.append(Rule("unclear", shown(file), why=f"may restrict it and cannot be read: {why}"))
    return restricted(server.entry, rules)


def client_of(file: Path) -> tuple[str, Path | None] | None:
    """Returns the client whose own file a path is, by name and place, and the project that it belongs to, if to one."""
    name, folder = file.name, file.parent
    if name == ".mcp.json":
        return "claude-code", folder
    if name == ".claude.json":
        return "claude-code", None
    project = None if folder.parent == Path.home() else folder.parent
    if (folder.name, name) == (".cursor", "mcp.json"):
        return "cursor", project
    if (folder.name, name) == (".gemini", "settings.json"):
        return "gemini", project
    if (folder.name, name) == (".vscode", "mcp.json"):
        return "vscode", project
    if folder.name == "User" and name in ("mcp.json", "settings.json") and folder.parent.name in others.CODES:
        return "vscode", None
    return None


def entries_under_rules(
    file: Path, entries: Mapping[str, Any], of_project: Collection[str]
) -> tuple[dict[str, Restricted], list[Path]]:
    """Returns the entries of a file that is a client's own, and the files in which rules were looked for; nothing of
    another file.

    Args:
        file: The file.
        entries: Its servers, in our keys.
        of_project: Those that the file has for the folder that is worked in.
    """
    found = client_of(file)
    if found is None:
        return {}, []
    client, project = found
    files = Files()
    folder = project or Path.cwd()
    made = {
        name: under_rules(
            client, Server(name, entry, folder, own=project is not None or name in of_project), files
        )
        for name, entry in entries.items()
    }
    return made, files.seen
