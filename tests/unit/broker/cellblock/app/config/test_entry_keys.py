"""Keys of a server's entry: slips of the pen are errors, editors' own keys are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.entry_keys import FOREIGN_KEYS, entry_problems, slips
from cellblock.app.config.formats import TOOL_KEYS, URL_KEYS, normal
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.server import SERVER_KEYS


def problems_of(**entry: Any) -> list[tuple[str, str, str]]:
    raw = {"mcpServers": {"a": entry}}
    found = entry_problems(normal(raw), SERVER_KEYS)
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


@pytest.mark.parametrize("key", sorted({*FOREIGN_KEYS, *URL_KEYS, *SERVER_KEYS, *TOOL_KEYS}))
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


def test_a_key_that_nobody_is_known_to_read_is_an_error() -> None:
    ((severity, place, hint),) = problems_of(command="x", learntIn2027=True)
    assert (severity, place) == ("error", "mcpServers.a.learntIn2027")
    assert hint.startswith("Keys here: command, args, ")
    assert "cellblock.ignored_server_keys" in hint
    with pytest.raises(ConfigProblems, match="learntIn2027: unknown key"):
        parse_settings({"mcpServers": {"a": {"command": "x", "learntIn2027": True}}})


@pytest.mark.parametrize("key", ["learntIn2027", "argss"])
def test_a_key_that_the_configuration_says_is_another_programs_is_left_alone(key: str) -> None:
    raw = {
        "mcpServers": {"a": {"command": "x", key: True}},
        "cellblock": {"ignored_server_keys": ["other", key]},
    }
    assert entry_problems(normal(raw), SERVER_KEYS) == []
    assert [*parse_settings(raw).servers] == ["a"]


def test_a_list_of_ignored_keys_that_is_none_is_told_by_its_own_place() -> None:
    raw = {"mcpServers": {"a": {"command": "x"}}, "cellblock": {"ignored_server_keys": {"b": 1}}}
    with pytest.raises(ConfigProblems, match=r"cellblock\.ignored_server_keys"):
        parse_settings(raw)


@pytest.mark.parametrize("key", ["_args", "//env", "$comment", "#command", "", "_comment"])
def test_notes_and_keys_that_are_taken_out_are_left_alone(key: str) -> None:
    assert problems_of(**{"command": "x", key: []}) == []


def test_a_misspelt_command_is_told_once() -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse_settings({"mcpServers": {"a": {"comand": "x"}, "b": {"argss": []}}})
    assert [problem.place for problem in caught.value.problems] == [
        "mcpServers.a.comand",
        "mcpServers.b.argss",
        "mcpServers.b",
    ]


def test_the_place_is_that_of_the_file_and_entries_that_are_none_are_left_to_the_validation() -> None:
    raw = {"mcp": {"servers": {"a": {"command": "x", "argss": []}, "b": 5}}}
    (problem,) = entry_problems(normal(raw), SERVER_KEYS)
    assert problem.place == "mcp.servers.a.argss"


def test_a_disabled_servers_slip_is_an_error_too() -> None:
    with pytest.raises(ConfigProblems, match="argss"):
        parse_settings({"mcpServers": {"a": {"command": "x", "disabled": True, "argss": []}}})


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
