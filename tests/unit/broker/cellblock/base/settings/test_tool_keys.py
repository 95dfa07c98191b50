"""What other clients say of a server's tools: keys of its entry, read as what they mean or an error with their place,
and a client's permission files, which are in force, too, where every command reads that client's own file."""

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config import client_permissions
from cellblock.app.config.client_permissions import ClientPermissions
from cellblock.app.config.load import load_settings, parse_settings
from cellblock.app.config.references import variables_of
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.settings import ServerConfig, Settings

TOOLS = ("read", "read-all", "write", "delete_all")


def server(**entry: Any) -> ServerConfig:
    return parse_settings({"mcpServers": {"a": {"command": "x", **entry}}}).servers["a"]


def offered(config: ServerConfig) -> list[str]:
    return [tool for tool in TOOLS if config.refusal(tool, tool.replace("-", "_")) is None]


def asked(config: ServerConfig) -> list[str]:
    return [tool for tool in TOOLS if config.asks_about(tool, tool.replace("-", "_"))]


@pytest.mark.parametrize("key", ["enabledTools", "includeTools", "enabled_tools", "available_tools", "tools"])
@pytest.mark.parametrize(
    ("listed", "beside", "there"),
    [
        (["read", "write"], {}, ["read", "write"]),
        (["read*"], {}, ["read", "read-all"]),
        (["read_all", "write(x)"], {}, ["read-all", "write"]),
        ([], {}, []),
        (["*"], {"disabledTools": ["write"]}, ["read", "read-all", "delete_all"]),
    ],
    ids=str,
)
def test_only_what_is_listed_is_there(
    key: str, listed: list[str], beside: dict[str, Any], there: list[str]
) -> None:
    assert offered(server(**{key: listed}, **beside)) == there


@pytest.mark.parametrize("key", ["disabledTools", "excludeTools", "disabled_tools"])
@pytest.mark.parametrize(
    ("listed", "beside", "there"),
    [
        (["delete_all", "read_all"], {}, ["read", "write"]),
        (["*a*"], {}, ["write"]),
        (["Read", "rea", "."], {}, [*TOOLS]),
        (["read"], {"includeTools": ["read", "write"]}, ["write"]),
        (None, {}, [*TOOLS]),
    ],
    ids=str,
)
def test_what_is_listed_is_not_there(
    key: str, listed: list[str] | None, beside: dict[str, Any], there: list[str]
) -> None:
    assert offered(server(**{key: listed}, **beside)) == there


@pytest.mark.parametrize("key", ["autoApprove", "alwaysAllow"])
def test_all_but_what_is_listed_is_asked_about(key: str) -> None:
    assert asked(server(**{key: ["read*"]})) == ["write", "delete_all"]
    assert asked(server(**{key: ["*"]})) == []
    # Editors write it into every entry.
    config = server(**{key: []})
    assert asked(config) == [] and not config.asks


@pytest.mark.parametrize(
    ("mode", "tools", "about"),
    [
        ("prompt", {"read": {"approval_mode": "approve"}}, ["read-all", "write", "delete_all"]),
        ("writes", {}, [*TOOLS]),
        ("auto", {"write": {"approval_mode": "prompt"}}, ["write"]),
        ("approve", {}, []),
    ],
    ids=["prompt", "writes", "auto", "approve"],
)
def test_codex_says_it_by_tool_and_in_general(mode: str, tools: dict[str, Any], about: list[str]) -> None:
    assert asked(server(default_tools_approval_mode=mode, tools=tools)) == about


@pytest.mark.parametrize("key", ["enabled", "isActive"])
def test_a_server_that_is_off_stays_off(key: str) -> None:
    for off in ({key: False}, {key: True, "disabled": True}, {key: False, "disabled": False}):
        assert server(**off).disabled
        assert server(**dict(reversed(off.items()))).disabled
    assert not server(**{key: True}).disabled


def test_a_server_that_is_off_elsewhere_in_the_file_stays_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {name: {"command": "x"} for name in ("a", "b", "c")}

    def off(**more: Any) -> list[str]:
        settings = parse_settings({"mcpServers": entries, **more})
        return [name for name, config in settings.servers.items() if config.disabled]

    assert off(mcp={"allowed": ["a", "b"], "excluded": ["b"]}) == ["b", "c"]
    assert off(allowMCPServers=["a"]) == ["b", "c"] and off(excludeMCPServers=["a"]) == ["a"]
    monkeypatch.chdir(tmp_path)
    projects = {str(tmp_path): {"disabledMcpServers": ["c"]}, "/elsewhere": {"disabledMcpServers": ["a"]}}
    assert off(projects=projects) == ["c"]


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ('"excludeTools": "write"', "3:18: mcpServers.a.excludeTools"),
        ('"excludeTools": [5]', "3:19: mcpServers.a.excludeTools.0"),
        ('"disabledTools": [""]', "3:20: mcpServers.a.disabledTools.0"),
        ('"enabled": "no"', "3:13: mcpServers.a.enabled"),
        ('"tools": {"x": false}', "3:12: mcpServers.a.tools.x"),
        ('"tools": "x"', "3:2: mcpServers.a.tools"),
        ('"includeTools": [], "enabledTools": ["x"]', "3:22: mcpServers.a.enabledTools"),
    ],
)
def test_what_is_not_understood_is_an_error_at_its_place(tmp_path: Path, entry: str, place: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(f'{{"mcpServers": {{\n "a": {{"command": "x",\n {entry}}}}}}}')
    with pytest.raises(ConfigProblems) as caught:
        load_settings(file)
    assert [problem.text("").removeprefix(":").startswith(place) for problem in caught.value.problems] == [
        True
    ], str(caught.value)


def test_a_list_that_refers_to_nothing_leaves_no_tool(tmp_path: Path) -> None:
    for key in ("disabledTools", "enabledTools", "askTools", "autoApprove"):
        config = server(**{key: ["${env:NOT_SET_ANYWHERE}"]})
        assert config.missing and offered(config) == []


def test_names_of_no_tool_are_found() -> None:
    config = server(disabledTools=["rite", "read*", "*"], autoApprove=["read_all"], includeTools=["x*"])
    assert config.idle_names([(tool, tool.replace("-", "_")) for tool in TOOLS]) == [
        "enabledTools names x*",
        "disabledTools names rite",
    ]


def test_a_file_of_variables_is_read_and_watched(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    entry = {"command": "x", "envFile": "${NO:-.}env", "env": {"B": "own"}}
    file.write_text(json.dumps({"mcpServers": {"a": entry, "b": {"command": "y"}}}))
    (tmp_path / ".env").write_text("# mine\nexport TOKEN=hunter2-token\nB=theirs\n")
    settings = load_settings(file)
    assert settings.servers["a"].env == {"TOKEN": "hunter2-token", "B": "own"}
    assert settings.files == (tmp_path / ".env",)
    (tmp_path / ".env").write_text("A=1\nhunter2 alone\n")
    settings = load_settings(file)
    assert settings.servers["a"].missing == ".env: line 2 is no NAME=value"
    assert "hunter2" not in settings.warnings[0] and "mcpServers.a.envFile" in settings.warnings[0]
    (tmp_path / ".env").unlink()
    settings = load_settings(file)
    assert "No such file" in (settings.servers["a"].missing or "") and settings.servers["b"].missing is None
    assert settings.files == (tmp_path / ".env",)


def test_the_lines_of_such_a_file() -> None:
    text = "A=1\n# c\n\nexport B = \"x # y\\n z\\\"\" # c\nC='q $x'#c\nD=\nE=a b#c #d\nF=#x\nG= v \nA=2\nH=it's\n"
    assert variables_of(text) == {
        "A": "2", "B": 'x # y\n z"', "C": "q $x", "D": "", "E": "a b#c", "F": "#x", "G": "v", "H": "it's",
    }  # fmt: skip
    for wrong in ("x", "=1", 'A="x', "A='x' y", "9=x"):
        with pytest.raises(ValueError, match="line 1 is no NAME=value"):
            variables_of(wrong)


@pytest.mark.parametrize(
    "keys",
    [
        {"default_tools_approval_mode": "promt"},
        {"tools": {"write": {"approval_mode": "deny"}}},
        {
            "autoApprove": 5,
            "default_tools_approval_mode": "prompt",
            "tools": {"w": {"approval_mode": "auto"}},
        },
    ],
)
def test_an_approval_that_is_not_understood_is_an_error(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigProblems):
        server(**keys)


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
    unreadable = ClientPermissions("claude-code", home / "p").unreadable
    assert unreadable[home / ".claude/settings.json"] == "it is a directory"
    assert unreadable.keys() == {home / ".claude/settings.json", agents / "a.md"}
