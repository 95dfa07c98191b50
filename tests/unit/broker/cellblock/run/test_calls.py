"""Calls of a run: inputs, loads, results, and what the hint of a failed one says."""

import asyncio
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from cellblock.base.errors import Certainty, SchemaValidationError, ToolCallError
from cellblock.base.raw_json import RawJson
from cellblock.run import calls
from cellblock.run.call_inputs import WAITING_FACTOR, CallLoads, Turns
from cellblock.run.call_results import LOOK_FIRST, REPEAT, UNCHANGED, fit_hint, result_of
from cellblock.run.calls import NOTED_ANSWERS, CallCounts, ToolCalls
from cellblock.run.events import NEVER_SENT, Observer, RunEvents
from cellblock.run.response import TraceEntry
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import JsonSchema, ResultKind as Kind, ToolEntry
from cellblock.tools.schemas.example import ValidatorCache
from cellblock.tools.upstream.wire.results import ToolResult
from support.loop_steps import longest_step
from support.memory_host import OBJECT, FakeUpstreams, Tool, echo, hangs, run_context, turns
from support.waits import within


class Calls:
    """Tool calls with what was answered, traced and learnt from."""

    def __init__(
        self,
        *,
        most: int = 3,
        concurrent: int = 4,
        max_reply_bytes: int = 10_000,
        schema: JsonSchema | None = OBJECT,
        schemas: ValidatorCache | None = None,
        **tools: Tool,
    ) -> None:
        upstreams = FakeUpstreams({"echo": echo, **tools}, schema=schema)
        self.replies = defaultdict[int, asyncio.Future[tuple[bool, Any]]](asyncio.Future)
        self.traced: list[TraceEntry] = []
        self.learnt: list[bytes] = []
        events = RunEvents()
        events.add(Observer(on_call=self.traced.append))
        context = run_context(
            upstreams.catalog,
            upstreams,
            calls=most,
            max_message_bytes=max_reply_bytes,
            schemas=schemas,
            watch=events.open("tests", ""),
            learner=self,
        )
        clock = RunClock(0.0, lambda _: None, lambda _: None)
        self.calls = ToolCalls(context, self._reply, lambda: None, clock)
        self.calls._turns = Turns(concurrent)  # pyright: ignore[reportPrivateUsage]

    def offer(self, server: str, tool: ToolEntry, kind: Kind, body: bytes, principal: str) -> None:
        """Takes a result, as a learner does."""
        self.learnt.append(body)

    def _reply(self, call_id: int, ok: bool, body: bytes) -> None:
        # Raises when it is answered twice.
        self.replies[call_id].set_result((ok, json.loads(body)))

    async def call(self, tool: str = "echo", body: bytes = b"{}", server: str = "tools") -> tuple[bool, Any]:
        call_id = len(self.calls.calls) + 1
        self.calls.begin(call_id, server, tool, body)
        return await within(self.replies[call_id])


@pytest.fixture
def loads() -> CallLoads:
    return CallLoads(10)


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        (ToolResult(b'{"content":[{"type":"text","text":"hi"}]}'), "hi"),
        ({"a": "\ud800", "b": float("nan")}, {"a": "\ufffd", "b": None}),
    ],
    ids=["an MCP result is unwrapped", "every reply is JSON text"],
)
async def test_what_a_script_is_answered(given: Any, answered: Any) -> None:
    assert await Calls(answer=AsyncMock(return_value=given)).call("answer") == (True, answered)


NO_OBJECT = {
    "errorClass": "SchemaValidationError",
    "serverId": "tools",
    "toolName": "tool",
    "exportName": "tool",
}


@pytest.mark.parametrize(
    ("server", "tool", "body", "about", "field", "word"),
    [
        ("tools", "tool", b"[]", NO_OBJECT, "received", "array"),
        ("tools", "tool", b"null", NO_OBJECT, "received", "null"),
        ("tools", "tool", b'"x"', NO_OBJECT, "received", "string"),
        ("tools", "tool", b"1", NO_OBJECT, "received", "number"),
        ("tools", "tool", b"true", NO_OBJECT, "received", "boolean"),
        ("tools", "tool", b"nonsense", NO_OBJECT, "hint", ""),
        ("tools", "tool", b"[" * 300, NO_OBJECT, "hint", ""),
        ("tools", "toll", b"{}", {"errorClass": "ToolNotFoundError"}, "hint", "tool"),
        ("toolz", "tool", b"{}", {"errorClass": "ServerNotFoundError"}, "hint", "tools"),
        ("__proto__", "constructor", b"{}", {"errorClass": "ServerNotFoundError"}, "hint", "listServers"),
    ],
)
async def test_what_never_reaches_a_tool(
    server: str, tool: str, body: bytes, about: dict[str, str], field: str, word: str
) -> None:
    made = Calls(tool=AsyncMock(side_effect=AssertionError("it is reached")))
    ok, error = await made.call(tool, body, server)
    assert (ok, {name: error[name] for name in about}) == (False, about)
    assert error["hint"] and word in error[field]
    assert made.calls.counts() == CallCounts(0, 0, 1)
    assert made.traced[0].ok is False and made.traced[0].error


async def awaits_what_is_cancelled(_: dict[str, Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancels_its_own_task(_: dict[str, Any]) -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


COMPLETED = {"errorClass": "ToolCallError", "certainty": "completed"}
MAY_HAVE_RUN = {"errorClass": "ToolCallError", "certainty": "may_have_run"}
LARGE_ERROR = {"message": "m", "hint": "h", "result": None}


@pytest.mark.parametrize(
    ("tool", "expected", "counts"),
    [
        (
            AsyncMock(return_value=ToolResult(b'{"content":[{"type":"text","text":"no"}],"isError":true}')),
            {**COMPLETED, "message": "no"},
            CallCounts(1, 0, 0),
        ),
        (AsyncMock(side_effect=ZeroDivisionError("secret")), MAY_HAVE_RUN, CallCounts(0, 1, 0)),
        (
            AsyncMock(side_effect=SchemaValidationError("Wrong.", hint="Right.", path="/a")),
            {"toolName": "read-it", "exportName": "read_it", "path": "/a"},
            CallCounts(0, 0, 1),
        ),
        (awaits_what_is_cancelled, MAY_HAVE_RUN, CallCounts(0, 1, 0)),
        (cancels_its_own_task, MAY_HAVE_RUN, CallCounts(0, 1, 0)),
        # The tool has run, and its result cannot be sent.
        (AsyncMock(return_value="x" * 20_000), COMPLETED, CallCounts(1, 0, 0)),
        # Over the cap: it loses its result, and nothing else.
        (
            AsyncMock(side_effect=ToolCallError("m", hint="h", result={"big": "x" * 20_000})),
            LARGE_ERROR,
            CallCounts(0, 1, 0),
        ),
    ],
    ids=["its own", "unknown", "validation", "what is cancelled", "its own task", "large", "large error"],
)
async def test_an_error_of_a_tool_is_told(tool: Tool, expected: dict[str, Any], counts: CallCounts) -> None:
    made = Calls(**{"read-it": tool})
    ok, error = await made.call("read-it")
    assert (ok, {name: error.get(name) for name in expected}) == (False, expected)
    assert "secret" not in json.dumps(error)
    assert made.calls.counts() == counts


async def test_who_learns_of_answers_is_told_at_the_runs_end_or_when_they_are_many() -> None:
    made = Calls(most=100)
    bodies = [b'{"a":%d}' % number for number in range(NOTED_ANSWERS + 1)]
    told: list[int] = []
    for body in bodies:
        await made.call(body=body)
        await turns()
        told.append(len(made.learnt))
    assert told == [0] * (NOTED_ANSWERS - 1) + [NOTED_ANSWERS] * 2
    await made.calls.cancel()
    assert made.learnt == bodies


async def test_cancelling_says_what_is_certain_of_each_call() -> None:
    made = Calls(concurrent=1, hangs=hangs)
    await made.call()
    for call_id in (2, 3):
        made.calls.begin(call_id, "tools", "hangs", b"")
    await turns()
    await made.calls.cancel()
    assert made.calls.counts() == CallCounts(1, 1, 1)
    assert [(entry.ok, entry.error) for entry in made.calls.trace()] == [
        (True, None),
        (False, calls.IN_FLIGHT),
        (False, NEVER_SENT),
    ]
    assert list(made.replies) == [1]
    await made.calls.cancel()


async def test_waiting_is_counted_once_however_many_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answered = 1.0, asyncio.Event()
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: now))

    async def slow(_: dict[str, Any]) -> None:
        await answered.wait()

    made = Calls(slow=slow)
    assert made.calls.wait_ms == 0
    for call_id in (1, 2, 3):
        made.calls.begin(call_id, "tools", "slow", b"")
    await turns()
    now += 0.25
    assert made.calls.wait_ms == 250
    answered.set()
    for call_id in (1, 2, 3):
        await within(made.replies[call_id])
    await turns()
    now += 1
    assert made.calls.wait_ms == 250


async def test_large_inputs_are_decoded_one_after_the_other_and_far_too_many_are_not_made() -> None:
    alone, release = asyncio.Lock(), asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> int:
        assert not alone.locked(), "two are decoded"
        async with alone:
            await release.wait()
        return len(arguments["text"])

    made = Calls(slow=slow, max_reply_bytes=10_000)
    body = json.dumps({"text": "x" * 8_000}).encode()
    for call_id in range(1, 7):
        made.calls.begin(call_id, "tools", "slow", body)
    ok, refusal = await within(made.replies[5])
    assert not ok and refusal["certainty"] == "not_started" and "not called" in refusal["message"]
    await within(made.replies[6])
    release.set()
    for call_id in range(1, 5):
        assert await within(made.replies[call_id]) == (True, 8_000)
    assert await made.call(body=body, tool="slow") == (True, 8_000)
    assert made.calls.counts() == CallCounts(5, 0, 2)


async def test_what_fits_goes_on_at_once_and_the_rest_in_its_order(loads: CallLoads) -> None:
    await loads.enter(6)
    await loads.enter(4)
    entered: list[int] = []

    async def one(size: int) -> None:
        await loads.enter(size)
        entered.append(size)

    tasks = [asyncio.create_task(one(size)) for size in (5, 1, 30, 2)]
    for left, expected, why in (
        ([], [], "there is no room"),
        ([4], [], "a small one must not go before a large one for ever"),
        ([6], [5, 1], "both fit"),
        ([5, 1], [5, 1, 30], "over the cap, and so by itself"),
        ([30], [5, 1, 30, 2], "the last"),
    ):
        for size in left:
            loads.leave(size)
        await turns()
        assert entered == expected, why
    await asyncio.gather(*tasks)


async def test_one_that_gives_up_makes_way(loads: CallLoads) -> None:
    await loads.enter(8)
    large = asyncio.create_task(loads.enter(9))
    await turns()
    small = asyncio.create_task(loads.enter(2))
    await turns()
    large.cancel()
    await within(small)
    with pytest.raises(asyncio.CancelledError):
        await large
    loads.leave(2)
    # Cancelled at the moment at which it is let in: its place is given back.
    last = asyncio.create_task(loads.enter(10))
    await turns()
    loads.leave(8)
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    await within(loads.enter(10))


async def test_one_that_gave_up_and_was_passed_over_before_its_turn_leaves_nothing(loads: CallLoads) -> None:
    await loads.enter(8)
    large = asyncio.create_task(loads.enter(9))
    await turns()
    large.cancel()
    loads.leave(8)
    with pytest.raises(asyncio.CancelledError):
        await large
    assert loads.enters(6)
    assert not loads.enters(6)


def test_far_too_much_is_not_held(loads: CallLoads) -> None:
    assert loads.hold(10 * WAITING_FACTOR + 5), "one is always held"
    assert not loads.hold(1)
    loads.drop(10 * WAITING_FACTOR + 5)
    held = [loads.hold(size) for size in (*[10] * WAITING_FACTOR, 1)]
    assert held == [True] * WAITING_FACTOR + [False]


async def test_the_name_of_its_tool_is_cut() -> None:
    name = "very_long_" * 1_000
    with pytest.raises(ToolCallError) as raised:
        await result_of(RawJson(b'"%s"' % (b"x" * 100)), "server", ToolEntry(name, name), 50)
    assert raised.value.message.startswith("very_long_") and len(raised.value.message) < 300


READ: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "tail": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}


async def call(
    schema: JsonSchema | None, body: bytes, schemas: ValidatorCache | None = None
) -> tuple[bool, Any, list[Any]]:
    """Calls the tool once: ok, the answer, the inputs that reached the tool."""
    read_file = AsyncMock(return_value="done")
    made = Calls(schema=schema, schemas=schemas, max_reply_bytes=100_000, **{"read-file": read_file})
    ok, answer = await made.call("read-file", body)
    assert made.calls.counts() == (CallCounts(1, 0, 0) if ok else CallCounts(0, 0, 1))
    return ok, answer, [called.args[0] for called in read_file.await_args_list]


UNIQUE: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "uniqueItems": True}},
}
MANY_WAYS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"anyOf": [{"type": "integer", "maximum": n} for n in range(400)]}}
    },
}
ROWS = list(range(-5_000, 0))


async def test_a_long_list_of_unique_items_is_validated() -> None:
    assert (await call(UNIQUE, json.dumps({"rows": ROWS}).encode()))[0]
    ok, error, inputs = await call(UNIQUE, json.dumps({"rows": [*ROWS, ROWS[0]]}).encode())
    assert (ok, inputs, error["errorClass"]) == (False, [], "SchemaValidationError")


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (MANY_WAYS, ROWS * 2, "cannot be checked against its schema: it could take too long"),
        (
            UNIQUE,
            [2**70 + row for row in ROWS],
            "cannot be checked against its schema: it could take too long",
        ),
        (READ, [0] * 100_001, "has over 100000 values"),
        (READ, "\n" * 1_600_000, "has over 1500000 escaped characters"),
        (READ, [10**79 + row for row in range(99_000)], "has over 150000 groups of 16 digits"),
    ],
    ids=["steps", "big integers", "values", "escapes", "digits"],
)
async def test_an_input_that_would_hold_the_loop_is_refused(schema: JsonSchema, value: Any, why: str) -> None:
    with longest_step() as longest:
        ok, error, inputs = await call(schema, json.dumps({"rows": value}).encode())
    assert (ok, inputs, error["certainty"]) == (False, [], "not_started")
    assert error["message"] == f"read_file was not called: its input {why}." and error["hint"]
    assert longest[0] < 0.2


@pytest.mark.parametrize(
    "value",
    ["é\U0001f600" * 2_500_000, [[]] * 99_000, ["x" * 160] * 99_000, '1"' * 8 + "1" * 8_000_000],
    ids=["text", "lists", "texts", "digits"],
)
async def test_a_large_input_reaches_the_tool_and_holds_the_loop_for_no_long_step(value: Any) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    schema = {"type": "object", "properties": {"rows": {"type": ["array", "string"]}}, "required": ["rows"]}
    body = json.dumps({"rows": value}, ensure_ascii=False).encode()
    with longest_step() as longest:
        ok, _, inputs = await call(schema, body)
    assert ok and inputs == [{"rows": value}]
    assert longest[0] < 0.2


@pytest.mark.parametrize("depth", [129, 20_000])
async def test_an_input_that_is_too_deep_is_refused_in_true_words(depth: int) -> None:
    ok, error, inputs = await call(READ, b"[" * depth + b"]" * depth)
    about = {
        "message": "The input of read_file is nested deeper than 128 levels.",
        "path": "",
        "serverId": "tools",
        "toolName": "read-file",
        "exportName": "read_file",
    }
    assert (ok, inputs, {name: error[name] for name in about}) == (False, [], about)
    assert error["expected"] and error["received"] and error["hint"]


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (READ, b'{"path": "a"}'),
        (READ, b'{"path": "a", "tail": 1.0}'),
        pytest.param(
            {"type": "object", "properties": {"tail": {"type": "integer", "default": 7}}},
            b"{}",
            id="defaults are not filled in",
        ),
        pytest.param(
            {"$ref": "http://127.0.0.1:1/schema.json"},
            b'{"anything": 1}',
            id="the upstream judges what cannot be checked",
        ),
        *(
            (schema, body)
            for schema in (None, {}, True, {"type": "object"}, {"type": "object", "properties": {}})
            for body in (b"", b"{}")
        ),
    ],
)
async def test_what_fits_reaches_the_upstream_unchanged(schema: Any, body: bytes) -> None:
    assert await call(schema, body) == (True, "done", [json.loads(body or b"{}")])


async def test_runs_that_share_the_cache_share_what_is_compiled() -> None:
    cache = ValidatorCache()
    for _ in range(3):
        await call(READ, b'{"path": "a"}', cache)
    assert len(cache._held) == 1  # pyright: ignore[reportPrivateUsage]


CORRECT = "Read the tool's message and correct the call."
READS = {"readOnlyHint": True}


@pytest.mark.parametrize(
    ("message", "certainty", "annotations", "hint"),
    [
        ("the bank did not answer pay within 60 s", Certainty.MAY_HAVE_RUN, None, LOOK_FIRST),
        ("the bank did not answer pay within 60 s", Certainty.MAY_HAVE_RUN, READS, REPEAT),
        ("it might already have been sent", Certainty.COMPLETED, None, LOOK_FIRST),
        ("import partially done", Certainty.COMPLETED, {"readOnlyHint": False}, LOOK_FIRST),
        ("no such customer", Certainty.COMPLETED, None, CORRECT),
        ("no such customer", Certainty.COMPLETED, READS, f"{CORRECT} {UNCHANGED}"),
        ("no such customer", Certainty.MAY_HAVE_RUN, READS, CORRECT),
        ("timed out while it waited for its turn", Certainty.NOT_STARTED, None, CORRECT),
    ],
)
def test_hints(message: str, certainty: Certainty, annotations: dict[str, bool] | None, hint: str) -> None:
    error = ToolCallError(message, hint=CORRECT, certainty=certainty)
    fit_hint(error, ToolEntry("pay", "pay", annotations=annotations))
    assert error.hint == hint
