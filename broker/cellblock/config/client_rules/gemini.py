"""Gemini reads what Gemini CLI's settings and policies say of servers and tools."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.config.client_rules.places import system_folder
from cellblock.config.client_rules.rules import Files, Rule, Server, rest_of, shown

_UNNAMED: Final = re.compile(r"[^a-zA-Z0-9_\-.:]")
_CONDITIONS: Final = (
    "argsPattern",
    "commandPrefix",
    "commandRegex",
    "interactive",
    "modes",
    "subagent",
    "toolAnnotations",
)
"""Names what makes a rule of a policy one for some calls alone."""

_BUILT_IN: Final = frozenset(
    [
        *(
            "ask_user",
            "enter_plan_mode",
            "exit_plan_mode",
            "glob",
            "google_web_search",
            "grep_search",
            "list_directory",
        ),
        *(
            "read_file",
            "read_many_files",
            "replace",
            "run_shell_command",
            "save_memory",
            "search_file_content",
        ),
        *("web_fetch", "write_file", "write_todos", "activate_skill", "get_internal_docs"),
        *("EditTool", "GlobTool", "GrepTool", "LSTool", "MemoryTool", "ReadFileTool", "ReadManyFilesTool"),
        *("ShellTool", "WebFetchTool", "WebSearchTool", "WriteFileTool"),
    ]
)
"""Names the tools of Gemini CLI itself: a name of these without a server is of no server's tool."""


def rules(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what Gemini CLI's settings say of a server, those of the user, of the machine, and of the project."""
    home, machine = Path.home() / ".gemini", system_folder("gemini-cli", "GeminiCli")
    system = os.environ.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH")
    settings = (
        machine / "system-defaults.json",
        home / "settings.json",
        server.project / ".gemini" / "settings.json",
        machine / "settings.json" if system is None else Path(system),
    )
    for file in dict.fromkeys(settings):
        yield from _of_settings(server.name, file, files)
    states = {
        key.strip().lower(): value for key, value in files.data(home / "mcp-server-enablement.json").items()
    }
    state = states.get(server.name.strip().lower())
    if is_object(state) and state.get("enabled") is False:
        yield Rule("server off", shown(home / "mcp-server-enablement.json"))
    for folder in (home / "policies", machine / "policies"):
        for file in files.in_folder(folder, "*.toml"):
            yield from _of_policy(server.name, file, files)


# ---- inside ------------------------------------------------------------------------------------------


def _of_settings(name: str, file: Path, files: Files) -> Iterator[Rule]:
    for keys in (("mcp", "excluded"), ("excludeMCPServers",)):
        if name in files.texts(file, *keys):
            yield Rule("server off", shown(file, *keys))
    for keys in (("mcp", "allowed"), ("allowMCPServers",)):
        if files.value(file, *keys) is not None and name not in files.texts(file, *keys):
            yield Rule("server off", shown(file, *keys))
    if files.value(file, "admin", "mcp", "enabled") is False:
        yield Rule("server off", shown(file, "admin", "mcp", "enabled"))
    for keys in (("tools", "exclude"), ("excludeTools",)):
        for listed in files.texts(file, *keys):
            yield from (Rule("off", shown(file, *keys), tool) for tool in _tools(listed, name))
    keys = ("tools", "confirmationRequired")
    for listed in files.texts(file, *keys):
        yield from (Rule("ask", shown(file, *keys), tool) for tool in _tools(listed, name))
    for keys in (("tools", "core"), ("coreTools",)):
        if files.value(file, *keys) is not None:
            why = "keeps it away in some versions of Gemini CLI and not in others"
            yield Rule("unclear", shown(file, *keys), why=why)


def _of_policy(name: str, file: Path, files: Files) -> Iterator[Rule]:
    listed = files.value(file, "rule")
    found: list[Rule] = []
    allowed = False
    for rule in listed if is_array(listed) else ():
        if not is_object(rule):
            continue
        tools = _tools_of_rule(rule, name)
        decision = rule.get("decision")
        if decision == "allow":
            allowed |= bool(tools)
        elif tools and any(rule.get(key) is not None for key in _CONDITIONS):
            found.append(Rule("unclear", shown(file), why="has a rule for some of its calls alone"))
        elif decision in ("deny", "ask_user"):
            found += [Rule("off" if decision == "deny" else "ask", shown(file), tool) for tool in tools]
        elif tools:
            found.append(Rule("unclear", shown(file), why=f"has the decision {decision}"))
    if found and allowed:
        found = [
            Rule("unclear", shown(file), why="allows some of its tools and restricts others, by priority")
        ]
    yield from found


def _tools_of_rule(rule: Mapping[str, Any], name: str) -> list[str]:
    server, tool = rule.get("mcpName"), rule.get("toolName", "*")
    names = [one for one in (tool if is_array(tool) else [tool]) if isinstance(one, str)]
    if server is None:
        return [found for one in names for found in (["*"] if one == "*" else _tools(one, name, bare=False))]
    return names if server in ("*", name) else []


def _tools(listed: str, name: str, *, bare: bool = True) -> list[str]:
    """Returns the tools of a server that a name is for: `mcp_SERVER_TOOL`, with `*`; older versions have
    `SERVER__TOOL`, and the tool's own name."""
    listed = listed.partition("(")[0].strip()
    written = _UNNAMED.sub("_", name)
    found = [*rest_of(listed, f"mcp_{written}_"), *rest_of(listed, f"{written}__")]
    alone = bare and not listed.startswith("mcp_") and "__" not in listed and listed not in _BUILT_IN
    return [*dict.fromkeys([*found, *([listed] if alone and listed else [])])]
