"""Keys that are missing, removed, and in the schema that editors read; keys with which other clients restrict a
server's tools: read as what they mean, or an error with their place."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cellblock.app.cli.config_check import check_config
from cellblock.app.cli.doctor import fix_of
from cellblock.app.config.formats import value_at
from cellblock.app.config.load import load_settings, parse_settings
from cellblock.app.config.references import variables_of
from cellblock.base.errors import ConfigError
from cellblock.base.settings.older import REMOVED, without_removed
from cellblock.base.settings.problems import ConfigProblems, keys_at
from cellblock.base.settings.settings import CellblockSettings, ServerConfig
from cellblock.base.settings.syntax import parse
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.target import target_of
from support.documents import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8"))
CHECKER: Any = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


@pytest.mark.parametrize(
    ("raw", "sound"),
    [
        ({}, True),
        ({"$schema": "x", "theme": "dark"}, True),
        ({"mcpServers": {"a": {"command": "x", "alwaysAllow": []}}}, True),
        ({"servers": {"a": {"url": "http://x", "type": "http"}}, "inputs": []}, True),
        ({"mcpServers": {"a": {"command": ""}}}, False),
        ({"mcpServers": {"a": {"command": "x\0"}}}, False),
        ({"mcpServers": {"a": {"command": "x", "args": ["", "y\0"]}}}, False),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": "\0"}}}}, False),
        ({"mcpServers": {"a": {"serverUrl": "http://x"}}}, True),
        ({"cellblock": {"pool": {"warm": 1}, "hosts": {"local": True}}}, True),
        ({"cellblock": {"schemas": {"learn": {"local": False}}}}, True),
        ({"cellblock": {"pins": "quarantine", "journal": {"mode": {"cli": "all"}}}}, True),
        ({"mcpServers": {"a": {}}}, False),
        ({"mcpServers": {"a": {"command": 1}}}, False),
        ({"mcpServers": {"a": {"url": "http://x", "type": "pigeon"}}}, False),
        ({"cellblock": {"pol": {}}}, False),
        ({"cellblock": {"pool": {"warm": -1}}}, False),
        ({"cellblock": {"limits": {"timeout_ms": [1, 2]}}}, True),
        ({"cellblock": {"limits": {"timeout_ms": 1}}}, True),
        ({"cellblock": {"limits": {"timeout_ms": "1"}}}, False),
        ({"cellblock": {"schemas": {"lern": {"local": True}}}}, False),
        ({"cellblock": {"pins": {"*": "perhaps"}}}, False),
    ],
    ids=str,
)
def test_schema_and_program_agree(raw: dict[str, Any], sound: bool) -> None:
    assert CHECKER.is_valid(raw) is sound
    with contextlib.nullcontext() if sound else pytest.raises(ConfigProblems):
        parse_settings(raw)


def test_every_setting_is_described() -> None:
    bare = [
        f"{name}.{key}"
        for name, definition in SCHEMA["$defs"].items()
        for key, entry in definition.get("properties", {}).items()
        if "description" not in entry and "$ref" not in entry and "anyOf" not in entry
    ]
    assert bare == []
    defaults = SCHEMA["$defs"][CellblockSettings.__name__]["properties"]
    assert defaults["typecheck"]["default"] == "after" and "compiler" in defaults["typecheck"]["description"]


def test_the_examples_of_the_page_are_sound() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)```", page, re.S)
    assert examples
    for text in examples:
        raw = parse(text, toml=False)
        CHECKER.validate(raw)
        parse_settings(raw)


FILE = """{"mcpServers": {
  "a": {"command": "x", "args": ["${env:NONE_1}", "${NONE_2}"], "type": "${NONE_1}"},
  "b": {"url": "${env:NONE_3}", "headers": {"A": "${file:none}"}},
  "c": {"command": "y", "env": {"KEY": "${HERE}"}}},
 "cellblock": {"pins": {"a": "off"}, "auth": {"servers": {"b": {}}},
  "upstream": {"call_timeout_ms": {"b": 5}}, "schemas": {"learn": {"a": false}}}}"""


def test_all_of_them_are_told_at_once_and_stop_their_own_servers(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "hunter2-here")
    file.write_text(FILE)
    settings = load_settings(file)
    assert {name: config.missing for name, config in settings.servers.items()} == {
        "a": "the environment variable NONE_1 is not set; the environment variable NONE_2 is not set",
        "b": f"the environment variable NONE_3 is not set; {tmp_path}/none cannot be read: No such file or directory",
        "c": None,
    }
    assert settings.servers["c"].env == {"KEY": "hunter2-here"}
    assert [warning.partition(": ${")[0].removeprefix(f"{file}:") for warning in settings.warnings] == [
        "2:34: mcpServers.a.args.0",
        "2:51: mcpServers.a.args.1",
        "2:73: mcpServers.a.type",
        "3:16: mcpServers.b.url",
        "3:50: mcpServers.b.headers.A",
    ]
    for told in ("Set NONE_1 where Cellblock is started", "Until then the server a is not started."):
        assert told in settings.warnings[0]
    # A secret that is made later is seen: its place is watched.
    assert settings.files == (tmp_path / "none",)
    checked = check_config(file)
    assert not checked.errors and checked.sentences() == [*settings.warnings]
    assert checked.servers == {"a": "not started", "b": "not started", "c": "stdio"}
    with pytest.raises(ConfigError, match=r"b cannot be reached: .*NONE_3 is not set"):
        target_of("b", settings.servers, settings.cellblock.auth, LocalStore(settings.state_dir))
    assert "Set it where" in fix_of(settings.servers["a"], "", tmp_path)


@pytest.mark.parametrize(
    "section",
    [
        {"policy": {"clients": {"oauth:${NONE}": {}, "cli": {"tools": ["${env:NONE}"]}}}},
        {"http": {"allowed_hosts": ["${file:none}"]}},
        {"auth": {"servers": {"b": {"issuer": "https://x.example", "client_id": "${NONE}"}}}},
    ],
)
def test_a_restriction_is_never_left_out(file: Path, section: object) -> None:
    servers = {"b": {"url": "https://x.example"}, "other": {"command": "${NONE_4}"}}
    file.write_text(json.dumps({"mcpServers": servers, "cellblock": section}))
    with pytest.raises(ConfigError, match=r"cellblock\..*(is not set|cannot be read)"):
        load_settings(file)
    # What is missing elsewhere is listed with it.
    assert any("NONE_4" in sentence for sentence in check_config(file).sentences())


def section_of(setting: str, value: object) -> dict[str, Any]:
    made: Any = value
    for key in reversed(setting.replace("*", "some").split(".")):
        made = {key: made}
    return made


@pytest.mark.parametrize("setting", REMOVED)
def test_each_is_no_setting_any_more(setting: str) -> None:
    path = ("cellblock", *setting.replace("*", "some").split("."))
    said = REMOVED[setting]
    value = "?" if isinstance(said, str) else said.value
    left, [problem] = without_removed(section_of(setting, value), path[:1])
    assert (problem.path, problem.severity) == (path, "warning")
    assert value_at(left, path[1:]) is None
    if not isinstance(said, str):
        _, [problem] = without_removed(section_of(setting, "?"), path[:1])
        assert (problem.path, problem.severity, problem.hint) == (path, "error", said.hint)
    assert path[-1] not in keys_at(CellblockSettings, path[1:-1])


def test_a_removed_setting_is_told_with_its_place_and_what_holds_instead(file: Path) -> None:
    section = {"upstream": {"retry_first_ms": 10, "call_timeout_ms": 7}}
    file.write_text(json.dumps({"cellblock": section}, indent=1))
    settings = load_settings(file)
    assert settings.cellblock.upstream.call_timeout_ms == {"*": 7}
    assert settings.warnings == (
        f"{file}:4:4: cellblock.upstream.retry_first_ms: no longer a setting; "
        "Cellblock uses 500. Take it out.",
    )


def settings_below(*path: str) -> list[tuple[str, ...]]:
    keys = keys_at(CellblockSettings, path)
    return [path, *(below for key in keys for below in settings_below(*path, key))]


def told(section: Any) -> list[str]:
    try:
        parse_settings({"cellblock": section})
    except ConfigProblems as error:
        return [f"{problem.place}: {problem.message}" for problem in error.problems]
    return []


def test_each_mistake_is_told_once_and_in_words_of_our_own() -> None:
    """A value that fits none of several kinds is one mistake, where pydantic finds several."""
    for path in settings_below()[1:]:
        for wrong in ("yess", -1, True, [5], {}):
            # `http.oauth` and others need more than one key.
            said = told(section_of(".".join(path), wrong))
            found = [one for one in said if not re.search("it is needed,|`command` is", one)]
            words = re.compile(r"[Ii]nput should|valid|literal|union|\[key\]|<class")
            assert len(found) <= 1 and not any(map(words.search, found)), (path, wrong, found)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"audit": "inputs"}, 'audit: "off" or a list of "calls", "inputs" and "outputs" is needed'),
        ({"audit": ["all"]}, 'audit.0: "calls", "inputs" or "outputs" is needed'),
        (
            {"policy": {"flows": "on"}},
            'policy.flows: "off", "guard" or a list of at most 500 objects and "guard" is needed',
        ),
        ({"policy": {"flows": [{"then": "no"}]}}, 'policy.flows.0.then: "allow", "ask" or "deny" is needed'),
        (
            {"limits": {"timeout_ms": "5s"}},
            "limits.timeout_ms: a whole number (at least 0) or [DEFAULT, MAXIMUM] is needed",
        ),
        ({"limits": {"timeout_ms": ["5s", 6]}}, "limits.timeout_ms.0: a whole number (at least 0) is needed"),
        ({"pool": {"warm": 5000}}, "pool.warm: a whole number (0 to 1,024) is needed"),
        ({"pins": "never"}, 'pins: "auto", "off", "warn", "quarantine" or an object is needed'),
        ({"traces": "collector"}, "traces: a text such as https://host/path is needed"),
        ({"policy": {"default": {"tools": ["x"]}}}, "policy.default.tools.0: 'x' is no pattern"),
    ],
)
def test_an_error_says_what_may_stand_there(section: Any, expected: str) -> None:
    (found,) = told(section)
    assert found.startswith(f"cellblock.{expected}")


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
def test_what_is_not_understood_is_an_error_at_its_place(file: Path, entry: str, place: str) -> None:
    file.write_text(f'{{"mcpServers": {{\n "a": {{"command": "x",\n {entry}}}}}}}')
    with pytest.raises(ConfigProblems) as caught:
        load_settings(file)
    (problem,) = caught.value.problems
    assert problem.text("").startswith(f":{place}")


def test_a_list_that_refers_to_nothing_leaves_no_tool() -> None:
    for key in ("disabledTools", "enabledTools", "askTools", "autoApprove"):
        config = server(**{key: ["${env:NOT_SET_ANYWHERE}"]})
        assert config.missing and offered(config) == []


def test_names_of_no_tool_are_found() -> None:
    config = server(disabledTools=["rite", "read*", "*"], autoApprove=["read_all"], includeTools=["x*"])
    assert config.idle_names([(tool, tool.replace("-", "_")) for tool in TOOLS]) == [
        "enabledTools names x*",
        "disabledTools names rite",
    ]


def test_a_file_of_variables_is_read_and_watched(file: Path, tmp_path: Path) -> None:
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
