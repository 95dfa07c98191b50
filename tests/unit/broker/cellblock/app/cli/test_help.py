"""Help: every command has examples that its parser takes, and says its exit codes."""

from __future__ import annotations

import argparse
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.app.cli.help import (
    EXIT_CODES,
    EXIT_NO,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    GROUPS,
    HELP,
    all_commands,
    exit_codes,
)
from cellblock.app.cli.parser import make_parser

COMMANDS = dict(all_commands(make_parser()))


def test_every_command_has_examples_and_no_other_has() -> None:
    assert set(HELP) == set(COMMANDS)
    assert all(words.examples for words in HELP.values())


def test_every_command_stands_in_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(path for path in COMMANDS if path and " " not in path)
    text = COMMANDS[""].format_help()
    shown = re.findall(
        r"^    ([a-z]+)(?=  |$)", text.partition("commands:\n")[2].partition("\noptions:")[0], re.M
    )
    assert shown == listed
    assert [re.search(rf"^  {group}:$", text, re.M) is not None for group in GROUPS] == [True] * len(GROUPS)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "cellblock")
def test_help_says_what_it_does_how_and_the_exit_codes(path: str) -> None:
    text = COMMANDS[path].format_help()
    assert COMMANDS[path].description and COMMANDS[path].description.endswith(".")
    for line, meaning in HELP[path].examples:
        assert f"  {line}\n      {meaning}\n" in text
    for code, meaning in exit_codes(path).items():
        assert re.search(rf"^  {code} +{re.escape(meaning)}$", text, re.M)
    for action in COMMANDS[path]._actions:
        assert action.help or action.choices or not action.option_strings, (path, action)


LINES = [line for words in HELP.values() for line, _ in words.examples]


@pytest.mark.parametrize("line", LINES)
def test_every_example_is_a_command_line_that_is_taken(line: str) -> None:
    words = shlex.split(line.partition(" | ")[0])
    if words[0] == "claude":
        words = words[words.index("--") + 1 :]
    words = words[: next((index for index, word in enumerate(words) if word in (">", "<")), None)]
    assert words[0] == "cellblock"
    parsed = make_parser().parse_args(words[1:])
    assert parsed.command == words[1]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "cellblock")
def test_every_command_names_a_function_that_does_its_work(path: str) -> None:
    work = COMMANDS[path].get_default("work")
    has_commands = any(isinstance(action, argparse._SubParsersAction) for action in COMMANDS[path]._actions)
    assert has_commands == (work is None)
    assert work is None or callable(pkgutil.resolve_name(f"cellblock.app.cli.{work}"))


def test_the_page_is_current() -> None:
    script = Path(__file__).parents[6] / "scripts" / "gen_cli_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_exit_codes_are_those_of_the_program() -> None:
    assert {EXIT_OK, EXIT_NO, EXIT_USAGE, EXIT_UNAVAILABLE} <= set(EXIT_CODES)
    assert exit_codes("run")[1] == "the script ended with an error diagnostic"
