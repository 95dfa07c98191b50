"""The tool calls of a run: each once, each traced, each answered, with what is certain about it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import mcp_types as types
import pytest
from pydantic_core import to_json

from cellblock.base.errors import Certainty, SchemaValidationError, ToolCallError
from cellblock.base.offload.light import LIGHT_BYTES
from cellblock.run import payload
from cellblock.run.calls import NOTED_ANSWERS, ToolCalls
from cellblock.run.events import Observer, RunEvents
from cellblock.run.response import TraceEntry
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.catalog.outputs import ResultKind
from support.memory_host import BOUND, FakeUpstreams, Tool, always, echo, free_clock, run_context, turns


class Calls:
    """Tool calls with what was answered, traced and learnt from."""

    def __init__(
        self, *, most: int = 3, concurrent: int = 4, max_reply_bytes: int = 10_000, **tools: Tool
    ) -> None:
        upstreams = FakeUpstreams({"echo": echo, **tools})
        self.replies: dict[int, tuple[bool, Any]] = {}
        self.traced: list[TraceEntry] = []
        self.learnt: list[bytes] = []
        self._changed = asyncio.Event()
        events = RunEvents()
        events.add(Observer(on_call=self.traced.append))
        context = run_context(
            upstreams.catalog,
            upstreams,
            calls=most,
            concurrent_calls=concurrent,
            max_message_bytes=max_reply_bytes,
            watch=events.open("tests", ""),
            learner=self,
        )
        self.calls = ToolCalls(context, self._reply, always, free_clock())

    def offer(self, server: str, tool: ToolEntry, kind: ResultKind, body: bytes, value: Any) -> None:
        """Takes a result, as a learner does."""
        self.learnt.append(body)

    def _reply(self, call_id: int, ok: bool, body: bytes) -> None:
        assert call_id not in self.replies, "answered twice"
        self.replies[call_id] = ok, json.loads(body)
        self._changed.set()

    async def call(self, tool: str = "echo", body: bytes = b"{}", server: str = "tools") -> tuple[bool, Any]:
        call_id = len(self.calls.calls) + 1
        self.calls.begin(call_id, server, tool, body)
        return await self.reply(call_id)

    async def reply(self, call_id: int) -> tuple[bool, Any]:
        async with asyncio.timeout(BOUND):
            while call_id not in self.replies:
                self._changed.clear()
                await self._changed.wait()
        return self.replies[call_id]


async def test_a_call_and_its_trace() -> None:
    made = Calls()
    assert await made.call(body=b'{"a": [1, null]}') == (True, {"a": [1, None]})
    assert await made.call(body=b"") == (True, {})
    entry = made.traced[0]
    assert (entry.server_id, entry.tool_name, entry.ok, entry.error) == ("tools", "echo", True, None)
    assert made.calls.trace() == made.traced
    assert (made.calls.counts().completed, made.calls.at_limit) == (2, False)
    await made.call()
    assert made.calls.at_limit


@pytest.mark.slow
async def test_large_data_of_a_python_tool_is_encoded_beside_the_loop_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is encoded on the loop, and what at a time, is little; what is over the cap is not encoded to its end."""
    here = threading.current_thread()
    on_loop: list[int] = []
    beside: list[int] = []

    def noted(value: Any, **how: Any) -> bytes:
        body = to_json(value, **how)
        (on_loop if threading.current_thread() is here else beside).append(len(body))
        return body

    monkeypatch.setattr(payload, "to_json", noted)
    large = {"rows": [{"id": number, "tags": ["a", []]} for number in range(60_000)], "text": "é" * 300_000}

    async def answer(_: dict[str, Any]) -> Any:
        return large

    assert await Calls(answer=answer, max_reply_bytes=10_000_000).call("answer") == (True, large)
    assert max(on_loop, default=0) < LIGHT_BYTES
    assert max(beside) < LIGHT_BYTES and sum(beside) > 2_000_000
    beside.clear()
    ok, error = await Calls(answer=answer).call("answer")
    assert not ok and "over the maximum of 10000" in error["message"]
    assert sum(beside) < LIGHT_BYTES


async def test_mcp_results_are_unwrapped() -> None:
    async def answer(_: dict[str, Any]) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="hi")])

    assert await Calls(answer=answer).call("answer") == (True, "hi")


@pytest.mark.parametrize(
    ("body", "received"),
    [
        (b"[]", "array"),
        (b"null", "null"),
        (b'"x"', "str"),
        (b"1", "number"),
        (b"true", "bool"),
        (b"nonsense", None),
        (b"[" * 300, None),
    ],
)
async def test_an_input_that_is_no_object_never_reaches_the_tool(body: bytes, received: str | None) -> None:
    reached: list[Any] = []

    async def tool(arguments: dict[str, Any]) -> None:
        reached.append(arguments)

    made = Calls(tool=tool)
    ok, error = await made.call("tool", body)
    assert not ok and reached == []
    assert error["errorClass"] == "SchemaValidationError" and error["hint"]
    assert (error["serverId"], error["toolName"], error["exportName"]) == ("tools", "tool", "tool")
    assert received is None or received in error["received"]
    assert made.calls.counts().not_started == 1


@pytest.mark.parametrize(
    ("server", "tool", "error_class", "word"),
    [
        ("tools", "ecko", "ToolNotFoundError", "echo"),
        ("toolz", "echo", "ServerNotFoundError", "tools"),
        ("__proto__", "constructor", "ServerNotFoundError", "listServers"),
    ],
)
async def test_what_does_not_exist(server: str, tool: str, error_class: str, word: str) -> None:
    made = Calls()
    ok, error = await made.call(tool, server=server)
    assert (ok, error["errorClass"]) == (False, error_class)
    assert word in error["hint"]
    assert made.calls.counts().not_started == 1
    assert made.traced[0].ok is False and made.traced[0].error


async def test_a_tools_own_error_has_completed_and_an_unknown_one_may_have_run() -> None:
    async def fails(_: dict[str, Any]) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="no")], is_error=True)

    async def breaks(_: dict[str, Any]) -> None:
        raise ZeroDivisionError("secret")

    made = Calls(fails=fails, breaks=breaks)
    _, error = await made.call("fails")
    assert (error["errorClass"], error["message"], error["certainty"]) == ("ToolCallError", "no", "completed")
    _, error = await made.call("breaks")
    assert (error["errorClass"], error["certainty"]) == ("ToolCallError", "may_have_run")
    assert "secret" not in json.dumps(error)
    counts = made.calls.counts()
    assert (counts.completed, counts.in_flight) == (1, 1)


async def test_a_validation_error_of_a_tool_names_the_export() -> None:
    async def strict(_: dict[str, Any]) -> None:
        raise SchemaValidationError("Wrong.", hint="Right.", path="/a")

    _, error = await Calls(**{"read-it": strict}).call("read-it")
    assert (error["toolName"], error["exportName"], error["path"]) == ("read-it", "read_it", "/a")


async def test_a_tool_that_awaits_something_cancelled_is_answered() -> None:
    async def unlucky(_: dict[str, Any]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def odd(_: dict[str, Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    made = Calls(unlucky=unlucky, odd=odd)
    for tool in ("unlucky", "odd"):
        ok, error = await made.call(tool)
        assert (ok, error["errorClass"], error["certainty"]) == (False, "ToolCallError", "may_have_run")


async def test_who_learns_of_answers_is_told_at_the_runs_end_or_when_they_are_many() -> None:
    made = Calls(most=100)
    bodies = [b'{"a":%d}' % number for number in range(NOTED_ANSWERS + 1)]
    for body in bodies[:-1]:
        assert not made.learnt
        await made.call(body=body)
    await turns()
    assert made.learnt == bodies[:-1]
    await made.call(body=bodies[-1])
    await turns()
    assert made.learnt == bodies[:-1]
    await made.calls.cancel()
    assert made.learnt == bodies


@pytest.mark.parametrize(
    "value", [object(), "x" * 20_000, {"a": b"\xff"}], ids=["object", "too large", "bytes"]
)
async def test_a_result_that_cannot_be_sent_says_that_the_tool_has_run(value: Any) -> None:
    async def tool(_: dict[str, Any]) -> Any:
        return value

    ok, error = await Calls(tool=tool).call("tool")
    assert (ok, error["certainty"], error["errorClass"]) == (False, "completed", "ToolCallError")


async def test_an_error_over_the_cap_loses_its_result_and_nothing_else() -> None:
    async def tool(_: dict[str, Any]) -> None:
        raise ToolCallError("m", hint="h", result={"big": "x" * 20_000})

    ok, error = await Calls(tool=tool).call("tool")
    assert not ok and "result" not in error and error["message"] == "m"


async def test_calls_run_at_the_same_time_up_to_the_bound() -> None:
    running = 0
    most = 0
    gate = asyncio.Event()

    async def slow(_: dict[str, Any]) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return 1

    made = Calls(concurrent=2, slow=slow)
    for call_id in range(1, 6):
        made.calls.begin(call_id, "tools", "slow", b"")
    await turns()
    assert running == 2
    gate.set()
    for call_id in range(1, 6):
        assert await made.reply(call_id) == (True, 1)
    assert most == 2


async def test_cancelling_says_what_is_certain_of_each_call() -> None:
    async def hangs(_: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    made = Calls(concurrent=1, hangs=hangs)
    await made.call()
    for call_id in (2, 3):
        made.calls.begin(call_id, "tools", "hangs", b"")
    await turns()
    await made.calls.cancel()
    counts = made.calls.counts()
    assert (counts.completed, counts.in_flight, counts.not_started) == (1, 1, 1)
    trace = made.calls.trace()
    assert [entry.ok for entry in trace] == [True, False, False]
    assert "may have run" in (trace[1].error or "") and "never sent" in (trace[2].error or "")
    assert list(made.replies) == [1]
    await made.calls.cancel()


async def test_waiting_is_counted_once_however_many_calls_wait() -> None:
    async def slow(_: dict[str, Any]) -> None:
        await asyncio.sleep(0.1)

    made = Calls(slow=slow)
    assert made.calls.wait_ms == 0
    started = time.monotonic()
    for call_id in (1, 2, 3):
        made.calls.begin(call_id, "tools", "slow", b"")
    for call_id in (1, 2, 3):
        await made.reply(call_id)
    await turns()
    waited = made.calls.wait_ms
    assert 90 <= waited <= (time.monotonic() - started) * 1000 + 1
    await asyncio.sleep(0.05)
    assert made.calls.wait_ms == waited


async def test_every_reply_is_json_text() -> None:
    async def odd(_: dict[str, Any]) -> Any:
        return {"a": "\ud800", "b": float("nan")}

    assert await Calls(odd=odd).call("odd") == (True, {"a": "�", "b": None})
    assert payload.decode(b"null") is None
    assert Certainty.COMPLETED.value == "completed"


async def test_large_inputs_are_decoded_one_after_the_other_and_far_too_many_are_not_made() -> None:
    inside = 0
    most = 0
    release = asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await release.wait()
        inside -= 1
        return len(arguments["text"])

    made = Calls(slow=slow, max_reply_bytes=10_000)
    body = json.dumps({"text": "x" * 8_000}).encode()
    for call_id in range(1, 7):
        made.calls.begin(call_id, "tools", "slow", body)
    ok, refusal = await made.reply(5)
    assert not ok and refusal["certainty"] == "not_started" and "not called" in refusal["message"]
    await made.reply(6)
    release.set()
    for call_id in range(1, 5):
        assert await made.reply(call_id) == (True, 8_000)
    assert most == 1
    assert await made.call(body=body, tool="slow") == (True, 8_000)
    counts = made.calls.counts()
    assert (counts.completed, counts.not_started, counts.in_flight) == (5, 2, 0)
