"""What a Python tool gives: normalised, boxed, and checked against what it declares."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import mcp_types as types
import pytest
import typing_extensions
from pydantic import BaseModel, Field, SerializeAsAny

from cellblock import tool
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.tools.python.python_tools import read_tool

BOUND = 20.0

Call = Callable[..., Awaitable[Any]]


class Color(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    when: datetime.datetime


class Model(BaseModel):
    by_alias: int = Field(alias="byAlias")
    price: decimal.Decimal = decimal.Decimal("1.10")


class Entry(typing_extensions.TypedDict):
    a: int
    b: typing_extensions.NotRequired[int]


class Base(BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


NOON = datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)


def giving(annotation: Any, value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    if annotation is not None:
        give.__annotations__["return"] = annotation
    else:
        del give.__annotations__["return"]
    return give


@pytest.mark.parametrize(
    ("annotation", "value", "given"),
    [
        (int, 7, {"result": 7}),
        (type(None), None, {"result": None}),
        (Item, Item("a", NOON), {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        (Item, {"name": "a", "when": NOON}, {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        (Model, Model(byAlias=1), {"byAlias": 1, "price": "1.10"}),
        (Model | None, None, {"result": None}),
        (Model | None, Model(byAlias=1), {"result": {"byAlias": 1, "price": "1.10"}}),
        (Entry, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}),
        (list[Color], [Color.RED], {"result": ["red"]}),
        (set[int], {1}, {"result": [1]}),
        (tuple[int, str], (1, "a"), {"result": [1, "a"]}),
        (datetime.timedelta, datetime.timedelta(hours=1), {"result": "PT1H"}),
        (bytes, b"text", {"result": "text"}),
        (Base, Derived(), {"a": 1}),
        (SerializeAsAny[Base], Derived(), {"a": 1, "b": 2}),
        (dict[int, int], {1: 2}, {"1": 2}),
        (float, 3, {"result": 3.0}),
        (float | None, None, {"result": None}),
        (Any, {"a": NOON}, {"a": "2025-03-01T12:00:00Z"}),
        (Any, [1], {"result": [1]}),
        (None, 3, {"result": 3}),
        (None, None, {"result": None}),
        (None, "text", {"result": "text"}),
        (None, Item("a", NOON), {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        pytest.param(None, (n for n in range(2)), {"result": [0, 1]}, id="generator"),
        (dict[str, Any], {"x": math.inf}, {"x": None}),
        (list[float | None], [math.nan, 1.5], {"result": [None, 1.5]}),
    ],
    ids=repr,
)
async def test_values_are_normalised(call: Call, annotation: Any, value: Any, given: Any) -> None:
    assert await call(giving(annotation, value)) == given


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)
_DEEP: Any = functools.reduce(lambda inner, _: [inner], range(10_000), 0)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "seven", "does not fit what it declares"),
        (Item, Item(5, NOON), "/name"),  # pyright: ignore
        (Item, {"name": "a"}, "/when"),
        (Annotated[int, Field(ge=3)], 1, "greater than or equal to 3"),
        (float, math.nan, "/result"),
        (dict[str, float], {"mean": math.inf}, "/mean"),
        (Entry, {"a": "x"}, "/a"),
        (list[int], None, "does not fit"),
        (Any, object(), "no JSON form"),
        (Any, _CIRCLE, "no JSON form"),
        (Any, _DEEP, "no JSON form"),
        (bytes, b"\xff", "no JSON form"),
        (None, threading.Lock(), "no JSON form"),
    ],
    ids=[
        "text for int",
        "wrong field of a dataclass",
        "missing",
        "constraint",
        "nan",
        "inf",
        "typed dict",
        "none",
        "object",
        "circle",
        "deep",
        "bytes",
        "lock",
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_values_that_do_not_fit_are_the_tools_fault(
    call: Call, annotation: Any, value: Any, said: str, is_async: bool
) -> None:
    give = giving(annotation, value)

    async def give_later() -> Any:
        return value

    give_later.__annotations__ = dict(give.__annotations__)
    with pytest.raises(ToolCallError, match=said) as caught:
        await call(give_later if is_async else give)
    assert caught.value.certainty is Certainty.COMPLETED and caught.value.hint
    assert len(caught.value.message) < 1_000


TEXT = types.TextContent(type="text", text="hello")
IMAGE = types.ImageContent(type="image", data="aGk=", mime_type="image/png")


@pytest.mark.parametrize(
    ("annotation", "value", "content"),
    [
        (types.TextContent, TEXT, [TEXT]),
        (list[types.TextContent | types.ImageContent], [TEXT, IMAGE], [TEXT, IMAGE]),
        (None, (TEXT, IMAGE), [TEXT, IMAGE]),
        (types.CallToolResult, types.CallToolResult(content=[TEXT], is_error=True), [TEXT]),
    ],
    ids=["text", "list", "tuple", "result"],
)
async def test_content_stays_content(call: Call, annotation: Any, value: Any, content: list[Any]) -> None:
    result = await call(giving(annotation, value))
    assert isinstance(result, types.CallToolResult) and result.content == content


async def test_an_explicit_output_schema_is_checked(call: Call) -> None:
    answers: list[Any] = [{"a": 1}, {"a": "x"}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @tool(output_schema=schema)
    def give() -> Any:
        return answers.pop(0)

    @tool(output_schema={"type": "array"})
    def boxed() -> Any:
        return [1]

    @tool(output_schema=schema)
    def whole() -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content={"a": []})

    @tool(
        output_schema={
            "type": "object",
            "title": "LooksLikeABoxOutput",
            "properties": {"result": {"type": "integer"}},
            "required": ["result"],
        }
    )
    def own_box() -> Any:
        return {"result": 1}

    assert await call(own_box) == {"result": 1}
    assert read_tool(give).output_schema == schema
    assert await call(give) == {"a": 1}
    assert await call(boxed) == {"result": [1]}
    for function in (give, whole):
        with pytest.raises(ToolCallError, match="/a"):
            await call(function)
