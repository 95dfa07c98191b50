"""Calls of Python tools: inputs, bounds, cancellation, whatever a function raises."""

import asyncio
import contextvars
import dataclasses
import datetime
import decimal
import enum
import logging
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl
from pydantic_core import to_json

from cellblock import tool
from cellblock.base.errors import Certainty, SchemaValidationError, ToolCallError
from cellblock.base.raw_json import LIGHT_BYTES
from cellblock.tools.python.python_calls import (
    LONG_STEP_SECONDS,
    AllBusy,
    PythonCalls,
    ToolThreads,
)
from cellblock.tools.python.python_tools import read_tool
from cellblock.tools.python.tool_results import ResultForm
from support.accounts import account_of
from support.tool_schemas import MOST
from support.waits import until, within

from .conftest import Call

BOUND = 60.0


def busy(threads: ToolThreads) -> int:
    """How many threads are at work."""
    return threads._maximum - threads._free._value


@pytest.fixture
async def brief() -> AsyncIterator[PythonCalls]:
    """Gives up soon, and has one thread."""
    made = PythonCalls(bound=0.2, threads=1, most=MOST)
    yield made
    await made.close()


@dataclass
class Item:
    name: str
    when: datetime.datetime


def compute() -> None:
    """Takes 100 ms of this thread."""
    ends = time.thread_time() + 0.1
    while time.thread_time() < ends:
        pass


def before_encoding(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Has `work` called before each result is encoded."""
    encoded = ResultForm.encoded

    def after_it(self: ResultForm, value: Any, most: int, **told: Any) -> Any:
        work()
        return encoded(self, value, most, **told)

    monkeypatch.setattr(ResultForm, "encoded", after_it)


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_call_and_its_result_take_is_on_the_runs_bill(
    calls: PythonCalls, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    before_encoding(monkeypatch, compute)
    account = account_of()

    def in_thread():
        compute()
        return {"rows": list(range(100_000))}

    async def on_loop():
        compute()
        await asyncio.sleep(0)
        compute()
        return {"rows": list(range(100_000))}

    await calls.call(read_tool(on_loop if is_async else in_thread), {}, account)
    # Of the computing of this thread, and so whatever else the machine does.
    assert 200 + 100 * is_async <= account.cpu_ms < 5_000


async def test_large_data_of_an_async_function_is_made_plain_beside_the_loop(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    before_encoding(monkeypatch, lambda: threads.append(threading.current_thread()))
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    async def small():
        return {"day": day}

    async def large():
        return {"rows": [{"day": day, "of": (1, "a")}] * 20_000}

    async def items() -> list[Item]:
        return [Item("x", day)] * 20_000

    shown = "2026-01-01T00:00:00Z"
    assert [await call(function) for function in (small, large, items)] == [
        {"day": shown},
        {"rows": [{"day": shown, "of": [1, "a"]}] * 20_000},
        {"result": [{"name": "x", "when": shown}] * 20_000},
    ]
    assert [thread is threading.current_thread() for thread in threads] == [True, False, False]


@pytest.mark.slow
async def test_large_data_is_encoded_beside_the_loop_in_pieces(
    calls: PythonCalls, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is encoded on the loop, and what at a time, is little; what is over the cap is not encoded to its end."""
    here = threading.current_thread()
    on_loop: list[int] = []
    beside: list[int] = []

    def noted(value: Any, **how: Any) -> bytes:
        body = to_json(value, **how)
        (on_loop if threading.current_thread() is here else beside).append(len(body))
        return body

    monkeypatch.setattr("cellblock.base.payload.to_json", noted)
    data = {"rows": [{"id": number, "tags": ["a", []]} for number in range(60_000)], "text": "é" * 300_000}

    async def large():
        return data

    assert await call(large) == data
    assert not on_loop
    assert max(beside) < LIGHT_BYTES and sum(beside) > 2_000_000
    beside.clear()
    monkeypatch.setattr(calls, "_most", 10_000)
    with pytest.raises(ToolCallError, match="over the maximum of 10000") as refused:
        await call(large)
    assert refused.value.certainty is Certainty.COMPLETED
    assert sum(beside) < LIGHT_BYTES


# ---- bounds ----------------------------------------------------------------------------------------------


async def test_a_function_that_takes_too_long_is_given_up(brief: PythonCalls) -> None:
    release, ended = threading.Event(), asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for function in (lambda: release.wait(BOUND), hangs):
        with pytest.raises(ToolCallError, match=r"did not end within 0\.2 s") as caught:
            await within(brief.call(read_tool(function), {}))
        assert caught.value.certainty is Certainty.MAY_HAVE_RUN
    assert ended.is_set()
    with pytest.raises(ToolCallError, match="threads for tools are busy") as caught:
        await within(brief.call(read_tool(lambda: 1), {}))
    assert caught.value.certainty is Certainty.NOT_STARTED
    release.set()
    await until(lambda: busy(brief._threads) == 0, "the thread is free")


async def test_a_function_that_swallows_its_cancellation_does_not_hold_the_call(brief: PythonCalls) -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

        ended.set()

    with pytest.raises(ToolCallError, match="did not end"):
        await within(brief.call(read_tool(stubborn), {}))
    task = asyncio.current_task()
    assert task is not None and not task.cancelling(), "what ended the call is no cancellation of its caller"
    assert not ended.is_set()
    release.set()
    await within(ended.wait())


async def test_a_function_that_nobody_waits_for_is_cancelled_at_the_end() -> None:
    calls = PythonCalls(bound=0.01, threads=1, most=MOST)
    cancelled: list[bool] = []

    async def stubborn() -> None:
        while len(cancelled) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)

    with pytest.raises(ToolCallError, match="did not end"):
        await within(calls.call(read_tool(stubborn), {}))
    await until(lambda: len(cancelled) == 2, "it goes on by itself")
    await within(calls.close())
    assert len(cancelled) == 3


async def test_a_function_may_have_bounds_of_its_own(call: Call) -> None:
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
        return "given up"

    assert await call(gives_up) == {"result": "given up"}
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_a_cancelled_call_ends_at_once_and_cancels_what_can_be(calls: PythonCalls) -> None:
    release, began, ended = threading.Event(), threading.Event(), asyncio.Event()

    def blocks() -> None:
        began.set()
        release.wait(BOUND)

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for function in (blocks, hangs):
        began.clear()
        task = asyncio.create_task(calls.call(read_tool(function), {}))
        await until(began.is_set, "the function has begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(task)
    assert ended.is_set() and busy(calls._threads) == 1
    release.set()


async def test_an_async_function_that_blocks_is_named_in_the_log(
    call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocking() -> None:
        await asyncio.sleep(0)
        time.sleep(LONG_STEP_SECONDS + 0.05)  # noqa: ASYNC251 - the mistake that is told

    await call(blocking)
    assert "blocking held the event loop" in caplog.text


# ---- what a function raises ------------------------------------------------------------------------------


class Custom(BaseException):
    """No Exception."""


@pytest.mark.parametrize(
    "error",
    [
        *[ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), Custom("c")],
        ExceptionGroup("g", [OSError("o")]),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("kind", ["plain", "async", "awaitable"])
async def test_whatever_is_raised_is_a_tool_error(call: Call, error: BaseException, kind: str) -> None:
    def plain() -> None:
        raise error

    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(ToolCallError) as caught:
        await call({"plain": plain, "async": later, "awaitable": lambda: later()}[kind])
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

    assert await call(take, value={"day": "2025-03-01", "pair": [1, 2]}) == {"result": True}


async def test_defaults_are_filled_in(call: Call) -> None:
    own = object()

    def take(
        limit: int = Field(10, ge=1),
        it: Any = own,
        *,
        extra: Annotated[int, Field(default_factory=lambda: 3)],
    ) -> Any:
        return [limit, it is own, extra]

    assert await call(take) == {"result": [10, True, 3]}
    assert await call(take, limit=1, it=None) == {"result": [1, False, 3]}
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


async def test_inputs_arrive_as_the_types_of_the_signature(call: Call) -> None:
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
    del got["got"]
    assert got == {
        "when": datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC),
        "day": datetime.date(2025, 3, 1),
        "ident": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "color": Color.RED,
        "person": Person(name="Ada", age=36),
        "point": Point(1.0, 0.0),
        "pair": (1, "a"),
        "names": {"a"},
        "either": "x",
    }


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
async def test_a_wrong_input_is_a_schema_error_with_its_place(
    call: Call, arguments: dict[str, Any], path: str
) -> None:
    def take(person: Person, either: int | Person = 1, list: list[int] | None = None) -> None:
        raise AssertionError

    with pytest.raises(SchemaValidationError) as caught:
        await call(take, **arguments)
    details = caught.value.details
    assert details["path"] == path
    assert details["expected"] and details["received"] and caught.value.hint


class Meeting(BaseModel):
    at: datetime.datetime
    count: int = 1


def refuses(number: int) -> int:
    raise ValueError("it must be even")


@pytest.mark.parametrize(
    ("kind", "value", "path", "expected", "received", "example"),
    [
        (datetime.datetime, "tomorrow", "", "a valid datetime or date", 'string "tomorrow"', TIME),
        (datetime.date, "2026-02-31", "", "a valid date or datetime", 'string "2026-02-31"', "2026-01-31"),
        (datetime.time, "noon", "", "in a valid time format", 'string "noon"', "12:00:00Z"),
        (datetime.timedelta, "long", "", "a valid duration", 'string "long"', "PT1H"),
        (uuid.UUID, "x", "", "a valid UUID", 'string "x"', UUID),
        (decimal.Decimal, "abc", "", "a valid decimal", 'string "abc"', 1),
        (HttpUrl, "nope", "", "a valid URL", 'string "nope"', "https://example.com/"),
        (int, 1e300, "", "integer of fewer digits", "number 1e+300", 1),
        (Meeting, {"at": "x"}, "/at", "a valid datetime or date", 'string "x"', {"at": TIME}),
        (
            list[Meeting],
            [{"at": TIME}, {"at": ""}],
            "/1/at",
            "a valid datetime or date",
            'string ""',
            [],
        ),
        (datetime.date | int, "q", "", "a valid date or datetime", 'string "q"', "2026-01-31"),
        (DATES, {"q": 1}, "/q", "a valid date or datetime", 'string "q"', {}),
        (
            Annotated[int, AfterValidator(refuses)],
            3,
            "",
            "what its own check takes (it must be even)",
            "number 3",
            None,
        ),
    ],
)
async def test_what_only_the_type_refuses_is_told_in_its_words(
    call: Call, kind: Any, value: Any, path: str, expected: str, received: str, example: Any
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


async def test_a_functions_own_tool_errors_pass_as_they_are(call: Call) -> None:
    own = ToolCallError("mine", hint="h", certainty=Certainty.NOT_STARTED)

    def breaks() -> None:
        raise own

    with pytest.raises(ToolCallError) as caught:
        await call(breaks)
    assert caught.value is own


# ---- threads: bounded, reused, given up in time, and none that an exit waits for ------------------------


@pytest.fixture
async def threads() -> AsyncIterator[ToolThreads]:
    made = ToolThreads(2)
    yield made
    made.close()


async def test_a_thread_has_the_callers_context_is_used_again_and_outlives_exceptions(
    threads: ToolThreads,
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert await threads.run(variable.get, BOUND) == "here"
    idents = {await threads.run(threading.get_ident, BOUND)}
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await threads.run(fail, BOUND)
        idents.add(await threads.run(threading.get_ident, BOUND))
    assert len(idents) == 1 and threading.get_ident() not in idents


async def test_no_more_than_the_maximum_at_once(threads: ToolThreads) -> None:
    release = threading.Event()
    running: list[int] = []

    def work(number: int) -> int:
        running.append(number)
        release.wait(BOUND)
        return number

    tasks = [asyncio.create_task(threads.run(lambda n=n: work(n), BOUND)) for n in range(5)]
    await until(lambda: len(running) == 2, "two at work")
    assert busy(threads) == 2
    with pytest.raises(AllBusy):
        await threads.run(lambda: running.append(99), 0.05)
    release.set()
    assert await within(asyncio.gather(*tasks)) == [0, 1, 2, 3, 4]
    assert 99 not in running, "what was refused never starts"
    assert busy(threads) == 0


async def test_a_thread_that_cannot_be_started_costs_no_place(
    threads: ToolThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(4):
            with pytest.raises(AllBusy, match="No thread can be started"):
                await threads.run(lambda: 1, BOUND)
    assert (await threads.run(lambda: 1, BOUND), busy(threads)) == (1, 0)


async def test_closing_ends_idle_threads_and_later_those_at_work() -> None:
    threads = ToolThreads(2)
    release = threading.Event()
    names = [await threads.run(lambda: threading.current_thread(), BOUND)]

    def work() -> None:
        names.append(threading.current_thread())
        release.wait(BOUND)

    task = asyncio.create_task(threads.run(work, BOUND))
    await until(lambda: len(names) == 2, "one at work")
    other = await threads.run(threading.current_thread, BOUND)
    threads.close()
    await until(lambda: not other.is_alive(), "the idle one has ended")
    release.set()
    await within(task)
    await until(lambda: not any(thread.is_alive() for thread in names), "the other has ended too")


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    code = """
import asyncio, threading
from cellblock.tools.python.python_calls import StillRunning, ToolThreads
async def main():
    threads = ToolThreads(1)
    try:
        await threads.run(threading.Event().wait, 0.05)
    except StillRunning:
        print("given up")
    threads.close()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
