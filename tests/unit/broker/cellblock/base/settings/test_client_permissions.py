"""A client's own file, read by every command: what its permission files say of its servers is in force, too."""

import json
from pathlib import Path

import pytest

from cellblock.app.config import client_permissions
from cellblock.app.config.client_permissions import ClientPermissions
from cellblock.app.config.load import load_settings
from cellblock.base.settings.settings import Settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CURSOR_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    machine = tmp_path / "etc"
    monkeypatch.setattr(client_permissions, "system_folder", lambda *_names: machine)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return tmp_path


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
    permissions = ClientPermissions("claude-code", home)
    made, _ = permissions.restricted(name, {"command": "x"}, of_project=False)
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
    unreadable = ClientPermissions("claude-code", home / "p").unreadable
    assert unreadable[home / ".claude/settings.json"] == "it is a directory"
    assert unreadable.keys() == {home / ".claude/settings.json", agents / "a.md"}
