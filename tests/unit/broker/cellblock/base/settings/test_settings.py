"""Configuration files: what is read, what is left alone, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cellblock.app.config.load import load_settings, parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import (
    CellblockSettings,
    LimitSettings,
    PoolSettings,
    ServerConfig,
    Settings,
    UpstreamSettings,
)


def test_defaults_without_a_file() -> None:
    settings = load_settings(None)
    assert settings.servers == {}
    assert settings.cellblock == CellblockSettings()
    assert settings.state_dir.name == "cellblock"


def test_every_default_limit_is_within_its_maximum() -> None:
    limits = LimitSettings()
    for name in LimitSettings.model_fields:
        value = getattr(limits, name)
        assert 0 < value.default <= value.maximum


WHOLE: dict[str, Any] = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "server"], "env": {"A": "b"}, "disabled": True},
        "web": {"url": "https://example.com/mcp", "headers": {"X": "y"}, "type": "sse", "autoApprove": []},
    },
    "cellblock": {
        "pool": {"warm": 1, "capacity": 2},
        "limits": {"timeout_ms": {"default": 5, "maximum": 10}},
        "state_dir": "/var/lib/x",
        "tools": ["my.tools"],
    },
    "theme": "dark",
}

TOML = """
theme = "dark"
[mcpServers.files]
command = "npx"
args = ["-y", "server"]
env = { A = "b" }
disabled = true
[mcpServers.web]
url = "https://example.com/mcp"
headers = { X = "y" }
type = "sse"
autoApprove = []
[cellblock]
state_dir = "/var/lib/x"
tools = ["my.tools"]
[cellblock.pool]
warm = 1
capacity = 2
[cellblock.limits.timeout_ms]
default = 5
maximum = 10
"""


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    as_json, as_toml = tmp_path / "a.json", tmp_path / "a.TOML"
    as_json.write_text(json.dumps(WHOLE))
    as_toml.write_text(TOML)
    settings = load_settings(as_json)
    assert load_settings(str(as_toml)) == settings
    assert list(settings.servers) == ["files", "web"]
    assert settings.servers["files"].args == ["-y", "server"] and settings.servers["files"].disabled
    assert settings.servers["web"].headers == {"X": "y"}
    assert settings.cellblock.limits.timeout_ms == LimitRange(default=5, maximum=10)
    assert settings.cellblock.limits.max_tool_calls == LimitSettings().max_tool_calls
    assert settings.state_dir == Path("/var/lib/x")


def test_the_state_directory_can_be_overridden(tmp_path: Path) -> None:
    settings = parse_settings(WHOLE)
    assert settings.with_state_dir(None) is settings
    moved = settings.with_state_dir(tmp_path)
    assert moved.state_dir == tmp_path and moved.servers == settings.servers
    assert settings.with_state_dir(Path("here")).state_dir == Path.cwd() / "here"
    assert settings.state_dir == Path("/var/lib/x")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"{", "not valid"),
        (b"", "is empty"),
        (b"[]", "holds no object"),
        (b'"x"', "holds no object"),
        (b"[" * 100_000, "not valid"),
        (b"\xff\xfe", "Cannot read"),
    ],
)
def test_files_that_cannot_be_read(content: bytes, word: str, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as caught:
        load_settings(file)
    assert str(file) in caught.value.message and caught.value.hint


def test_a_file_that_is_not_there_and_one_of_the_wrong_kind(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(ConfigError, match="Cannot read"):
            load_settings(path)
    file = tmp_path / "c.toml"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="not valid"):
        load_settings(file)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"mcpServers": []}, "mcpServers"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://y"}}}, "mcpServers.a"),
        ({"mcpServers": {"a": {"command": 1}}}, "mcpServers.a.command"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "mcpServers.a.args"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}, "mcpServers.a.env.A"),
        ({"mcpServers": {"a": {"url": "http://y", "type": "carrier pigeon"}}}, "mcpServers.a.type"),
        ({"cellblock": {"pol": {}}}, "cellblock.pol"),
        ({"cellblock": {"pool": {"warm": -1}}}, "cellblock.pool.warm"),
        ({"cellblock": {"pool": {"capacity": 0}}}, "cellblock.pool.capacity"),
        (
            {"cellblock": {"limits": {"timeout_ms": {"default": 2, "maximum": 1}}}},
            "cellblock.limits.timeout_ms",
        ),
        ({"cellblock": {"limits": {"timeout_ms": "5"}}}, "cellblock.limits.timeout_ms"),
        ({"cellblock": {"max_message_bytes": 1}}, "cellblock.max_message_bytes"),
    ],
    ids=str,
)
def test_errors_name_the_place(raw: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(raw, source="my.json")
    assert caught.value.message.startswith(f"my.json: {place}: ")
    assert place in caught.value.hint or "Did you mean pool" in caught.value.hint


def test_a_server_has_a_name() -> None:
    with pytest.raises(ConfigProblems) as raised:
        parse_settings({"mcpServers": {name: {"command": "x"} for name in ("a", "", " ", "../x")}})
    assert [problem.text("f") for problem in raised.value.problems] == [
        f'f: mcpServers."{name}": a server has no name here.' for name in ("", " ")
    ]


def test_an_error_does_not_show_what_may_be_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"mcpServers": {"a": {"command": "x", "env": ["TOKEN=hunter2"]}}})
    assert "hunter2" not in str(caught.value)


def test_all_errors_are_listed() -> None:
    with pytest.raises(ConfigError, match="has 3 problems") as caught:
        parse_settings({"mcpServers": {name: {} for name in "abc"}})
    assert all(f"mcpServers.{name}: exactly one of" in caught.value.message for name in "abc")


@pytest.mark.parametrize(
    "section", [Settings, CellblockSettings, PoolSettings, LimitSettings, UpstreamSettings]
)
def test_settings_cannot_be_changed(section: Any) -> None:
    made = section()
    name = next(iter(section.model_fields))
    with pytest.raises(ValidationError):
        setattr(made, name, None)
    with pytest.raises(ValidationError):
        ServerConfig(command="x").command = "y"  # pyright: ignore[reportAttributeAccessIssue]


def test_pins_have_a_reaction_for_all_and_for_one() -> None:
    servers = {"a": {"command": "x"}, "b": {"command": "x"}}
    made = parse_settings(
        {"mcpServers": servers, "cellblock": {"pins": {"reaction": "off", "servers": {"b": "quarantine"}}}}
    )
    assert (made.cellblock.pins.for_server("a"), made.cellblock.pins.for_server("b")) == ("off", "quarantine")
    assert CellblockSettings().pins.for_server("anything") == "warn"


@pytest.mark.parametrize(
    "pins",
    [{"reaction": "ask"}, {"servers": {"a": "never"}}, {"servers": {"nobody": "warn"}}, {"reactions": "off"}],
)
def test_pins_that_make_no_sense_are_refused(pins: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"mcpServers": {"a": {"command": "x"}}, "cellblock": {"pins": pins}})
    assert "pins" in caught.value.message


def test_isolation_is_a_word_or_an_object() -> None:
    def isolation(value: object) -> tuple[str, str]:
        found = parse_settings({"cellblock": {"isolation": value}}).cellblock.isolation
        return found.mode, found.seccomp

    assert isolation("required") == ("required", "enforce")
    assert isolation({"seccomp": "log"}) == ("auto", "log")
    assert isolation({"mode": "off", "seccomp": "enforce"}) == ("off", "enforce")
    with pytest.raises(ConfigError, match=r"cellblock\.isolation: .*'required', 'auto' or 'off'"):
        isolation("perhaps")
    with pytest.raises(ConfigError, match=r"cellblock\.isolation\.seccomp"):
        isolation({"seccomp": "off"})


@pytest.mark.parametrize(
    ("given", "default", "maximum"),
    [
        (5_000, 5_000, 600_000),
        (900_000, 900_000, 900_000),
        ({"default": 5_000}, 5_000, 600_000),
        ({"default": 900_000}, 900_000, 900_000),
        ({"maximum": 1_000}, 1_000, 1_000),
        ({"maximum": 700_000}, 60_000, 700_000),
        ({"default": 1, "maximum": 2}, 1, 2),
    ],
)
def test_a_limit_may_be_a_number_or_half_a_range(given: Any, default: int, maximum: int) -> None:
    limit = parse_settings({"cellblock": {"limits": {"timeout_ms": given}}}).cellblock.limits.timeout_ms
    assert (limit.default, limit.maximum) == (default, maximum)


@pytest.mark.parametrize(
    "given", ["5s", True, -1, {}, {"defalt": 1}, {"default": 2, "maximum": 1}, {"default": "x"}, None, [1]]
)
def test_a_limit_that_is_neither_is_refused_with_its_place(given: Any) -> None:
    with pytest.raises(ConfigProblems, match=r"cellblock\.limits\.timeout_ms"):
        parse_settings({"cellblock": {"limits": {"timeout_ms": given}}})


MISPLACED = {
    ("cellblock.pins.servers.trackr", "Did you mean tracker?"),
    ("cellblock.auth.servers.tracker", "Take it out: programs are given their secrets in env."),
    ("cellblock.auth.servers.wiki", "There are: tracker."),
    ("cellblock.tools.upstream.servers.nope", "There are: tracker."),
    ("cellblock.schemas.servers.loca", "Did you mean local?"),
}


@pytest.mark.parametrize(
    ("more", "also"),
    [
        ({}, set[str]()),
        # pydantic looks at the whole only when each part is sound.
        (
            {"pol": {}, "pool": {"warm": -1}, "pins": {"reaction": "perhaps"}},
            {"cellblock.pol", "cellblock.pool.warm", "cellblock.pins.reaction"},
        ),
    ],
    ids=["alone", "beside others"],
)
def test_all_exceptions_for_servers_that_are_none_are_told_at_once(
    more: dict[str, Any], also: set[str]
) -> None:
    section: dict[str, Any] = {
        "auth": {"servers": {"tracker": {}, "wiki": {}}},
        "upstream": {"servers": {"nope": {}}},
        "schemas": {"servers": {"loca": {}}},
        **more,
    }
    section["pins"] = {**more.get("pins", {}), "servers": {"trackr": "warn"}}
    with pytest.raises(ConfigProblems) as raised:
        parse_settings({"mcpServers": {"tracker": {"command": "x"}}, "cellblock": section})
    found = {(problem.place, problem.hint) for problem in raised.value.problems}
    assert found >= MISPLACED and len(raised.value.problems) == len(MISPLACED | also)
    assert {place for place, _ in found - MISPLACED} == also
