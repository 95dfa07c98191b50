"""Python functions as tools: schemas from signatures, checked inputs, plain outputs, no stalled loop."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import AfterValidator, BaseModel, Field, HttpUrl
from typing_extensions import TypedDict

from cellblock.base.errors import Certainty, SchemaValidationError, ToolCallError
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import read_tool
from cellblock.tools.python.signatures import PERMISSIVE_SCHEMA
from cellblock.tools.python.tool_mark import MARK, tool
from cellblock.tools.schemas.boxing import unbox

BOUND = 10.0
TIME = "2026-01-31T12:00:00Z"
UUID = "123e4567-e89b-42d3-a456-426614174000"
DATES = dict[datetime.date, int]


class Color(enum.Enum):
    RED = "red"


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)


@dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    title: str


async def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """What a script gets, taken out of its box."""
    python_tool = read_tool(function)
    return unbox(python_tool.output_schema, await called(function, **arguments))


async def called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """What a script gets."""
    calls = PythonCalls(bound=BOUND, threads=4)
    try:
        value = await calls.call(read_tool(function), arguments)
    finally:
        await calls.close()
    json.dumps(value, allow_nan=True)
    return value


def test_name_and_description_come_from_the_function_or_the_decorator() -> None:
    @tool
    def plain(a: int) -> int:
        """Does it.

        More.
        """
        return a

    @tool(name="other-name", description="Other.")
    def named() -> None: ...

    assert (read_tool(plain).name, read_tool(plain).description) == ("plain", "Does it.\n\nMore.")
    assert (read_tool(named).name, read_tool(named).description) == ("other-name", "Other.")
    assert plain(3) == 3 and hasattr(plain, MARK)


def test_schemas_of_a_signature() -> None:
    def search(
        query: Annotated[str, Field(description="What to find")],
        limit: int = 10,
        order: Literal["up", "down"] | None = None,
        *,
        person: Person,
        options: Options,
    ) -> list[Person]:
        return []

    made = read_tool(search)
    schema = made.input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert set(schema["required"]) == {"query", "person", "options"}
    assert schema["properties"]["query"] == {"type": "string", "description": "What to find"}
    assert schema["properties"]["limit"]["type"] == "integer"
    # pydantic titles every node; a property of that name stays.
    assert schema["properties"]["options"]["properties"] == {"title": {"type": "string"}}
    assert "title" not in schema and "title" not in schema["properties"]["person"]
    assert "$defs" not in schema
    output = made.output_schema
    assert output is not None and output["properties"]["result"]["type"] == "array"


def test_functions_without_types_have_a_schema_that_lets_everything_in() -> None:
    def many(*args: Any, **kwargs: Any) -> Any: ...

    def first(a: Any, /) -> Any: ...

    def odd(lock: threading.Lock) -> threading.Lock: ...

    for function in (many, first, odd):
        assert read_tool(function).input_schema == PERMISSIVE_SCHEMA
    assert read_tool(odd).output_schema is None

    def untyped(a, b=2): ...  # pyright: ignore

    made = read_tool(untyped)
    assert made.input_schema["required"] == ["a"] and set(made.input_schema["properties"]) == {"a", "b"}
    assert made.output_schema is None


async def test_inputs_arrive_as_the_types_of_the_signature() -> None:
    got: dict[str, Any] = {}

    def take(
        when: datetime.datetime,
        day: datetime.date,
        ident: uuid.UUID,
        color: Color,
        person: Person,
        point: Point,
        pair: tuple[int, str],
        names: set[str],
        either: int | str,
    ) -> None:
        got.update(locals())

    await call(
        take,
        when="2025-03-01T12:00:00Z",
        day="2025-03-01",
        ident="12345678-1234-5678-1234-567812345678",
        color="red",
        person={"name": "Ada", "age": 36},
        point={"x": 1},
        pair=[1, "a"],
        names=["a", "a"],
        either="x",
    )
    assert got["when"] == datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)
    assert got["day"] == datetime.date(2025, 3, 1)
    assert isinstance(got["ident"], uuid.UUID) and got["color"] is Color.RED
    assert got["person"] == Person(name="Ada", age=36)
    assert got["point"] == Point(1.0, 0.0)
    assert (got["pair"], got["names"], got["either"]) == ((1, "a"), {"a"}, "x")


async def test_defaults_are_the_functions_own() -> None:
    sentinel = object()

    def take(a: int, b: Any = sentinel) -> bool:
        return b is sentinel

    assert await call(take, a=1) is True
    assert await call(take, a=1, b=None) is False


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "/person"),
        ({"person": 1}, "/person"),
        ({"person": {"name": "a"}}, "/person/age"),
        ({"person": {"name": "a", "age": -1}}, "/person/age"),
        ({"person": {"name": "a", "age": 1}, "extra/~": 1}, "/extra~1~0"),
        ({"person": {"name": "a", "age": 1}, "either": []}, "/either"),
        ({"person": {"name": "a", "age": 1}, "either": {"name": "b"}}, "/either"),
        ({"person": {"name": "a", "age": 1}, "list": [1, "x"]}, "/list/1"),
        ({"person": {"name": "a", "age": 1}, "list": {"0": 1}}, "/list"),
    ],
    ids=str,
)
async def test_a_wrong_input_is_a_schema_error_with_its_place(arguments: dict[str, Any], path: str) -> None:
    called: list[Any] = []

    def take(person: Person, either: int | Person = 1, list: list[int] | None = None) -> None:
        called.append(person)

    with pytest.raises(SchemaValidationError) as caught:
        await call(take, **arguments)
    details = caught.value.details
    assert details["path"] == path
    assert details["expected"] and details["received"] and caught.value.hint
    assert called == []


class Meeting(BaseModel):
    at: datetime.datetime
    count: int = 1


def even(number: int) -> int:
    if number % 2:
        raise ValueError("it must be even")
    return number


@pytest.mark.parametrize(
    ("kind", "value", "path", "expected", "received", "example"),
    [
        (datetime.datetime, "tomorrow", "", "string of the format date-time", 'string "tomorrow"', TIME),
        (datetime.date, "2026-02-31", "", "string of the format date", 'string "2026-02-31"', "2026-01-31"),
        (datetime.time, "noon", "", "string of the format time", 'string "noon"', "12:00:00Z"),
        (datetime.timedelta, "long", "", "string of the format duration", 'string "long"', "PT1H"),
        (uuid.UUID, "x", "", "string of the format uuid", 'string "x"', UUID),
        (decimal.Decimal, "abc", "", "a valid decimal", 'string "abc"', 1),
        (HttpUrl, "nope", "", "string of the format uri", 'string "nope"', "https://example.com/"),
        (int, 1e300, "", "integer of fewer digits", "number 1e+300", 1),
        (Meeting, {"at": "x"}, "/at", "string of the format date-time", 'string "x"', {"at": TIME}),
        (
            list[Meeting],
            [{"at": TIME}, {"at": ""}],
            "/1/at",
            "string of the format date-time",
            'string ""',
            [],
        ),
        (datetime.date | int, "q", "", "string of the format date or integer", 'string "q"', "2026-01-31"),
        (DATES, {"q": 1}, "/q", "string of the format date", 'string "q"', {}),
        (Annotated[int, AfterValidator(even)], 3, "", "integer (it must be even)", "number 3", None),
    ],
)
async def test_what_only_the_type_refuses_is_told_in_the_terms_of_the_schema(
    kind: Any, value: Any, path: str, expected: str, received: str, example: Any
) -> None:
    def take(it: Any) -> None:
        raise AssertionError

    take.__annotations__["it"] = kind
    with pytest.raises(SchemaValidationError) as caught:
        await call(take, it=value)
    details = caught.value.details
    assert (details["path"], details["expected"], details["received"]) == (f"/it{path}", expected, received)
    assert details.get("example") == (None if example is None else {"it": example})
    assert caught.value.hint.endswith(
        f"/it{path}: {'the name' if kind == DATES else 'it'} must be {expected}."
    )


async def test_outputs_become_plain_data() -> None:
    def give() -> dict[str, Any]:
        return {
            "when": datetime.datetime(2025, 3, 1, tzinfo=datetime.UTC),
            "person": Person(name="Ada", age=36),
            "point": Point(1.0),
            "pair": (1, {2}),
            "color": Color.RED,
            "bytes": b"hi",
        }

    assert await call(give) == {
        "when": "2025-03-01T00:00:00Z",
        "person": {"name": "Ada", "age": 36},
        "point": {"x": 1.0, "y": 0.0},
        "pair": [1, [2]],
        "color": "red",
        "bytes": "hi",
    }

    async def person() -> Person:
        return Person(name="Bo", age=1)

    assert await call(person) == {"name": "Bo", "age": 1}


@pytest.mark.parametrize("value", [object(), b"\xff", threading.Lock()], ids=["object", "bytes", "lock"])
async def test_an_output_without_a_json_form_has_completed(value: Any) -> None:
    def give() -> Any:
        return value

    with pytest.raises(ToolCallError, match="no JSON form") as caught:
        await call(give)
    assert caught.value.certainty is Certainty.COMPLETED


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError("x"), SystemExit(3), StopIteration()], ids=repr
)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_whatever_a_function_raises_becomes_a_tool_error(error: BaseException, sync: bool) -> None:
    def breaks() -> None:
        raise error

    async def breaks_later() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(ToolCallError) as caught:
        await call(breaks if sync else breaks_later)
    assert caught.value.certainty is Certainty.MAY_HAVE_RUN
    if isinstance(error, ValueError):
        assert "ValueError: bad" in caught.value.message


async def test_a_functions_own_tool_errors_pass_as_they_are() -> None:
    own = ToolCallError("mine", hint="h", certainty=Certainty.NOT_STARTED)

    def breaks() -> None:
        raise own

    with pytest.raises(ToolCallError) as caught:
        await call(breaks)
    assert caught.value is own


async def test_slow_functions_run_beside_the_loop_and_each_other() -> None:
    entered = [threading.Event(), threading.Event()]

    def meet(me: int) -> bool:
        entered[me].set()
        return entered[1 - me].wait(BOUND)

    assert await asyncio.gather(call(meet, me=0), call(meet, me=1)) == [True, True]

    release = threading.Event()

    def slow() -> None:
        release.wait(BOUND)

    task = asyncio.ensure_future(call(slow))
    started = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not task.done() and time.monotonic() - started < 5
    release.set()
    await task


async def test_async_functions_run_on_the_loop() -> None:
    async def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    def elsewhere() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await call(where) is True
    assert await call(elsewhere) is False


async def test_cancelling_a_call_cancels_the_function() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.ensure_future(call(hangs))
    async with asyncio.timeout(BOUND):
        await began.wait()
        task.cancel()
        await ended.wait()
        await asyncio.wait([task])
    assert task.cancelled()


async def test_methods_are_tools_too() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        @tool(name="count_up")
        def up(self, by: int = 1) -> int:
            "Counts."
            self.count += by
            return self.count

    counter = Counter()
    made = read_tool(counter.up)
    assert made.name == "count_up" and set(made.input_schema["properties"]) == {"by"}
    assert await call(counter.up, by=2) == 2
