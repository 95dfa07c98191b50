"""Others reads what Cursor, VS Code, Codex, Zed and goose say of servers' tools in files and keys of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cellblock.base.json import is_object
from cellblock.config.client_rules.places import dot_config, settings_folder, system_folder
from cellblock.config.client_rules.rules import Files, Rule, Server, fits, shown

_MCP: Final = re.compile(r"Mcp\(([^:,)]*)[:,]([^)]*)\)")
_NO_KEY: Final = re.compile(r"[^a-z0-9_-]")
CODES: Final = ("Code", "Code - Insiders", "VSCodium")
"""Names the folders of VS Code and of programs that are built from it."""


def cursor(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what Cursor's command line is denied."""
    folder = os.environ.get("CURSOR_CONFIG_DIR") or Path.home() / ".cursor"
    listed = {
        Path(folder) / "cli-config.json",
        dot_config() / "cursor" / "cli-config.json",
        server.project / ".cursor" / "cli.json",
    }
    for file in sorted(listed):
        for rule in files.texts(file, "permissions", "deny"):
            found = _MCP.fullmatch(rule)
            if found and fits(found[1].strip() or "*", server.name):
                yield Rule("off", shown(file, "permissions", "deny"), found[2].strip() or "*")


def vscode(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what VS Code's settings say of tools that are always asked about, and of servers."""
    user = [settings_folder() / code / "User" / "settings.json" for code in CODES]
    for file in (*user, server.project / ".vscode" / "settings.json"):
        eligible = files.data(file).get("chat.tools.eligibleForAutoApproval")
        for name, may in eligible.items() if is_object(eligible) else ():
            named, slash, tool = name.rpartition("/")
            if may is False and (not slash or named == server.name):
                yield Rule("ask", shown(file, "chat.tools.eligibleForAutoApproval"), tool)
        if (
            files.data(file).get("chat.mcp.enabled") is False
            or files.data(file).get("chat.mcp.access") == "none"
        ):
            yield Rule("server off", shown(file, "chat.mcp.access"))
        elif files.data(file).get("chat.mcp.access") == "registry":
            yield Rule(
                "unclear", shown(file, "chat.mcp.access"), why="allows the servers of a registry alone"
            )


def codex(server: Server, files: Files) -> Iterator[Rule]:
    """Gives the servers that an administrator's requirements for Codex leave."""
    file = system_folder("codex", "Codex") / "requirements.toml"
    allowed = files.value(file, "mcp_servers")
    if allowed is None:
        return
    identity = files.value(file, "mcp_servers", server.name, "identity")
    if not is_object(identity) or any(server.entry.get(key) != value for key, value in identity.items()):
        yield Rule("server off", shown(file, "mcp_servers"))


def zed(server: Server, files: Files) -> Iterator[Rule]:
    """Gives what Zed's agent settings say of a server's tools."""
    for file in (dot_config() / "zed" / "settings.json", server.project / ".zed" / "settings.json"):
        tools = files.value(file, "agent", "tool_permissions", "tools")
        start = f"mcp:{server.name}:"
        for key, said in tools.items() if is_object(tools) else ():
            if not key.startswith(start) or not is_object(said):
                continue
            place, tool = shown(file, "agent", "tool_permissions"), key.removeprefix(start)
            if said.get("always_deny") or said.get("always_confirm"):
                yield Rule("unclear", place, why=f"has a rule for some inputs of {tool} alone")
            elif said.get("default") in ("deny", "confirm"):
                yield Rule("off" if said["default"] == "deny" else "ask", place, tool)
        profiles = files.value(file, "agent", "profiles")
        for profile in profiles if is_object(profiles) else ():
            listed = files.value(file, "agent", "profiles", profile, "context_servers", server.name, "tools")
            if is_object(listed) and False in listed.values():
                place = shown(file, "agent", "profiles", profile)
                yield Rule("unclear", place, why="keeps tools of it from one profile")


def goose(server: Server, files: Files) -> Iterator[Rule]:
    """Gives the permissions that goose's user has set for single tools."""
    file = dot_config() / "goose" / "permission.yaml"
    always = files.texts(file, "user", "always_allow")
    # What stands in several lists: goose looks at them in this order.
    taken: list[str] = []
    for key, names in (
        ("never_allow", files.texts(file, "user", "never_allow")),
        ("always_allow", always),
        ("ask_before", files.texts(file, "user", "ask_before")),
    ):
        for name in names:
            extension, found, tool = name.partition("__")
            is_meant = found and extension in (
                server.name,
                _NO_KEY.sub("_", "".join(server.name.lower().split())),
            )
            if is_meant and name not in taken and key != "always_allow":
                yield Rule("off" if key == "never_allow" else "ask", shown(file, "user", key), tool)
        taken += names
