"""What `@tool()` can be put on, and what it carries to the registration."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, EmailStr, NameEmail, networks

from cellblock import tool
from cellblock.base.errors import ConfigError
from cellblock.tools.python.python_tools import read_tool
from cellblock.tools.python.tool_mark import mark_of

BOUND = 20.0

Call = Callable[..., Awaitable[Any]]


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
    """A thing."""

    @tool(name="made")
    @classmethod
    def make(cls) -> str:
        return cls.__name__

    @classmethod
    @tool(name="made-too")
    def make_too(cls) -> str:
        return cls.__name__

    async def __call__(self) -> str:
        return "called"


async def test_names_and_descriptions_of_other_callables(call: Call) -> None:
    named = functools.partial(Thing.make)
    assert read_tool(Thing.make).name == "made" and read_tool(Thing.make_too).name == "made-too"
    assert read_tool(named).name == "make"
    called = read_tool(Thing())
    assert (called.name, called.description, called.is_async) == ("Thing", "A thing.", True)
    assert await call(Thing.make) == {"result": "Thing"}
    assert await call(Thing()) == {"result": "called"}


def test_types_of_the_place_of_definition_are_found() -> None:
    """Text annotations that only the decorator could see resolved."""

    class Local(BaseModel):
        a: int

    @tool()
    def marked(value: Local) -> Local: ...

    @tool
    def bare(value: Local) -> Local: ...

    for function in (marked, bare):
        python_tool = read_tool(function)
        assert "a" in python_tool.input_schema["properties"]["value"]["properties"]
        assert python_tool.output_schema is not None


def test_types_of_the_place_of_definition_that_name_each_other_are_found() -> None:
    """Here every annotation is text: `from __future__ import annotations`."""
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

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

    @tool()
    def rows(outer: Outer, news: dict[str, New]) -> list[Outer]: ...

    @tool(flatten=True)
    def model(value: Model) -> Old: ...

    taken = read_tool(rows)
    properties = taken.input_schema["properties"]
    assert properties["outer"]["properties"]["more"]["items"] == {**number, "additionalProperties": False}
    inside = properties["news"]["additionalProperties"]["properties"]
    assert (
        inside["old"]["properties"]["inner"]["required"] == ["n"] and "more" in inside["outer"]["properties"]
    )
    assert taken.output_schema is not None
    assert "inner" in taken.output_schema["properties"]["result"]["items"]["properties"]
    flat = read_tool(model)
    assert set(flat.input_schema["properties"]) == {"news", "again"}
    assert flat.output_schema is not None and "inner" in flat.output_schema["properties"]
    held = mark_of(rows)
    assert held is not None and held.namespace is not None and "number" not in held.namespace


def test_a_type_that_needs_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `email-validator` is not installed."""
    monkeypatch.setitem(sys.modules, "email_validator", None)
    monkeypatch.setattr(networks, "email_validator", None)

    def takes(address: EmailStr) -> None: ...

    def gives() -> list[NameEmail]: ...

    for function in (takes, gives):
        with pytest.raises(ConfigError, match=rf"{function.__name__} has a type .*pydantic\[email\]"):
            read_tool(function)


def test_annotations_are_the_tools() -> None:
    @tool(annotations={"readOnlyHint": True})
    def look() -> None: ...

    assert read_tool(look).annotations == {"readOnlyHint": True}
