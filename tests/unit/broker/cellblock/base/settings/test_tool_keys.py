"""Keys with which other clients restrict a server's tools: read as what they mean, or an error with their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import load_settings, parse_settings
from cellblock.app.config.references import variables_of
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.settings import ServerConfig

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
