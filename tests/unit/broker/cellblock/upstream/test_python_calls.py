"""Calls of Python tools: bounds, cancellation, whatever a function raises or gives."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import mcp_types as types
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from cellblock import tool
from cellblock.errors import Certainty, ConfigError, SchemaValidationError, ToolCallError
from cellblock.upstream.python_calls import LONG_STEP_SECONDS, PythonCalls
from cellblock.upstream.python_tools import read_tool
from support import until, within

BOUND = 20.0

Call = Callable[..., Awaitable[Any]]


@pytest.fixture
async def calls() -> AsyncIterator[PythonCalls]:
    made = PythonCalls(bound=BOUND, threads=4)
    yield made
    await made.close()


@pytest.fixture
def call(calls: PythonCalls) -> Call:
    """Calls a function as a script would."""

    def make(function: Callable[..., Any], /, **arguments: Any) -> Awaitable[Any]:
        return within(calls.call(read_tool(function), arguments))

    return make


@pytest.fixture
async def brief() -> AsyncIterator[PythonCalls]:
    """Gives up soon, and has one thread."""
    made = PythonCalls(bound=0.2, threads=1)
    yield made
    await made.close()


# ---- bounds ----------------------------------------------------------------------------------------------


async def test_a_function_that_takes_too_long_is_given_up(brief: PythonCalls) -> None:
    release, ended = threading.Event(), asyncio.Event()

    def blocks() -> None:
        release.wait(BOUND)

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for function in (blocks, hangs):
        with pytest.raises(ToolCallError, match=r"did not end within 0\.2 s") as caught:
            await within(brief.call(read_tool(function), {}))
        assert caught.value.certainty is Certainty.MAY_HAVE_RUN
    assert ended.is_set()
    with pytest.raises(ToolCallError, match="threads for tools are busy") as caught:
        await within(brief.call(read_tool(lambda: 1), {}))
    assert caught.value.certainty is Certainty.NOT_STARTED
    release.set()
    await until(lambda: brief.busy_threads == 0, "the thread is free")
    assert await within(brief.call(read_tool(lambda: 1), {})) == {"result": 1}


async def test_a_function_that_swallows_its_cancellation_does_not_hold_the_call(brief: PythonCalls) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(ToolCallError, match="did not end"):
        await within(brief.call(read_tool(stubborn), {}))
    release.set()


async def test_a_cancelled_call_of_a_thread_ends_at_once(calls: PythonCalls) -> None:
    release, began = threading.Event(), threading.Event()

    def blocks() -> None:
        began.set()
        release.wait(BOUND)

    task = asyncio.create_task(calls.call(read_tool(blocks), {}))
    await until(began.is_set, "the function has begun")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    assert calls.busy_threads == 1
    release.set()


async def test_an_async_function_that_blocks_is_named_in_the_log(
    call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocking() -> None:
        await asyncio.sleep(0)
        time.sleep(LONG_STEP_SECONDS + 0.05)  # noqa: ASYNC251 - the mistake that is told

    with caplog.at_level(logging.WARNING, "cellblock"):
        await call(blocking)
    assert "blocking held the event loop" in caplog.text


# ---- what a function raises ------------------------------------------------------------------------------


class Custom(BaseException):
    """No Exception."""


RAISED = [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), Custom("c")]


@pytest.mark.parametrize(
    "error", [*RAISED, ExceptionGroup("g", [OSError("o")])], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("kind", ["plain", "async", "awaitable"])
async def test_whatever_is_raised_is_a_tool_error(call: Call, error: BaseException, kind: str) -> None:
    def plain() -> None:
        raise error

    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    def awaitable() -> Awaitable[None]:
        return later()

    with pytest.raises(ToolCallError) as caught:
        await call({"plain": plain, "async": later, "awaitable": awaitable}[kind])
    # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
    name = "RuntimeError" if kind != "plain" and isinstance(error, StopIteration) else type(error).__name__
    assert name in caught.value.message and caught.value.hint
    assert caught.value.certainty is Certainty.MAY_HAVE_RUN


@pytest.mark.parametrize("is_async", [False, True])
async def test_texts_of_exceptions_hold_no_credential(
    call: Call, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ConnectionError("https://ada:hunter2hunter2@db.example refused; token=hunter2hunter2")

    async def fails_later() -> None:
        fails()

    with caplog.at_level(logging.DEBUG), pytest.raises(ToolCallError) as caught:
        await call(fails_later if is_async else fails)
    assert "ConnectionError" in caught.value.message and "refused" in caught.value.message
    assert "hunter2" not in str(caught.value) + str(caught.value.details) + caught.value.summary
    assert "fails" in caplog.text and "hunter2" not in caplog.text


# ---- what a function gives -------------------------------------------------------------------------------


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
        (None, (n for n in range(2)), {"result": [0, 1]}),
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


# ---- inputs ----------------------------------------------------------------------------------------------


async def test_signatures_without_a_schema_are_called_all_the_same(call: Call) -> None:
    def every(first: Any, /, *args: Any, second: Any = 2, **rest: Any) -> Any:
        return [first, args, second, rest]

    assert await call(every, first=1, third=3) == {"result": [1, [], 2, {"third": 3}]}
    with pytest.raises(SchemaValidationError, match="missing a required argument: 'first'") as caught:
        await call(every)
    assert "every(first" in caught.value.hint


async def test_a_strict_model_takes_what_json_has(call: Call) -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: datetime.date
        pair: tuple[int, int]

    def take(value: Strict) -> bool:
        return isinstance(value.day, datetime.date) and value.pair == (1, 2)

    take.__annotations__["value"] = Strict
    assert await call(take, value={"day": "2025-03-01", "pair": [1, 2]}) == {"result": True}


async def test_defaults_of_field_are_filled_in(call: Call) -> None:
    def take(limit: int = Field(10, ge=1), *, extra: Annotated[int, Field(default_factory=lambda: 3)]) -> int:
        return limit + extra

    assert await call(take) == {"result": 13}
    with pytest.raises(SchemaValidationError, match="/limit"):
        await call(take, limit=0)


async def test_flattened_inputs_arrive_whole(call: Call) -> None:
    @tool(flatten=True)
    async def take(item: Item) -> str:
        assert dataclasses.is_dataclass(item)
        return item.name

    assert await call(take, name="a", when="2025-03-01T12:00:00Z") == {"result": "a"}
    with pytest.raises(SchemaValidationError, match="/when"):
        await call(take, name="a", when="soon")


# ---- registration ----------------------------------------------------------------------------------------


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
