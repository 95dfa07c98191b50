"""Help: every command has examples that its parser takes; a command line that is not taken says what would be."""

import argparse
import pkgutil
import re
import shlex

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
from cellblock.app.cli.main import main
from cellblock.app.cli.parser import make_parser

PARSER = make_parser()
COMMANDS = dict(all_commands(PARSER))


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
    assert (COMMANDS[path].description or "").endswith(".")
    assert all(f"  {line}\n      {meaning}\n" in text for line, meaning in HELP[path].examples)
    codes = [rf"^  {code} +{re.escape(meaning)}$" for code, meaning in exit_codes(path).items()]
    assert all(re.search(code, text, re.M) for code in codes)
    for action in COMMANDS[path]._actions:
        assert action.help or action.choices or not action.option_strings, (path, action)


@pytest.mark.parametrize("line", [line for words in HELP.values() for line, _ in words.examples])
def test_every_example_is_a_command_line_that_is_taken(line: str) -> None:
    words = shlex.split(line.partition(" | ")[0])
    if words[0] == "claude":
        words = words[words.index("--") + 1 :]
    words = words[: next((index for index, word in enumerate(words) if word in (">", "<")), None)]
    assert words[0] == "cellblock"
    assert PARSER.parse_args(words[1:]).command == words[1]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "cellblock")
def test_every_command_names_a_function_that_does_its_work(path: str) -> None:
    work = COMMANDS[path].get_default("work")
    has_commands = any(isinstance(action, argparse._SubParsersAction) for action in COMMANDS[path]._actions)  # pyright: ignore[reportPrivateUsage]
    assert has_commands == (work is None)
    assert work is None or callable(pkgutil.resolve_name(f"cellblock.app.cli.{work}"))


def test_the_exit_codes_are_those_of_the_program() -> None:
    assert {EXIT_OK, EXIT_NO, EXIT_USAGE, EXIT_UNAVAILABLE} <= set(EXIT_CODES)
    assert exit_codes("run")[1] == "the script ended with an error diagnostic"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        PARSER.parse_args(words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    return said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        # No command is a question for help.
        ([], ["cellblock demo\n      see it work", "run one script"]),
        (["schemas"], ["cellblock schemas export", "diff"]),
        (["record"], ["usage: cellblock record"]),
        (["run", "x.js", "--timeout-ms", "no"], ["usage: cellblock run"]),
        # A variable that is not set is neither the default nor the folder that one is in.
        (["doctor", "--config", ""], ["argument --config: it is empty"]),
        (["doctor", "--state-dir", ""], ["argument --state-dir: it is empty"]),
    ],
)
def test_other_mistakes_show_the_usage(
    words: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *words)
    assert all(one in said for one in told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serv"], "Did you mean `cellblock serve`?"),
        (["docter"], "Did you mean `cellblock doctor`?"),
        (["auth", "logn"], "Did you mean `cellblock auth login`?"),
        (["xyzzy"], "There are: run, record,"),
        (["auth", "xyzzy"], "There are: login, status, list, logout."),
    ],
)
def test_a_slip_of_the_pen(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, *words)
    assert told in said and said.count("\n") == 1


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr()
        assert (ended.value.code, said.err) == (0, "")
        return said.out

    for words in ([], ["run"], ["config", "check"]):
        assert shown("help", *words) == shown(*words, "--help")
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["help", "serv"])
    assert "Did you mean `cellblock serve`?" in capsys.readouterr().err
