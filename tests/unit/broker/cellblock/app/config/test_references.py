"""References: what they stand for, what is said when they stand for nothing, and what is a secret from then on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.references import MAX_FILE_BYTES, Resolver, input_variable

VARIABLES = {"TOKEN": "tok-123456", "EMPTY": "", "HOME": "/home/me"}


def resolver(folder: Path, **given: Any) -> Resolver:
    return Resolver(folder / "c.json", environment=VARIABLES, **given)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:TOKEN}", "tok-123456"),
        ("Bearer ${TOKEN}!", "Bearer tok-123456!"),
        ("${NONE:-a default}", "a default"),
        ("${env:NONE:-x}", "x"),
        ("${EMPTY:-x}${EMPTY}", "x"),
        ("${NONE:-}", ""),
        ("$${TOKEN} $${env:NONE}", "${TOKEN} ${env:NONE}"),
        ("$TOKEN ${} ${1} ${a b} ${x:0:3}$", "$TOKEN ${} ${1} ${a b} ${x:0:3}$"),
        ("${pathSeparator}${/}", os.sep * 2),
        ("${userHome}", str(Path.home())),
        ("nothing", "nothing"),
    ],
)
def test_what_a_text_stands_for(text: str, value: str, tmp_path: Path) -> None:
    made = resolver(tmp_path)
    if text.startswith("$TOKEN"):
        # `${x:0:3}` looks like a kind of reference that we do not know; the shell's own must be escaped.
        made.resolve(text, ("a",))
        assert [problem.path for problem in made.problems] == [("a",)]
        text, value = text.replace("${x:0:3}", "$${x:0:3}"), value
        made = resolver(tmp_path)
    assert made.resolve(text, ()) == value
    assert made.problems == []


def test_values_are_secrets_and_defaults_and_homes_are_not(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    made = resolver(tmp_path, inputs={"pw": {"default": "shown"}})
    tree = {"a": ["${TOKEN}", "${HOME}/x", "${NO:-default}"], "b": {"c": "${file:key} ${input:pw}"}, "d": 5}
    assert made.resolve(tree, ()) == {
        "a": ["tok-123456", "/home/me/x", "default"],
        "b": {"c": "from-a-file shown"},
        "d": 5,
    }
    assert made.secrets == {"tok-123456", "from-a-file"}
    assert made.files == [tmp_path / "key"]
    assert made.names == ["env:TOKEN", "file:key"]


def test_an_input_is_a_variable_of_its_name(tmp_path: Path) -> None:
    assert input_variable("git-hub.token") == "GIT_HUB_TOKEN"
    assert input_variable("--") == "INPUT"
    made = resolver(tmp_path, inputs={"token": {"default": "not this"}})
    assert made.resolve("${input:token}", ()) == "tok-123456"
    assert made.secrets == {"tok-123456"}
    made.resolve("${input:api-key}", ("x",))
    (problem, why) = made.missing[0]
    assert "API_KEY" in problem.hint and problem.path == ("x",) and why in problem.message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("${env:NONE}", "NONE is not set"),
        ("${NONE}", "NONE is not set"),
        ("${file:missing}", "cannot be read"),
        ("${file:.}", "no regular file"),
        ("${file:fifo}", "no regular file"),
        ("${file:binary}", "no UTF-8"),
        ("${file:large}", "over 65536 bytes"),
        ("${command:pick}", "nothing that Cellblock can look up"),
        ("${workspaceFolder}/x", "no workspace"),
    ],
)
def test_what_stands_for_nothing_is_said_with_its_place(text: str, word: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    made = resolver(tmp_path)
    assert made.resolve([f"{text} ${{TOKEN}}"], ("args",)) == [f"{text} tok-123456"]
    # What no environment can give is an error; all else may be there tomorrow, or elsewhere.
    (problem,) = made.problems if "command" in text else [one for one, _ in made.missing]
    assert len(made.problems) + len(made.missing) == 1
    assert problem.path == ("args", 0) and word in problem.message and problem.hint
    assert "tok-123456" not in problem.message + problem.hint


@pytest.mark.parametrize("name", [".vscode/mcp.json", ".cursor/mcp.json", ".mcp.json"])
def test_the_workspace_is_known_from_where_an_editor_keeps_its_file(name: str, tmp_path: Path) -> None:
    made = Resolver(tmp_path / name, environment={})
    assert made.resolve("${workspaceFolder}|${workspaceFolderBasename}", ()) == f"{tmp_path}|{tmp_path.name}"
