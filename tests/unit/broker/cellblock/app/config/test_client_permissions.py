"""What a client's permission files deny by name is left out of an import; about servers of which they say more,
Cellblock asks. They are in force, too, where every command reads that client's own file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock.app.cli.importing.entries import find_servers
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.cli.importing.plan import Step, make_plan
from cellblock.app.config import client_permissions
from cellblock.app.config.client_permissions import ClientPermissions
from cellblock.app.config.load import load_settings
from cellblock.base.settings.settings import Settings

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
    assert step.fate == "unusable" and why in step.why


@pytest.mark.parametrize(("client", "files"), FREE.values(), ids=FREE)
def test_what_is_of_others_restricts_nothing(home: Path, client: str, files: Mapping[str, str]) -> None:
    step = only_step(home, client, files)
    assert (step.fate, step.found.restrictions) == ("added", ())
    assert not step.entry.keys() & {"disabledTools", "askTools", "disabled", "enabledTools", "autoApprove"}


def test_each_client_that_keeps_rules_in_files_is_in_the_table() -> None:
    assert {client for client, _, _ in CARRIED.values()} == CLIENTS.keys() - {"claude-desktop", "windsurf"}


def loaded(home: Path, file: str, key: str = "mcpServers", **beside: object) -> Settings:
    beside = {file: {key: {"gh": {"command": "gh"}, "web": {"command": "web"}}}, **beside}
    for name, data in beside.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return load_settings(home / file)


def test_a_project_of_claude_code(home: Path) -> None:
    said = {
        "disabledMcpjsonServers": ["web"],
        "permissions": {"deny": ["mcp__gh__delete"], "ask": ["mcp__gh__push"]},
    }
    settings = loaded(home, "p/.mcp.json", **{"p/.claude/settings.json": said})
    gh = settings.servers["gh"]
    assert (gh.refusal("delete", "delete"), gh.asks_about("list", "list")) == ("disabledTools", True)
    assert settings.servers["web"].disabled
    # A daemon reads the file again when one of these changes.
    assert home / "p/.claude/settings.json" in settings.files
    assert [warning.partition("by the client's own settings it is ")[2] for warning in settings.warnings] == [
        "without delete (permissions.deny in ~/p/.claude/settings.json), asked about before each call "
        "(permissions.ask in ~/p/.claude/settings.json). Take the rule out there, or add the server to a file of "
        "your own.",
        "left out (disabledMcpjsonServers in ~/p/.claude/settings.json). Take the rule out there, or add the server "
        "to a file of your own.",
    ]
    assert ".mcp.json:1:17: mcpServers.gh: " in settings.warnings[0]


def test_the_users_file_of_claude_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "p").mkdir()
    monkeypatch.chdir(home / "p")
    settings = loaded(
        home,
        ".claude.json",
        **{".claude/settings.json": {"deniedMcpServers": [{"serverName": "gh"}]}},
    )
    assert (settings.servers["gh"].disabled, settings.servers["web"].disabled) == (True, False)


@pytest.mark.parametrize(
    ("file", "key", "beside"),
    [
        (
            "p/.cursor/mcp.json",
            "mcpServers",
            {"p/.cursor/cli.json": {"permissions": {"deny": ["Mcp(gh:delete)"]}}},
        ),
        (
            ".gemini/settings.json",
            "mcpServers",
            {".gemini/mcp-server-enablement.json": {"gh": {"enabled": False}}},
        ),
        ("p/.vscode/mcp.json", "servers", {"p/.vscode/settings.json": {"chat.mcp.access": "none"}}),
        (
            ".config/Code/User/mcp.json",
            "servers",
            {".config/Code/User/settings.json": {"chat.mcp.access": "none"}},
        ),
    ],
)
def test_files_of_other_clients(home: Path, file: str, key: str, beside: dict[str, object]) -> None:
    gh = loaded(home, file, key, **beside).servers["gh"]
    assert gh.disabled or gh.refusal("delete", "delete") == "disabledTools"


@pytest.mark.parametrize("text", ["{", "[]", '{"permissions": []}', '{"permissions": {"deny": 3}}'])
def test_the_user_is_asked_about_all_servers_where_a_file_is_not_understood(home: Path, text: str) -> None:
    settings = loaded(home, "p/.mcp.json", **{"p/.claude/settings.json": text})
    assert all(server.asks_about("list", "list") for server in settings.servers.values())
    assert all(
        "asked about before each call (" in one and "~/p/.claude/settings.json" in one
        for one in settings.warnings
    )
    assert len(settings.warnings) == 2


def test_what_an_entry_allows_does_not_weaken_what_a_file_says(home: Path) -> None:
    (home / "p").mkdir()
    own = {"mcpServers": {"gh": {"command": "gh", "alwaysAllow": ["delete"], "disabledTools": ["x"]}}}
    said = {"permissions": {"deny": ["mcp__gh__del*", "mcp__gh__y"]}}
    settings = loaded(home, "p/.mcp.json", **{"p/.claude/settings.json": said, "p/.mcp.json": own})
    gh = settings.servers["gh"]
    assert gh.auto_approve == ["delete"] and gh.asks_about("delete", "delete")
    assert gh.disabled_tools == ["x", "y"]


def test_a_list_that_is_none_is_left_for_the_validation(home: Path) -> None:
    (home / "p/.claude").mkdir(parents=True)
    (home / "p/.claude/settings.json").write_text('{"permissions": {"deny": ["mcp__gh__b"]}}')
    permissions = ClientPermissions("claude-code", home / "p")
    entry = {"command": "x", "disabledTools": "all"}
    assert permissions.restricted("gh", entry, of_project=True)[0] == entry


@pytest.mark.parametrize(
    ("name", "rule", "means"),
    [
        ("git hub", "mcp__git_hub__push", True),
        ("GitHub", "mcp__github__push", True),
        ("gh", "mcp__g?__push", True),
        ("gh", "mcp__gh", True),
        ("gh", "mcp__ghost__push", False),
        ("gh", "mcp__x__gh", False),
        ("read", "Read(./.env)", False),
        ("gh", "Bash(rm *)", False),
    ],
)
def test_names_that_are_written_a_little_differently_mean_a_server(
    home: Path, name: str, rule: str, means: bool
) -> None:
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text(json.dumps({"permissions": {"ask": [rule]}}))
    made, _ = ClientPermissions("claude-code", home).restricted(name, {"command": "x"}, of_project=False)
    assert made.get("askTools") == (["*"] if means else None)


def test_a_file_of_ones_own_has_no_other_rules(home: Path) -> None:
    said = {"permissions": {"deny": ["mcp__gh"]}}
    settings = loaded(home, "p/cellblock.json", **{"p/.claude/settings.json": said})
    assert settings.servers["gh"].refusal("delete", "delete") is None
    assert settings.files == ()


def test_what_cannot_be_read_is_noted(home: Path) -> None:
    agents = home / ".claude/agents"
    (home / ".claude/settings.json").mkdir(parents=True)
    agents.mkdir()
    (agents / "a.md").write_text("---\n: {\n---\n")
    assert ClientPermissions("claude-code", home / "p").unreadable == {
        home / ".claude/settings.json": "it is a directory",
        agents / "a.md": "It is no valid YAML: while parsing a flow node",
    }
