"""What `@tool()` can be put on, and what it carries to the registration."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from cellblock import tool
from cellblock.errors import ConfigError
from cellblock.upstream.python_tools import read_tool

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


def test_annotations_are_the_tools() -> None:
    @tool(annotations={"readOnlyHint": True})
    def look() -> None: ...

    assert read_tool(look).annotations == {"readOnlyHint": True}
