"""A client's own file, read by every command: what the client's other settings say of its servers is in force, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellblock.config.client_rules import claude_code
from cellblock.config.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CURSOR_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    machine = tmp_path / "etc"
    monkeypatch.setattr(claude_code, "system_folder", lambda *_names: machine)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return tmp_path


def loaded(home: Path, file: str, key: str = "mcpServers", **beside: object) -> Settings:
    beside = {file: {key: {"gh": {"command": "gh"}, "web": {"command": "web"}}}, **beside}
    for name, data in beside.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(json.dumps(data))
    return load_settings(home / file)


def test_a_project_of_claude_code(home: Path) -> None:
    said = {
        "disabledMcpjsonServers": ["web"],
        "permissions": {"deny": ["mcp__gh__delete"], "ask": ["mcp__gh__push"]},
    }
    settings = loaded(home, "p/.mcp.json", **{"p/.claude/settings.json": said})
    gh = settings.servers["gh"]
    assert (gh.refusal("delete", "delete"), gh.asks_about("push", "push")) == ("disabledTools", True)
    assert settings.servers["web"].disabled
    # A daemon reads the file again when one of these changes.
    assert home / "p/.claude/settings.json" in settings.files
    assert settings.warnings == ()


def test_the_users_file_of_claude_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "p").mkdir()
    monkeypatch.chdir(home / "p")
    settings = loaded(
        home, ".claude.json", **{".claude/settings.json": {"deniedMcpServers": [{"serverName": "gh"}]}}
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


def test_a_server_whose_rule_is_not_understood_is_left_out_and_told(home: Path) -> None:
    said = {"permissions": {"deny": ["mcp__gh__delete(repo:prod)"]}}
    settings = loaded(home, "p/.mcp.json", **{"p/.claude/settings.json": said})
    assert (settings.servers["gh"].disabled, settings.servers["web"].disabled) == (True, False)
    (warning,) = settings.warnings
    assert (
        ".mcp.json:1:17: mcpServers.gh: the server is left out: permissions.deny in ~/p/.claude/" in warning
    )


def test_a_file_of_ones_own_has_no_other_rules(home: Path) -> None:
    said = {"permissions": {"deny": ["mcp__gh"]}}
    settings = loaded(home, "p/cellblock.json", **{"p/.claude/settings.json": said})
    assert settings.servers["gh"].refusal("delete", "delete") is None
    assert settings.files == ()
