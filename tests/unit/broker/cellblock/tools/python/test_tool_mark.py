"""What `@tool()` can be put on, and what paths of modules stand for in the configuration."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, EmailStr, NameEmail, networks

from cellblock import tool
from cellblock.base.errors import ConfigError
from cellblock.tools.python.python_tools import load_tools, read_tool
from cellblock.tools.python.tool_mark import mark_of

from .conftest import Call


async def _agen(a: int) -> Any:
    yield a


def _gen(a: int) -> Any:
    yield a


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_agen, "generator"),
        (_gen, "generator"),
        (functools.partial(_agen, 1), "generator"),
        (3, "no function"),
    ],
    ids=["async generator", "generator", "partial", "number"],
)
def test_what_cannot_be_a_tool(function: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_tool(function)


def test_builtins_cannot_be_marked() -> None:
    with pytest.raises(TypeError, match="wrap it in a function"):
        tool()(len)


class Thing:
    """A thing.

    More.
    """

    @tool(name="made", annotations={"readOnlyHint": True})
    @classmethod
    def make(cls) -> str:
        return cls.__name__

    @classmethod
    @tool(name="made-too")
    def make_too(cls) -> str:
        return cls.__name__

    async def __call__(self) -> str:
        return "called"


async def test_what_is_said_of_other_callables(call: Call) -> None:
    made = read_tool(Thing.make)
    assert (made.name, made.annotations) == ("made", {"readOnlyHint": True})
    assert read_tool(Thing.make_too).name == "made-too"
    assert read_tool(functools.partial(Thing.make)).name == "make"
    called = read_tool(Thing())
    assert (called.name, called.description, called.is_async) == ("Thing", "A thing.\n\nMore.", True)
    assert await call(Thing.make) == {"result": "Thing"}
    assert await call(Thing()) == {"result": "called"}


@pytest.mark.parametrize("mark", [tool(), tool], ids=["called", "bare"])
def test_types_of_the_place_of_definition_are_found_also_where_they_name_each_other(mark: Any) -> None:
    """Here every annotation is text: `from __future__ import annotations`."""

    @dataclass
    class Inner:
        n: int

    @dataclass
    class Outer:
        inner: Inner
        more: list[Inner]

    class Old(TypedDict):
        inner: Inner

    class New(TypedDict):
        old: NotRequired[Old]
        outer: Annotated[Outer, "words"]

    class Model(BaseModel):
        news: list[Outer]
        again: Model | None = None

    @mark
    def rows(outer: Outer, news: dict[str, New]) -> list[Outer]: ...

    @tool(flatten=True)
    def model(value: Model) -> Old: ...

    def closed(**members: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": members,
            "required": list(members),
            "additionalProperties": False,
        }

    number = closed(n={"type": "integer"})
    inner = closed(inner=number)
    outer = closed(inner=number, more={"type": "array", "items": number})
    new = {**closed(old=inner, outer=outer), "required": ["outer"]}
    taken = read_tool(rows)
    assert taken.input.schema["properties"] == {
        "outer": {**outer, "description": "Parameter outer"},
        "news": {"type": "object", "additionalProperties": new, "description": "Parameter news"},
    }
    assert taken.result.schema is not None
    assert taken.result.schema["properties"]["result"]["items"] == outer
    flat = read_tool(model)
    assert set(flat.input.schema["properties"]) == {"news", "again"}
    assert flat.result.schema == inner
    held: Any = mark_of(rows)
    assert set(held.namespace) == {"Inner", "Outer", "Old", "New"}


def test_a_type_that_needs_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `email-validator` is not installed."""
    monkeypatch.setitem(sys.modules, "email_validator", None)
    monkeypatch.setattr(networks, "email_validator", None)

    def takes(address: EmailStr) -> None: ...

    def gives() -> list[NameEmail]: ...

    for function in (takes, gives):
        with pytest.raises(ConfigError, match=rf"{function.__name__} has a type .*pydantic\[email\]"):
            read_tool(function)


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


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["{}"], ["marked", "other-name"]),
        (["{}:unmarked"], ["unmarked"]),
        (["{}:team.size"], ["size"]),
        (["{}:both"], ["marked", "unmarked"]),
        (["{}", "{}:both", "{}:marked"], ["marked", "other-name", "unmarked"]),
    ],
)
def test_what_paths_stand_for(write: Write, paths: list[str], names: list[str]) -> None:
    module = write(TOOLS)
    assert [
        read_tool(function).name for function in load_tools([path.format(module) for path in paths])
    ] == names


def test_functions_that_were_given_come_first_and_once(write: Write) -> None:
    module = importlib.import_module(write(TOOLS))
    assert load_tools([module.__name__], [module.marked]) == [module.marked, module.other]


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
