"""The files of other clients, read as they are; positions and names stay those of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import load_settings, parse_settings
from cellblock.base.settings.problems import ConfigProblems


def load(folder: Path, content: str, name: str = "c.json") -> Any:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    return load_settings(file)


def test_vs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERPLEXITY_KEY", "from-the-environment")
    settings = load(
        tmp_path,
        """{
          // asked once
          "inputs": [{"type": "promptString", "id": "perplexity-key", "description": "Key", "password": true}],
          "servers": {
            "perplexity": {"type": "stdio", "command": "npx", "args": ["-y", "x", "${workspaceFolder}"],
                           "env": {"KEY": "${input:perplexity-key}"}, "dev": {"watch": "*"}},
            "web": {"type": "http", "url": "https://example.com/mcp"},
          },
        }""",
        ".vscode/mcp.json",
    )
    server = settings.servers["perplexity"]
    assert server.env == {"KEY": "from-the-environment"} and server.referenced == {"from-the-environment"}
    assert server.args[-1] == str(tmp_path)
    assert settings.servers["web"].url == "https://example.com/mcp"


def test_vs_codes_settings(tmp_path: Path) -> None:
    raw = {"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"a": {"command": "x"}}}}
    assert list(load(tmp_path, json.dumps(raw)).servers) == ["a"]


def test_claude_code_with_servers_of_the_project_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {
        "numStartups": 5,
        "mcpServers": {"a": {"type": "stdio", "command": "user"}, "b": {"command": "b"}},
        "projects": {
            str(tmp_path): {"mcpServers": {"a": {"command": "local"}}, "allowedTools": []},
            "/elsewhere": {"mcpServers": {"c": {"command": "c"}}},
        },
    }
    monkeypatch.chdir(tmp_path)
    settings = load(tmp_path, json.dumps(raw), ".claude.json")
    assert {name: server.command for name, server in settings.servers.items()} == {"a": "local", "b": "b"}
    monkeypatch.chdir("/")
    assert load_settings(tmp_path / ".claude.json").servers["a"].command == "user"


def test_windsurf_and_gemini_have_other_names_for_a_url() -> None:
    entries = {"w": {"serverUrl": "https://w.example/mcp"}, "g": {"httpUrl": "https://g.example/mcp"}}
    made = parse_settings({"mcpServers": entries})
    assert [server.url for server in made.servers.values()] == [
        "https://w.example/mcp",
        "https://g.example/mcp",
    ]


def test_a_place_is_that_of_the_file() -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse_settings({"servers": {"a": {"command": 1}}, "mcp": {"servers": {"b": {"args": 1}}}})
    assert {problem.place for problem in caught.value.problems} == {
        "servers.a.command",
        "mcp.servers.b.args",
    }


def test_one_name_under_two_keys_is_refused() -> None:
    with pytest.raises(ConfigProblems, match=r"servers\.a: a server of this name is under mcpServers too"):
        parse_settings({"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "y"}}})


@pytest.mark.parametrize("key", ["mcpservers", "mcp_servers", "McpServer", "celblock", "cellBlock"])
def test_a_slip_at_the_top_level_is_an_error(key: str) -> None:
    with pytest.raises(ConfigProblems, match=r"Did you mean (mcpServers|cellblock)"):
        parse_settings({key: {}})


def test_the_schema_key_and_others_own_are_left_alone() -> None:
    parse_settings(
        {"$schema": "https://x/y.json", "theme": "dark", "globalShortcut": "x", "mcp": 1, "projects": 2}
    )


def test_a_disabled_server_needs_no_secret_and_foreign_keys_are_not_resolved() -> None:
    entries = {
        "off": {"command": "x", "env": {"K": "${NOT_SET_ANYWHERE}"}, "disabled": True},
        "on": {"command": "x", "sandbox": "${command:x}"},
    }
    made = parse_settings({"mcpServers": entries})
    assert made.servers["off"].env == {"K": "${NOT_SET_ANYWHERE}"}


def test_cellblocks_own_settings_have_references_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOST", "12")
    made = parse_settings(
        {"cellblock": {"state_dir": "${NO_SUCH_VARIABLE:-/var/lib/x}", "pool": {"capacity": "${MOST}"}}}
    )
    assert made.state_dir == Path("/var/lib/x") and made.cellblock.pool.capacity == 12
