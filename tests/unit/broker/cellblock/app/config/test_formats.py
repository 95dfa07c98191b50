"""Formats of other clients' files, and their entries' keys; what a running daemon takes over of a changed
configuration."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.formats import FOREIGN_KEYS, TOOL_KEYS, URL_KEYS, entry_problems, normal, slips
from cellblock.app.config.load import LIVE, applicable, load_settings, parse_settings
from cellblock.base.settings.problems import ConfigProblems, keys_at
from cellblock.base.settings.server import SERVER_KEYS
from cellblock.base.settings.settings import CellblockSettings


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


@pytest.mark.parametrize(
    ("raw", "servers"),
    [
        # VS Code's settings; Windsurf and Gemini, which have other names for a URL; keys of others.
        ({"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"a": {"command": "x"}}}}, {"a": "x"}),
        (
            {"mcpServers": {"w": {"serverUrl": "https://w.example"}, "g": {"httpUrl": "https://g.example"}}},
            {"w": "https://w.example", "g": "https://g.example"},
        ),
        (
            {"$schema": "https://x/y.json", "theme": "dark", "globalShortcut": "x", "mcp": 1, "projects": 2},
            {},
        ),
    ],
    ids=["VS Code", "Windsurf and Gemini", "none"],
)
def test_servers_are_found_in_files_of_others(raw: dict[str, Any], servers: dict[str, str]) -> None:
    found = parse_settings(raw).servers
    assert {name: server.url or server.command for name, server in found.items()} == servers


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


HTTP = ("http", "streamable-http", "streamable_http", "streamableHttp")


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        *(
            ({"url": "https://a.example", key: said}, "http" if said in HTTP else "sse")
            for key in ("type", "transport", "transportType")
            for said in ("sse", "SSE", *HTTP)
        ),
        # Said alike twice, of a command, and what cannot be: it costs no server.
        ({"url": "https://a.example", "type": "streamable-http", "transport": "http"}, "http"),
        ({"command": "b", "transport": "local"}, "stdio"),
        ({"command": "x", "type": "http"}, "http"),
        ({"url": "https://x", "transport": "sse", "type": "http"}, "http"),
        ({"url": "https://x", "transport": "pigeon"}, None),
    ],
    ids=str,
)
def test_a_transport_is_read_as_clients_write_it(entry: dict[str, Any], meant: str | None) -> None:
    assert parse_settings({"mcpServers": {"a": entry}}).servers["a"].type == meant


@pytest.mark.parametrize(
    ("raw", "places"),
    [
        (
            {"servers": {"a": {"command": 1}}, "mcp": {"servers": {"b": {"args": 1}}}},
            {"servers.a.command", "mcp.servers.b.args"},
        ),
        # A misspelt command is told once.
        (
            {"mcpServers": {"a": {"comand": "x"}, "b": {"argss": []}}},
            {"mcpServers.a.comand", "mcpServers.b.argss", "mcpServers.b"},
        ),
    ],
    ids=["of the file", "a misspelt command"],
)
def test_problems_have_their_places(raw: dict[str, Any], places: set[str]) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse_settings(raw)
    assert sorted(problem.place for problem in caught.value.problems) == sorted(places)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        *(({key: {}}, r"Did you mean mcpServers") for key in ("mcpservers", "mcp_servers", "McpServer")),
        *(({key: {}}, r"Did you mean cellblock") for key in ("celblock", "cellBlock")),
        (
            {"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "y"}}},
            r"servers\.a: a server of this name is under mcpServers too",
        ),
        ({"mcpServers": {"a": {"command": "x", "disabled": True, "argss": []}}}, "argss"),
    ],
    ids=str,
)
def test_a_slip_is_an_error(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigProblems, match=said):
        parse_settings(raw)


def test_a_disabled_server_needs_no_secret_and_foreign_keys_are_not_resolved() -> None:
    entries = {
        "off": {"command": "x", "env": {"K": "${NOT_SET_ANYWHERE}"}, "disabled": True},
        "on": {"command": "x", "sandbox": "${command:x}"},
    }
    assert parse_settings({"mcpServers": entries}).servers["off"].env == {"K": "${NOT_SET_ANYWHERE}"}


def test_cellblocks_own_settings_have_references_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOST", "12")
    made = parse_settings(
        {"cellblock": {"state_dir": "${NO_SUCH_VARIABLE:-/var/lib/x}", "pool": {"capacity": "${MOST}"}}}
    )
    assert made.state_dir == Path("/var/lib/x") and made.cellblock.pool.capacity == 12


def problems_of(**entry: Any) -> list[tuple[str, str, str]]:
    found = entry_problems(normal({"mcpServers": {"a": entry}}), SERVER_KEYS)
    return [(problem.severity, problem.place, problem.hint) for problem in found]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("comand", "command"),
        ("commands", "command"),
        ("Command", "command"),
        ("arg", "args"),
        ("argss", "args"),
        ("evn", "env"),
        ("Env", "env"),
        ("envs", "env"),
        ("hedaers", "headers"),
        ("header", "headers"),
        ("urls", "url"),
        ("disable", "disabled"),
        ("types", "type"),
        ("cdw", "cwd"),
    ],
)
def test_a_slip_is_an_error_that_says_what_was_meant(key: str, meant: str) -> None:
    entry = {"command": "x", key: {}}
    hint = f"Did you mean {meant}? Rename it, or take it out."
    assert problems_of(**entry) == [("error", f"mcpServers.a.{key}", hint)]
    with pytest.raises(ConfigProblems) as caught:
        parse_settings({"mcpServers": {"a": entry}})
    (problem,) = caught.value.problems
    assert (problem.place, problem.hint, problem.at_key) == (f"mcpServers.a.{key}", hint, True)


@pytest.mark.parametrize(
    "key",
    [
        *sorted({*FOREIGN_KEYS, *URL_KEYS, *SERVER_KEYS, *TOOL_KEYS}),
        # Notes, and keys that are taken out.
        *("_args", "//env", "$comment", "#command", "", "_comment"),
    ],
)
def test_no_key_of_ours_or_of_an_editor_is_a_near_miss(key: str) -> None:
    assert slips({key: None}, SERVER_KEYS) == {}
    assert problems_of(**{"command": "x", key: None}) == []


def test_a_sandbox_that_is_not_put_up_is_a_warning() -> None:
    place = "mcpServers.a.sandboxEnabled"
    assert problems_of(command="x", sandboxEnabled=True) == [
        ("warning", place, "Start it in one of your own.")
    ]
    settings = parse_settings({"mcpServers": {"a": {"command": "x", "sandboxEnabled": True}}})
    assert place in settings.warnings[0]


def test_a_key_that_nobody_is_known_to_read_costs_itself_alone() -> None:
    ((severity, place, hint),) = problems_of(command="x", learntIn2027=True)
    assert (severity, place) == ("warning", "mcpServers.a.learntIn2027")
    assert hint.startswith("Keys here: command, args, ")
    settings = parse_settings({"mcpServers": {"a": {"command": "x", "learntIn2027": True}}})
    assert [*settings.servers] == ["a"] and place in settings.warnings[0]


def test_the_place_is_that_of_the_file_and_entries_that_are_none_are_left_to_the_validation() -> None:
    raw = {"mcp": {"servers": {"a": {"command": "x", "argss": []}, "b": 5}}}
    (problem,) = entry_problems(normal(raw), SERVER_KEYS)
    assert problem.place == "mcp.servers.a.argss"


@pytest.mark.parametrize(
    ("command", "args", "hint"),
    [
        ("npx -y foo", [], 'Write "command": "npx", "args": ["-y", "foo"].'),
        ("uvx 'a b'", ["--x"], 'Write "command": "uvx", "args": ["a b", "--x"].'),
        ("python3", [], None),
        ("/opt/it's here", [], None),
    ],
)
def test_a_command_that_is_a_line_for_a_shell_is_told(
    command: str, args: list[str], hint: str | None
) -> None:
    told = [("warning", "mcpServers.a.command", hint)] if hint else []
    assert problems_of(command=command, args=args) == told


def test_a_program_may_have_a_blank_in_its_name(tmp_path: Path) -> None:
    program = tmp_path / "my server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert problems_of(command=str(program)) == []


def test_every_live_setting_is_one() -> None:
    for name in LIVE:
        *section, last = name.split(".")
        assert last in keys_at(CellblockSettings, section), name


@pytest.mark.parametrize(
    ("old", "new", "live", "waiting"),
    [
        ({}, {}, [], []),
        ({"typecheck_timeout_ms": 5}, {"typecheck_timeout_ms": 6}, ["typecheck_timeout_ms"], []),
        (
            {"limits": {"timeout_ms": [5, 9]}},
            {"limits": {"timeout_ms": [6, 9], "max_memory_bytes": [9, 9]}},
            ["limits.timeout_ms"],
            ["limits.max_memory_bytes"],
        ),
        ({"pins": {"a": "off"}}, {"pins": "off"}, ["pins", "pins.a"], []),
        ({}, {"pool": {"capacity": 3}, "state_dir": "/x"}, [], ["pool.capacity", "state_dir"]),
        (
            {},
            {"http": {"oauth": {"issuer": "https://a", "audience": "https://b", "jwks_url": "https://c"}}},
            [],
            4,
        ),
    ],
)
def test_what_changes_at_once_and_what_waits(
    old: dict[str, Any], new: dict[str, Any], live: list[str], waiting: Any
) -> None:
    servers = {"a": {"command": "x"}}
    before = parse_settings({"mcpServers": servers, "cellblock": old})
    after = parse_settings({"mcpServers": {**servers, "b": {"command": "y"}}, "cellblock": new})
    made, now, later = applicable(before, after)
    assert now == live
    assert later == waiting if isinstance(waiting, list) else len(later) == waiting
    at_once = attrgetter(
        "servers", "cellblock.typecheck_timeout_ms", "cellblock.limits.timeout_ms", "cellblock.pins"
    )
    waits = attrgetter("cellblock.limits.max_memory_bytes", "cellblock.pool", "state_dir")
    assert (at_once(made), waits(made)) == (at_once(after), waits(before))
