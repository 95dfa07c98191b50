"""What an MCP client's permission files say of its servers.

A tool or a server that such a file denies by its exact name is left out. Where a file says anything else that may
restrict a server, or cannot be read, the user is asked before each call of that server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from cellblock.app.config.edit import UnreadableFile, format_of, object_in, text_of
from cellblock.base.json import is_array, is_object
from cellblock.base.visible import visible

_WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "claude-code": ("mcp__{}__",),
    "gemini": ("mcp_{}_", "{}__"),
    "zed": ("mcp:{}:",),
    "opencode": ("{}_",),
    "goose": ("{}__",),
}
"""Maps clients to what stands before a tool's name in theirs; rules of lists of servers are read as `SERVER/*`."""

_WILD: Final = re.compile(r"[*?\[\]{}|^$+\\]")
_MCP: Final = re.compile(r"Mcp\(([^:,)]*)[:,]([^)]*)\)")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a file says of one name.

    Args:
        place: The key and the file, for people.
        name: A server and a tool, as the client writes them, or as `SERVER/TOOL`.
        denies: Whether it denies them; else it may restrict them in some other way.
        only: The servers that it is for: the `project`'s or the `user`'s.
        but: Servers that it is not for.
        agent: Whether it holds for one agent, or in another folder: one that holds for Cellblock, too, is kept there.
    """

    place: str
    name: str
    denies: bool = False
    only: str = ""
    but: Collection[str] = ()
    agent: bool = False


class ClientPermissions:
    """Holds what a client's permission files say, those of the user, of the machine, and of the project.

    Attributes:
        files: The files and folders that were looked for, there or not.
        unreadable: Those that cannot be read, with why.
    """

    def __init__(self, client: str, project: Path) -> None:
        files = _Files(project)
        self._written = _WRITTEN.get(client, ())
        self._rules = [*_READERS[client](files)] if client in _READERS else []
        self._rules += [_Rule(f"{shown_path(file)}: {why}", "*") for file, why in files.unreadable.items()]
        self.files: Final = [*files.seen]
        self.unreadable: Final = files.unreadable

    def restricted(self, name: str, entry: Any, *, of_project: bool) -> tuple[Any, tuple[str, ...]]:
        """Returns a server's entry, in our keys, with what the files come to, and a line for each of their places."""
        if not is_object(entry):
            return entry, ()
        made, denied = dict(entry), dict[str, list[str]]()
        told: dict[str, None] = {}
        for rule in self._rules:
            tool = self._tool(rule.name, name)
            if tool is None and not self._may_mean(rule.name, name):
                continue
            if rule.only not in ("", "project" if of_project else "user") or name in rule.but:
                continue
            if rule.agent and self._may_mean(rule.name, "cellblock"):
                continue
            if rule.denies and tool == "*":
                made["disabled"] = True
                told[f"left out ({rule.place})"] = None
            elif rule.denies and tool and not _WILD.search(tool) and "(" not in tool:
                made = _with_name(made, "disabledTools", tool)
                denied.setdefault(rule.place, []).append(tool)
            else:
                made = _with_name(made, "askTools", "*")
                told[f"asked about before each call ({rule.place})"] = None
        return made, (*(f"without {', '.join(tools)} ({place})" for place, tools in denied.items()), *told)

    def _tool(self, name: str, server: str) -> str | None:
        """Returns the tool of a server that a name is for, `*` for all; None where it is no name of that server."""
        for start in ("*/", *self._starts(server, name)):
            if name.startswith(start):
                return name.removeprefix(start)
            if f"{name}__" == start:
                return "*"
        return None

    def _may_mean(self, name: str, server: str) -> bool:
        """Says whether a name, a pattern, or one that is written a little differently, may be for a server."""
        head = name.partition("(")[0]
        literal = _WILD.split(head, maxsplit=1)[0]
        starts = [_plain(start) for start in self._starts(server, head)]
        if literal != head and any(start.startswith(_plain(literal)) for start in starts):
            return True
        return head == "*" or any(_plain(f"{head}_").startswith(start) for start in starts)

    def _starts(self, server: str, name: str) -> list[str]:
        """Returns what stands before a tool's name where the server is written as clients write it."""
        spelled = (
            server,
            re.sub(r"[^a-zA-Z0-9_-]", "_", server),
            re.sub(r"[^a-zA-Z0-9_\-.:]", "_", server),
            re.sub(r"[^a-z0-9_-]", "_", "".join(server.lower().split())),
        )
        written = ("{}/",) if "/" in name else self._written
        return [start.format(one) for start in written for one in dict.fromkeys(spelled)]


_OWN_FILES: Final = {
    (".cursor", "mcp.json"): "cursor",
    (".gemini", "settings.json"): "gemini",
    (".vscode", "mcp.json"): "vscode",
}


def client_of(file: Path) -> tuple[str, Path | None] | None:
    """Returns the client whose own file a path is, by name and place, and the project that it belongs to, if to one."""
    name, folder = file.name, file.parent
    project = None if folder.parent == Path.home() else folder.parent
    if name in (".mcp.json", ".claude.json"):
        return "claude-code", folder if name == ".mcp.json" else None
    if (client := _OWN_FILES.get((folder.name, name))) is not None:
        return client, project
    if folder.name == "User" and name in ("mcp.json", "settings.json") and folder.parent.name in CODES:
        return "vscode", None
    if (folder.name, name) == ("windsurf", "mcp_config.json"):
        return "windsurf", None
    return ("claude-desktop", None) if name == "claude_desktop_config.json" else None


def shown(file: Path, *keys: str) -> str:
    """Returns a place in a file for people."""
    return " in ".join(filter(None, (".".join(keys), shown_path(file))))


# ---- files -------------------------------------------------------------------------------------------


class _Files:
    """Reads a client's files, each once."""

    def __init__(self, project: Path) -> None:
        self.project: Final = project
        self.seen: Final[dict[Path, Mapping[str, Any]]] = {}
        self.unreadable: Final[dict[Path, str]] = {}

    def data(self, file: Path) -> Mapping[str, Any]:
        """Returns the content of a file, or what a Markdown file says above its text; nothing where there is none."""
        if file not in self.seen:
            self.seen[file] = {}
            try:
                text = (text_of(file) or "").removeprefix("\ufeff")
                text, form = (_above(text), "yaml") if file.suffix == ".md" else (text, format_of(file.name))
                self.seen[file] = object_in(file, text, form)
            except UnreadableFile as error:
                self.unreadable[file] = error.why
        return self.seen[file]

    def value(self, file: Path, *keys: str) -> Any:
        """Returns what stands in a file under keys; None where nothing does."""
        below: Any = self.data(file)
        for index, key in enumerate(keys):
            if not is_object(below):
                self.unreadable[file] = f"{'.'.join(keys[:index])} is no object"
                return None
            below = below.get(key)
            if below is None:
                return None
        return below

    def rules(self, file: Path, *keys: str, name: str = "{}", **said: Any) -> Iterator[_Rule]:
        """Gives a rule for each name under keys of a file; `name` says how it is read."""
        for one in _names(self.value(file, *keys)):
            yield _Rule(shown(file, *keys), name.format(one) if one != "*" else "*", **said)

    def in_folder(self, folder: Path, pattern: str) -> list[Path]:
        """Returns the files of a folder whose names fit."""
        self.seen[folder] = {}
        try:
            return sorted(folder / name for name in os.listdir(folder) if fnmatch(name, pattern))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unreadable[folder] = error.strerror or str(error)
            return []


def _names(said: Any) -> Iterable[str]:
    """Returns the names of a list, of an object or of a text with commas; `*` where it is something else."""
    if isinstance(said, str):
        return [name.strip() for name in said.split(",")]
    if is_array(said) or is_object(said):
        return [name if isinstance(name, str) else "*" for name in said]
    return [] if said is None else ["*"]


def _listed(said: Any) -> Iterable[Any]:
    """Returns what stands in a list; None for what is something else."""
    return said if is_array(said) else [] if said is None else [None]


def _items(said: Any) -> Iterable[tuple[str, Any]]:
    return said.items() if is_object(said) else ()


def _above(text: str) -> str:
    return text.split("\n---", 1)[0].removeprefix("---") if text.startswith("---") else ""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower())


def _with_name(entry: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    before = entry.get(key, [])
    # What is no list is left for the validation.
    return {**entry, key: [*before, name]} if is_array(before) and name not in before else entry


# ---- clients -----------------------------------------------------------------------------------------


def _claude_code(files: _Files) -> Iterator[_Rule]:
    machine = system_folder("claude-code", "ClaudeCode")
    managed = [
        machine / "managed-settings.json",
        *files.in_folder(machine / "managed-settings.d", "*.json"),
    ]
    own = [*_claude_files(claude_folder()), *_claude_files(files.project / ".claude")]
    for file in dict.fromkeys([*managed, *own]):
        yield from _claude_settings(files, file)
    if files.data(machine / "managed-mcp.json"):
        # Claude Code then has the administrator's servers alone.
        yield _Rule(shown(machine / "managed-mcp.json"), "*/*", denies=True)
    for folder in (claude_folder(), files.project / ".claude"):
        for file in files.in_folder(folder / "agents", "*.md"):
            yield from files.rules(file, "disallowedTools", agent=True)
    for folder, _ in _items(files.value(claude_state(), "projects")):
        keys = ("projects", folder)
        here = Path(folder) == files.project
        for file in () if here else _claude_files(Path(folder, ".claude")):
            for rule in _claude_settings(files, file):
                yield replace(rule, denies=False, only="user", agent=True)
        yield from files.rules(
            claude_state(), *keys, "disabledMcpServers", name="{}/*", denies=here, only="" if here else "user"
        )
        if here:
            yield from files.rules(
                claude_state(), *keys, "disabledMcpjsonServers", name="{}/*", denies=True, only="project"
            )


def _claude_files(folder: Path) -> list[Path]:
    return [folder / name for name in ("settings.json", "settings.local.json")]


def _claude_settings(files: _Files, file: Path) -> Iterator[_Rule]:
    yield from files.rules(file, "permissions", "deny", denies=True)
    yield from files.rules(file, "permissions", "ask")
    if files.value(file, "permissions", "defaultMode") == "dontAsk":
        yield _Rule(shown(file, "permissions", "defaultMode"), "*")
    yield from files.rules(file, "disabledMcpjsonServers", name="{}/*", denies=True, only="project")
    for one in _listed(files.value(file, "deniedMcpServers")):
        name = one.get("serverName") if is_object(one) else None
        is_named = isinstance(name, str)
        yield _Rule(shown(file, "deniedMcpServers"), f"{name}/*" if is_named else "*", denies=is_named)
    if (allowed := files.value(file, "allowedMcpServers")) is not None:
        # Where commands or URLs are listed, a name is not enough.
        listed = [one.get("serverName") if is_object(one) else None for one in _listed(allowed)]
        but = () if None in listed else frozenset(map(str, listed))
        yield _Rule(shown(file, "allowedMcpServers"), "*", but=but)
    for event in ("PreToolUse", "PermissionRequest"):
        for hook in _listed(files.value(file, "hooks", event)):
            matcher = hook.get("matcher") if is_object(hook) else "mcp__"
            # One for all tools is asked about Cellblock's, too.
            if isinstance(matcher, str) and "mcp__" in matcher:
                for part in filter(None, re.split(r"[|()]", matcher.replace(".", "*"))):
                    yield _Rule(shown(file, "hooks", event), f"{part}*")


def _cursor(files: _Files) -> Iterator[_Rule]:
    folder = Path(os.environ.get("CURSOR_CONFIG_DIR") or Path.home() / ".cursor")
    user = [one / "cli-config.json" for one in (folder, dot_config() / "cursor")]
    for file in (*user, files.project / ".cursor" / "cli.json"):
        for rule in files.rules(file, "permissions", "deny", denies=True):
            if found := _MCP.fullmatch(rule.name):
                server, tool = (part.strip() or "*" for part in found.groups())
                yield replace(rule, name=f"{server}/{tool}")
            elif rule.name.startswith(("Mcp", "*")):
                yield replace(rule, name="*")


def _vscode(files: _Files) -> Iterator[_Rule]:
    key = "chat.tools.eligibleForAutoApproval"
    user = [settings_folder() / code / "User" / "settings.json" for code in CODES]
    for file in (*user, files.project / ".vscode" / "settings.json"):
        for name, may in _items(files.value(file, key)):
            if may is not True:
                yield _Rule(shown(file, key), name if "/" in name else f"*/{name}")
        access = files.value(file, "chat.mcp.access")
        if access == "none" or files.value(file, "chat.mcp.enabled") is False:
            yield _Rule(shown(file, "chat.mcp.access"), "*/*", denies=True)
        elif access not in (None, "all"):
            yield _Rule(shown(file, "chat.mcp.access"), "*")


def _codex(files: _Files) -> Iterator[_Rule]:
    file = system_folder("codex", "Codex") / "requirements.toml"
    if files.value(file, "mcp_servers") is not None:
        yield _Rule(shown(file, "mcp_servers"), "*")


def _gemini(files: _Files) -> Iterator[_Rule]:
    home, machine = Path.home() / ".gemini", system_folder("gemini-cli", "GeminiCli")
    system = os.environ.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH")
    settings = (
        machine / "system-defaults.json",
        home / "settings.json",
        files.project / ".gemini" / "settings.json",
        machine / "settings.json" if system is None else Path(system),
    )
    for file in dict.fromkeys(settings):
        for keys in (("mcp", "excluded"), ("excludeMCPServers",)):
            yield from files.rules(file, *keys, name="{}/*", denies=True)
        for keys in (("mcp", "allowed"), ("allowMCPServers",)):
            if (allowed := files.value(file, *keys)) is not None:
                yield _Rule(shown(file, *keys), "*", but=frozenset(_names(allowed)))
        if files.value(file, "admin", "mcp", "enabled") is False:
            yield _Rule(shown(file, "admin", "mcp", "enabled"), "*/*", denies=True)
        for keys, denies in (
            (("tools", "exclude"), True),
            (("excludeTools",), True),
            (("tools", "confirmationRequired"), False),
        ):
            for rule in files.rules(file, *keys, denies=denies):
                # A tool's own name; with parentheses it is one of Gemini CLI itself.
                alone = not rule.name.startswith("mcp_") and not re.search(r"__|[(*]", rule.name)
                yield replace(rule, name=f"*/{rule.name}") if alone else rule
        for keys in (("tools", "core"), ("coreTools",)):
            if files.value(file, *keys) is not None:
                yield _Rule(shown(file, *keys), "*")
    enablement = home / "mcp-server-enablement.json"
    for name, state in files.data(enablement).items():
        if is_object(state) and state.get("enabled") is not True:
            yield _Rule(shown(enablement), f"{name.strip()}/*", denies=state.get("enabled") is False)
    for folder in (home / "policies", machine / "policies"):
        for file in files.in_folder(folder, "*.toml"):
            for said in _listed(files.value(file, "rule")):
                yield from _of_gemini_policy(said, shown(file))


def _of_gemini_policy(said: Any, place: str) -> Iterator[_Rule]:
    if not is_object(said):
        yield _Rule(place, "*")
    elif said.get("decision") != "allow":
        server = said.get("mcpName")
        always = said.keys() <= {"mcpName", "toolName", "decision", "priority", "denyMessage"}
        denies = always and server != "*" and said.get("decision") == "deny"
        for tool in _names(said.get("toolName", "*")):
            yield _Rule(place, tool if server is None else f"{server}/{tool}", denies=denies)


def _zed(files: _Files) -> Iterator[_Rule]:
    for file in (dot_config() / "zed" / "settings.json", files.project / ".zed" / "settings.json"):
        for name, said in _items(files.value(file, "agent", "tool_permissions", "tools")):
            default = said.get("default") if is_object(said) else "confirm"
            some = is_object(said) and (said.get("always_deny") or said.get("always_confirm"))
            if name.startswith("mcp:") and (some or default not in (None, "allow")):
                yield _Rule(shown(file, "agent", "tool_permissions"), name, denies=default == "deny")
        for profile, said in _items(files.value(file, "agent", "profiles")):
            for server, tools in _items(said.get("context_servers") if is_object(said) else None):
                if is_object(tools) and any(on is not True for _, on in _items(tools.get("tools"))):
                    yield _Rule(shown(file, "agent", "profiles", profile), f"{server}/*")


def _opencode(files: _Files) -> Iterator[_Rule]:
    home, project = dot_config() / "opencode", files.project
    named = os.environ.get("OPENCODE_CONFIG")
    names = ("opencode.json", "opencode.jsonc")
    places = [
        *(home / name for name in ("config.json", *names)),
        *([Path(named)] if named else []),
        *(folder / name for folder in (project, project / ".opencode") for name in names),
    ]
    agents: list[tuple[str, Any]] = []
    for file in places:
        yield from _opencode_rules(files.data(file), shown_path(file))
        for kind in ("agent", "agents", "mode"):
            agents += [(shown(file, kind, name), one) for name, one in _items(files.value(file, kind))]
    agents += [
        (shown_path(one), files.data(one))
        for folder in (home, project / ".opencode")
        for kind in ("agent", "agents", "mode", "modes")
        for one in files.in_folder(folder / kind, "*.md")
    ]
    for place, agent in agents:
        for rule in _opencode_rules(agent, place) if is_object(agent) else ():
            yield replace(rule, denies=False, agent=True)


def _opencode_rules(said: Mapping[str, Any], place: str) -> Iterator[_Rule]:
    tools, permission = said.get("tools"), said.get("permission")
    rules = [(name, "allow" if on is True else "deny" if on is False else on) for name, on in _items(tools)]
    rules += [("*", permission)] if isinstance(permission, str) else _items(permission)
    for one in _listed(said.get("permissions")):
        action, effect = (one.get("action", "*"), one.get("effect")) if is_object(one) else ("*", None)
        whole = is_object(one) and one.get("resource", "*") == "*"
        rules.append((str(action), effect if whole else {"some": effect}))
    for name, effect in rules:
        # For some inputs only.
        effects = {*map(str, effect.values())} if is_object(effect) else {effect}
        if effects != {"allow"}:
            yield _Rule(place, name, denies=effects == {"deny"} and not is_object(effect))


def _goose(files: _Files) -> Iterator[_Rule]:
    file = dot_config() / "goose" / "permission.yaml"
    yield from files.rules(file, "user", "never_allow", denies=True)
    yield from files.rules(file, "user", "ask_before")


_READERS: Final[Mapping[str, Callable[[_Files], Iterator[_Rule]]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "gemini": _gemini,
    "zed": _zed,
    "opencode": _opencode,
    "goose": _goose,
}
"""Maps clients to what reads their permission files; the others have none, or keep them in a database."""


CODES: Final = ("Code", "Code - Insiders", "VSCodium")
"""Names the folders of VS Code and of programs that are built from it."""


def dot_config() -> Path:
    """Returns `~/.config`, where programs for the terminal keep their settings on macOS, too."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def settings_folder() -> Path:
    """Returns the folder in which programs with windows keep their settings."""
    return Path.home() / "Library/Application Support" if sys.platform == "darwin" else dot_config()


def system_folder(linux: str, macos: str) -> Path:
    """Returns the folder in which an administrator keeps a program's settings."""
    return Path("/Library/Application Support", macos) if sys.platform == "darwin" else Path("/etc", linux)


def claude_folder() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def claude_state() -> Path:
    """Returns the file in which Claude Code keeps its servers, and what was said of projects."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json"


def shown_path(file: Path) -> str:
    home = Path.home()
    return visible(f"~/{file.relative_to(home)}" if file.is_relative_to(home) else str(file), instead=None)
