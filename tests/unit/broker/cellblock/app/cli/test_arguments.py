"""A command line that is not taken says what would be."""

from __future__ import annotations

import pytest

from cellblock.app.cli.main import main
from cellblock.app.cli.parser import make_parser


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    return said.err


def test_no_command_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys)
    assert "cellblock demo\n      see it work" in said and "run one script" in said
    said = refused(capsys, "schemas")
    assert "cellblock schemas export" in said and "diff" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serv"], "Did you mean `cellblock serve`?"),
        (["docter"], "Did you mean `cellblock doctor`?"),
        (["auth", "logn"], "Did you mean `cellblock auth login`?"),
        (["xyzzy"], "There are: run, record,"),
        (["auth", "xyzzy"], "There are: login, status, logout."),
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
    with pytest.raises(SystemExit) as ended:
        main(["help", "serv"])
    assert ended.value.code == 2
    assert "Did you mean `cellblock serve`?" in capsys.readouterr().err


def test_other_mistakes_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: cellblock run" in refused(capsys, "run")
    assert "--typecheck: invalid choice" in refused(capsys, "run", "x.js", "--typecheck", "no")
    # A variable that is not set is neither the default nor the folder that one is in.
    for option in ("--config", "--state-dir"):
        assert f"argument {option}: it is empty" in refused(capsys, "doctor", option, "")
