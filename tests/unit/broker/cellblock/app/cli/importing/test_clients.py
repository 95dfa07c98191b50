"""What a client's permission files deny by name is left out; about servers of which they say more, Cellblock asks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock.app.cli.importing.entries import find_servers
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.cli.importing.plan import Step, make_plan
from cellblock.app.config import client_permissions

CLAUDE: Final = {".claude.json": '{"mcpServers": {"gh": {"command": "gh"}}, "projects": {"PROJECT": {}}}'}
CLAUDE_PROJECT: Final = {"project/.mcp.json": '{"mcpServers": {"gh": {"command": "gh"}}}'}
CURSOR: Final = {".cursor/mcp.json": '{"mcpServers": {"gh": {"command": "gh"}}}'}
VSCODE: Final = {".config/Code/User/mcp.json": '{"servers": {"gh": {"command": "gh"}}}'}
CODEX: Final = {".codex/config.toml": '[mcp_servers.gh]\ncommand = "gh"\n'}
GEMINI: Final = {".gemini/settings.json": '{"mcpServers": {"gh": {"command": "gh"}}}'}
ZED: Final = {".config/zed/settings.json": '{"context_servers": {"gh": {"command": "gh"}}}'}
OPENCODE: Final = {".config/opencode/opencode.json": '{"mcp": {"gh": {"type": "local", "command": ["gh"]}}}'}
GOOSE: Final = {".config/goose/config.yaml": "extensions: {gh: {type: stdio, cmd: gh, enabled: true}}\n"}


def gemini_with(**more: Any) -> dict[str, str]:
    return {".gemini/settings.json": json.dumps({**json.loads(GEMINI[".gemini/settings.json"]), **more})}


def opencode_with(**more: Any) -> dict[str, str]:
    file = ".config/opencode/opencode.json"
    return {file: json.dumps({**json.loads(OPENCODE[file]), **more})}


def zed_with(agent: Mapping[str, Any]) -> dict[str, str]:
    file = ".config/zed/settings.json"
    return {file: json.dumps({**json.loads(ZED[file]), "agent": agent})}


def permissions(key: str, *rules: str) -> str:
    return json.dumps({"permissions": {key: rules}})


def without_questions(*rules: str) -> str:
    return json.dumps({"permissions": {"defaultMode": "dontAsk", "allow": rules}})


def policy(**keys: Any) -> str:
    return "[[rule]]\npriority = 1\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in keys.items()
    )


DELETE: Final = {"disabledTools": ["delete"]}
ASK: Final = {"askTools": ["*"]}
OFF: Final = {"disabled": True}

CARRIED: Final[Mapping[str, tuple[str, dict[str, str], dict[str, Any]]]] = {
    # Claude Code: permissions of the user, the project, the machine
    "deny, user": (
        "claude-code",
        CLAUDE | {".claude/settings.json": permissions("deny", "mcp__gh__delete")},
        DELETE,
    ),
    "ask, user": (
        "claude-code",
        CLAUDE | {".claude/settings.json": permissions("ask", "mcp__gh__push")},
        ASK,
    ),
    "deny, user's local": (
        "claude-code",
        CLAUDE | {".claude/settings.local.json": permissions("deny", "mcp__gh")},
        OFF,
    ),
    "deny, project": (
        "claude-code",
        CLAUDE | {"project/.claude/settings.json": permissions("deny", "mcp__*__delete")},
        ASK,
    ),
    "deny, project's local": (
        "claude-code",
        CLAUDE_PROJECT | {"project/.claude/settings.local.json": permissions("deny", "mcp__gh__*")},
        OFF,
    ),
    "deny, machine": (
        "claude-code",
        CLAUDE | {"etc/claude-code/managed-settings.json": permissions("deny", "mcp__g*")},
        ASK,
    ),
    "deny, machine's parts": (
        "claude-code",
        CLAUDE | {"etc/claude-code/managed-settings.d/10.json": permissions("deny", "mcp__gh__delete")},
        DELETE,
    ),
    "dontAsk": (
        "claude-code",
        CLAUDE
        | {
            ".claude/settings.json": without_questions("mcp__gh__list", "Read", "mcp__other"),
            "project/.claude/settings.json": permissions("allow", "mcp__gh__get_*"),
        },
        ASK,
    ),
    "dontAsk, nothing allowed": (
        "claude-code",
        CLAUDE | {"project/.claude/settings.local.json": without_questions("Bash(gh:*)")},
        ASK,
    ),
    "dontAsk, all allowed": (
        "claude-code",
        CLAUDE | {".claude/settings.json": without_questions("mcp__gh", "mcp__gh__list(x)")},
        ASK,
    ),
    "deniedMcpServers by name": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"deniedMcpServers": [{"serverName": "gh"}]}'},
        OFF,
    ),
    "deniedMcpServers by command": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"deniedMcpServers": [{"serverCommand": ["gh"]}]}'},
        ASK,
    ),
    "allowedMcpServers by name": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"allowedMcpServers": [{"serverName": "other"}]}'},
        ASK,
    ),
    "allowedMcpServers by command": (
        "claude-code",
        CLAUDE
        | {
            ".claude/settings.json": '{"allowedMcpServers": [{"serverName": "gh"}, {"serverCommand": ["other"]}]}'
        },
        ASK,
    ),
    "managed-mcp.json": (
        "claude-code",
        CLAUDE | {"etc/claude-code/managed-mcp.json": '{"mcpServers": {}}'},
        OFF,
    ),
    "disabledMcpjsonServers, project": (
        "claude-code",
        CLAUDE_PROJECT | {"project/.claude/settings.json": '{"disabledMcpjsonServers": ["gh"]}'},
        OFF,
    ),
    "disabledMcpjsonServers, user": (
        "claude-code",
        CLAUDE_PROJECT | {".claude/settings.json": '{"disabledMcpjsonServers": ["gh"]}'},
        OFF,
    ),
    "disabledMcpServers": (
        "claude-code",
        CLAUDE_PROJECT | {".claude.json": '{"projects": {"PROJECT": {"disabledMcpServers": ["gh"]}}}'},
        OFF,
    ),
    # Cursor
    "cli-config.json": (
        "cursor",
        CURSOR | {".cursor/cli-config.json": permissions("deny", "Mcp(gh:delete)")},
        DELETE,
    ),
    "cli.json": (
        "cursor",
        CURSOR | {"project/.cursor/cli.json": permissions("deny", "Mcp(*, delete)")},
        DELETE,
    ),
    # VS Code
    "eligibleForAutoApproval": (
        "vscode",
        VSCODE
        | {
            ".config/Code/User/settings.json": json.dumps(
                {"chat.tools.eligibleForAutoApproval": {"gh/push": False, "x/y": False}}
            )
        },
        ASK,
    ),
    "chat.mcp.access": (
        "vscode",
        VSCODE | {"project/.vscode/settings.json": '{"chat.mcp.access": "none"}'},
        OFF,
    ),
    # Codex
    "requirements.toml": (
        "codex",
        CODEX | {"etc/codex/requirements.toml": '[mcp_servers.gh.identity]\ncommand = "other"\n'},
        ASK,
    ),
    # Gemini CLI
    "tools.exclude": (
        "gemini",
        gemini_with(tools={"exclude": ["mcp_gh_delete", "mcp_x_y", "ShellTool(rm)"]}),
        DELETE,
    ),
    "excludeTools": ("gemini", gemini_with(excludeTools=["gh__delete"]), DELETE),
    "excludeTools, a tool's own name": ("gemini", gemini_with(excludeTools=["delete"]), DELETE),
    "tools.exclude, project": (
        "gemini",
        GEMINI | {"project/.gemini/settings.json": '{"tools": {"exclude": ["mcp_*"]}}'},
        ASK,
    ),
    "tools.exclude, machine": (
        "gemini",
        GEMINI | {"etc/gemini-cli/settings.json": '{"tools": {"exclude": ["mcp_gh_*"]}}'},
        OFF,
    ),
    "tools.confirmationRequired": (
        "gemini",
        gemini_with(tools={"confirmationRequired": ["mcp_gh_push"]}),
        ASK,
    ),
    "mcp.excluded, project": (
        "gemini",
        GEMINI | {"project/.gemini/settings.json": '{"mcp": {"excluded": ["gh"]}}'},
        OFF,
    ),
    "mcp.allowed, machine": (
        "gemini",
        GEMINI | {"etc/gemini-cli/system-defaults.json": '{"mcp": {"allowed": []}}'},
        ASK,
    ),
    "gemini mcp disable": (
        "gemini",
        GEMINI | {".gemini/mcp-server-enablement.json": '{"gh": {"enabled": false}}'},
        OFF,
    ),
    "policy, deny": (
        "gemini",
        GEMINI | {".gemini/policies/a.toml": policy(mcpName="gh", toolName="delete", decision="deny")},
        DELETE,
    ),
    "policy, ask": (
        "gemini",
        GEMINI | {"etc/gemini-cli/policies/a.toml": policy(toolName=["mcp_gh_push"], decision="ask_user")},
        ASK,
    ),
    # Zed
    "tool_permissions": (
        "zed",
        zed_with({"tool_permissions": {"tools": {"mcp:gh:delete": {"default": "deny"}}}}),
        DELETE,
    ),
    "tool_permissions, project": (
        "zed",
        ZED
        | {
            "project/.zed/settings.json": json.dumps(
                {"agent": {"tool_permissions": {"tools": {"mcp:gh:push": {"default": "confirm"}}}}}
            )
        },
        ASK,
    ),
    # opencode
    "tools": ("opencode", opencode_with(tools={"gh_delete": False}), DELETE),
    "permission": ("opencode", opencode_with(permission={"gh_push": "ask"}), ASK),
    "permissions of version 2": (
        "opencode",
        opencode_with(permissions=[{"action": "gh_delete", "resource": "*", "effect": "deny"}]),
        DELETE,
    ),
    "permission, project": (
        "opencode",
        OPENCODE | {"project/opencode.json": '{"permission": {"gh_delete": "deny"}}'},
        DELETE,
    ),
    "all but one": (
        "opencode",
        opencode_with(tools={"gh*": False, "gh_read": True}),
        ASK,
    ),
    "one, then none": ("opencode", opencode_with(permission={"gh_read": "allow", "gh_*": "deny"}), OFF),
    "none, then all": ("opencode", opencode_with(permission={"gh_*": "deny", "*": "allow"}), OFF),
    # goose
    "never_allow": (
        "goose",
        GOOSE | {".config/goose/permission.yaml": "user: {never_allow: [gh__delete]}"},
        DELETE,
    ),
    "ask_before": (
        "goose",
        GOOSE
        | {
            ".config/goose/permission.yaml": "user: {ask_before: [gh__push, gh__read], always_allow: [gh__read]}"
        },
        ASK,
    ),
}
"""Maps a restriction to its client, the files that say it, and the keys that the imported entry has for it."""

ASKED: Final[Mapping[str, tuple[str, dict[str, str], str]]] = {
    "a rule for inputs": (
        "claude-code",
        CLAUDE | {".claude/settings.json": permissions("deny", "mcp__gh__delete(repo:prod)")},
        "permissions.deny in ~/.claude/settings.json",
    ),
    "dontAsk, a tool allowed for inputs": (
        "claude-code",
        CLAUDE | {".claude/settings.json": without_questions("mcp__gh__delete(repo:test)")},
        "permissions.defaultMode in ~/.claude/settings.json",
    ),
    "another project's rule": (
        "claude-code",
        {".claude.json": '{"mcpServers": {"gh": {"command": "gh"}}, "projects": {"OTHER": {}}}'}
        | {"other/.claude/settings.json": permissions("deny", "mcp__gh__delete")},
        "permissions.deny in ~/other/.claude/settings.json",
    ),
    "another project's list": (
        "claude-code",
        {
            ".claude.json": json.dumps(
                {
                    "mcpServers": {"gh": {"command": "gh"}},
                    "projects": {"OTHER": {"disabledMcpServers": ["gh"]}},
                }
            )
        },
        "disabledMcpServers in ~/.claude.json",
    ),
    "an agent, Claude Code": (
        "claude-code",
        CLAUDE
        | {".claude/agents/a.md": "---\nname: a\ndisallowedTools: Bash, mcp__gh__delete\n---\nBe good."},
        "disallowedTools in ~/.claude/agents/a.md",
    ),
    "a hook": (
        "claude-code",
        CLAUDE
        | {
            "project/.claude/settings.json": '{"hooks": {"PreToolUse": [{"matcher": "mcp__gh__.*", "hooks": []}]}}'
        },
        "hooks.PreToolUse in ~/project/.claude/settings.json",
    ),
    "a broken file": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"permissions": {'},
        "~/.claude/settings.json: ",
    ),
    "allowed by command": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"allowedMcpServers": [{"serverCommand": ["gh"]}]}'},
        "allowedMcpServers in ~/.claude/settings.json",
    ),
    "a list that is none": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"permissions": {"deny": true}}'},
        "permissions.deny in ~/.claude/settings.json",
    ),
    "a registry": (
        "vscode",
        VSCODE | {".config/Code/User/settings.json": '{"chat.mcp.access": "registry"}'},
        "chat.mcp.access in ~/.config/Code/User/settings.json",
    ),
    "tools.core": (
        "gemini",
        gemini_with(tools={"core": []}),
        "tools.core in ~/.gemini/settings.json",
    ),
    "a policy for arguments": (
        "gemini",
        GEMINI | {".gemini/policies/a.toml": policy(mcpName="gh", argsPattern="x", decision="deny")},
        "~/.gemini/policies/a.toml",
    ),
    "a policy by priority": (
        "gemini",
        GEMINI
        | {
            ".gemini/policies/a.toml": policy(mcpName="*", decision="deny")
            + policy(mcpName="gh", toolName="read", decision="allow")
        },
        "~/.gemini/policies/a.toml",
    ),
    "a profile": (
        "zed",
        zed_with({"profiles": {"ask": {"context_servers": {"gh": {"tools": {"read": False}}}}}}),
        "agent.profiles.ask in ~/.config/zed/settings.json",
    ),
    "a pattern of inputs, Zed": (
        "zed",
        zed_with({"tool_permissions": {"tools": {"mcp:gh:x": {"always_deny": [{"pattern": "a"}]}}}}),
        "agent.tool_permissions in ~/.config/zed/settings.json",
    ),
    "agent.tools": (
        "opencode",
        opencode_with(agent={"plan": {"tools": {"gh_*": False}}}),
        "agent.plan in ~/.config/opencode/opencode.json",
    ),
    "agent.permission": (
        "opencode",
        opencode_with(agent={"plan": {"permission": {"gh_delete": "ask"}}}),
        "agent.plan in",
    ),
    "an agent's file": (
        "opencode",
        OPENCODE | {"project/.opencode/agent/plan.md": "---\ntools:\n  gh_*: false\n---\nPlan."},
        "plan.md",
    ),
    "a rule for inputs, opencode": (
        "opencode",
        opencode_with(permission={"gh_x": {"a": "deny", "*": "allow"}}),
        "~/.config/opencode/opencode.json",
    ),
}
"""Maps what Cellblock asks about to its client, the files, and what is said of it."""

LEFT: Final[Mapping[str, tuple[str, dict[str, str], str]]] = {
    "an entry of the project alone": (
        "opencode",
        OPENCODE | {"project/opencode.json": '{"mcp": {"gh": {"enabled": false}}}'},
        "opencode.json says something of it, too",
    ),
    "an entry of the project alone, Codex": (
        "codex",
        CODEX | {"project/.codex/config.toml": '[mcp_servers.gh]\ndisabled_tools = ["delete"]\n'},
        "config.toml says something of it, too",
    ),
}
"""Maps what an entry cannot say to its client, the files, and what is said of the server."""

FREE: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "another server's rule": (
        "claude-code",
        CLAUDE | {".claude/settings.json": permissions("deny", "mcp__ghost__x", "Bash(rm *)", "mcp__gh2")},
    ),
    "what holds for Cellblock, too, elsewhere": (
        "claude-code",
        {".claude.json": '{"mcpServers": {"gh": {"command": "gh"}}, "projects": {"OTHER": {}}}'}
        | {"other/.claude/settings.json": permissions("deny", "mcp__*")},
    ),
    "what holds for Cellblock, too, for an agent": (
        "opencode",
        opencode_with(agent={"plan": {"permission": {"*": "deny"}}}),
    ),
    "another server's hook": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"hooks": {"PreToolUse": [{"matcher": "mcp__x__.*|Bash"}]}}'},
    ),
    "goose's own judgement": (
        "goose",
        GOOSE | {".config/goose/permission.yaml": "smart_approve: {ask_before: [gh__push]}"},
    ),
    "allowed by name": (
        "claude-code",
        CLAUDE | {".claude/settings.json": '{"allowedMcpServers": [{"serverName": "gh"}]}'},
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "CURSOR_CONFIG_DIR"),
        *("OPENCODE_CONFIG", "GEMINI_CLI_SYSTEM_SETTINGS_PATH"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_permissions, "system_folder", lambda linux, _macos: tmp_path / "etc" / linux)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    (tmp_path / "project").mkdir()
    return tmp_path


def only_step(home: Path, client: str, files: Mapping[str, str]) -> Step:
    """Returns what becomes of the server `gh`, or of the one in the user's file where two have the name."""
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(
            text.replace("PROJECT", str(home / "project")).replace("OTHER", str(home / "other"))
        )
    found = find_servers([client], home / "project").servers
    steps = [step for step in make_plan(found, {}).steps if "command" in step.found.entry]
    assert [step.found.name for step in steps] == ["gh"]
    return steps[0]


@pytest.mark.parametrize(("client", "files", "keys"), CARRIED.values(), ids=CARRIED)
def test_a_restriction_is_carried_over(
    home: Path, client: str, files: Mapping[str, str], keys: Mapping[str, Any]
) -> None:
    step = only_step(home, client, files)
    assert step.fate == "added", step.why
    entry = {key: value for key, value in step.entry.items() if key not in ("command", "args", "env", "cwd")}
    assert entry == keys
    told = "\n".join(step.found.restrictions)
    words = {
        "disabled": "left out (",
        "disabledTools": "without delete (",
        "askTools": "asked about before each call (",
    }
    assert all(words[key] in told for key in keys), told


@pytest.mark.parametrize(("client", "files", "place"), ASKED.values(), ids=ASKED)
def test_the_user_is_asked_about_a_server_of_which_a_file_says_something_else(
    home: Path, client: str, files: Mapping[str, str], place: str
) -> None:
    step = only_step(home, client, files)
    assert (step.fate, step.entry["askTools"]) == ("added", ["*"]), step.why
    told = "\n".join(step.found.restrictions)
    assert "asked about before each call (" in told and place in told


@pytest.mark.parametrize(("client", "files", "why"), LEFT.values(), ids=LEFT)
def test_a_server_stays_of_which_another_entry_says_something(
    home: Path, client: str, files: Mapping[str, str], why: str
) -> None:
    step = only_step(home, client, files)
    assert step.fate == "unusable"
    assert why in step.why


@pytest.mark.parametrize(("client", "files"), FREE.values(), ids=FREE)
def test_what_is_of_others_restricts_nothing(home: Path, client: str, files: Mapping[str, str]) -> None:
    step = only_step(home, client, files)
    assert (step.fate, step.found.restrictions) == ("added", ())
    assert not step.entry.keys() & {"disabledTools", "askTools", "disabled", "enabledTools", "autoApprove"}


def test_each_client_that_keeps_rules_in_files_is_in_the_table() -> None:
    assert {client for client, _, _ in CARRIED.values()} == CLIENTS.keys() - {"claude-desktop", "windsurf"}
