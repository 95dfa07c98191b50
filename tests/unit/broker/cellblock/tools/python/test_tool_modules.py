"""Module paths in the configuration: what they stand for, and errors that name the place."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.errors import ConfigError
from cellblock.tools.python.python_tools import read_tool
from cellblock.tools.python.tool_modules import load_tools

Write = Callable[[str], str]

_NUMBERS = itertools.count()

TOOLS = """
from unittest.mock import MagicMock
from cellblock import tool

anything = MagicMock()  # has every attribute that is asked for


@tool()
def marked(a: int) -> int:
    "Marked."
    return a


again = marked


@tool(name="other-name")
async def other() -> None: ...


def unmarked(a: int) -> int:
    return a


class Team:
    def size(self, of: str) -> int:
        return 1


team = Team()
both = [marked, unmarked]
number = 3
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a module of a text and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text: str) -> str:
        name = f"cellblock_test_tools_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def names(paths: list[str], given: list[Any] | None = None) -> list[str]:
    return [read_tool(function).name for function in load_tools(paths, given or [])]


def test_what_paths_stand_for(write: Write) -> None:
    name = write(TOOLS)
    assert names([name]) == ["marked", "other-name"]
    assert names([f"{name}:unmarked"]) == ["unmarked"]
    assert names([f"{name}:team.size"]) == ["size"]
    assert names([f"{name}:both"]) == ["marked", "unmarked"]
    assert names([name, f"{name}:both", f"{name}:marked"]) == ["marked", "other-name", "unmarked"]


def test_functions_that_were_given_come_first_and_once(write: Write) -> None:
    name = write(TOOLS)
    __import__(name)
    marked = sys.modules[name].marked
    assert names([name], [marked]) == ["marked", "other-name"]


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("x = 1", "{}", ["no @tool() function", "{}:function"]),
        (TOOLS, "{}:markd", ["has no 'markd'", "marked"]),
        (TOOLS, "{}:team.sise", ["has no 'team.sise'", "size"]),
        (TOOLS, "{}:number", ["neither a function nor a list"]),
        (TOOLS, "{}:", ["has no ''"]),
        ("def broken(:", "{}", ["SyntaxError", "{}.py:1"]),
        ("\n1 / 0", "{}", ["ZeroDivisionError", "{}.py:2", "import {}"]),
        (
            "import cellblock_no_such_thing",
            "{}",
            ["ModuleNotFoundError", "cellblock_no_such_thing", "{}.py:1"],
        ),
        ("raise SystemExit(3)", "{}", ["SystemExit: 3"]),
        ("raise ValueError('password=hunter2hunter2')", "{}", ["ValueError", "[redacted]"]),
        ("", "cellblock_no_such_module.tools", ["there is no module cellblock_no_such_module", "PYTHONPATH"]),
        ("", "./tools.py", ["is no module path"]),
        ("", ".tools", ["is no module path"]),
        ("", "", ["is no module path"]),
        ("", ":name", ["is no module path"]),
    ],
    ids=lambda value: value.strip()[:20] if isinstance(value, str) else "",
)
def test_errors_name_the_place_and_the_reason(write: Write, text: str, path: str, said: list[str]) -> None:
    fine, name = write(TOOLS), write(text)
    with pytest.raises(ConfigError) as caught:
        load_tools([fine, path.format(name)])
    message = str(caught.value)
    for part in ("cellblock.tools[1]", *said):
        assert part.format(name) in message, message
    assert "hunter2" not in message and caught.value.hint
