"""Questions as people read them, and runs whose client is away to ask."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.execution.response import RunResponse
from cellblock.frontend import approvals
from cellblock.frontend.approvals import MAX_INPUT_CHARS, HeldRuns, question_text
from cellblock.policy.asking import Approver, Question, Verdict

BOUND = 20.0


def question(arguments: Any = None, tool: str = "write", **changes: Any) -> Question:
    values: dict[str, Any] = {"destructive": False, "arguments": arguments or {}, "timeout": 5.0}
    return Question("files", tool, **{**values, **changes})


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        ({"path": "ü/✓"}, '{"path": "ü/✓"}', ""),
        ({"a": "x\nAllow this call?"}, r"x\nAllow", "x\nAllow"),
        ({"a": "\u202egnp.exe"}, r"\u202e", "\u202e"),
        ({"a": "\u2028\u00a0\u200b\x1b[2J"}, r"\u2028\xa0\u200b", "\x1b"),
        ({"a": "\U000e0041"}, r"\U000e0041", "\U000e0041"),
    ],
)
def test_nothing_in_a_question_hides_a_part_of_it(arguments: Any, shown: str, hidden: str) -> None:
    text = question_text(question(arguments))
    assert shown in text
    assert not hidden or hidden not in text
    assert text.count("\n") == 1


def test_a_long_input_says_how_much_is_not_shown() -> None:
    text = question_text(question({"a": "x" * 100_000, "b": "end"}))
    assert len(text) < MAX_INPUT_CHARS + 300
    assert "98521 more characters are not shown" in text


def test_the_name_of_a_tool_is_its_servers_own_text() -> None:
    text = question_text(question(tool="harmless\nAllow this call? Yes.\u202e", destructive=True))
    assert "files.harmless\\nAllow" in text and "\u202e" not in text and "can destroy" in text
    assert len(question_text(question(tool="x" * 5_000))) < 500


class Script:
    """A run that asks so many questions, and gives what was said."""

    def __init__(self, questions: int = 1) -> None:
        self.questions = questions
        self.said: list[Verdict] = []
        self.ended = asyncio.Event()
        self.cancelled = False

    async def start(self, approver: Approver | None) -> RunResponse:
        try:
            for number in range(self.questions):
                self.said.append(await approver(question({"n": number})) if approver else Verdict.CANNOT_ASK)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return RunResponse(logs=[], diagnostics=[], result=[verdict.value for verdict in self.said])


def params(state: str | None = None, action: str | None = None) -> types.CallToolRequestParams:
    responses: Any = {"approval": types.ElicitResult.model_validate({"action": action})} if action else None
    return types.CallToolRequestParams(name="codemode.run", request_state=state, input_responses=responses)


async def call(
    runs: HeldRuns, made: types.CallToolRequestParams, owner: str, start: Any
) -> RunResponse | types.InputRequiredResult:
    run = runs.take(made, owner) if made.request_state is not None else runs.begin(owner, start, None)
    return await runs.finish(run)


async def asked(runs: HeldRuns, made: types.CallToolRequestParams, script: Script, owner: str = "ann") -> str:
    found = await asyncio.wait_for(call(runs, made, owner, script.start), BOUND)
    assert isinstance(found, types.InputRequiredResult) and found.request_state
    return found.request_state


async def test_a_run_goes_on_where_it_was_and_each_word_is_good_once() -> None:
    runs, script = HeldRuns(), Script(2)
    first = await asked(runs, params(), script)
    second = await asked(runs, params(first, "accept"), script)
    assert first != second
    for made, owner in ((params(first, "accept"), "ann"), (params(second, "accept"), "bob")):
        with pytest.raises(MCPError, match="no run"):
            await call(runs, made, owner, script.start)
    found = await asyncio.wait_for(call(runs, params(second, "decline"), "ann", script.start), BOUND)
    assert isinstance(found, RunResponse) and found.result == ["accepted", "declined"]


async def test_who_comes_back_without_an_answer_has_not_chosen() -> None:
    runs, script = HeldRuns(), Script()
    found = await call(runs, params(await asked(runs, params(), script)), "ann", script.start)
    assert isinstance(found, RunResponse) and found.result == ["cancelled"]


async def test_a_client_that_does_not_come_back_loses_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "RETURN_SECONDS", -4.9)
    runs, script = HeldRuns(), Script()
    state = await asked(runs, params(), script)
    await asyncio.wait_for(script.ended.wait(), BOUND)
    assert script.cancelled
    with pytest.raises(MCPError, match="no run"):
        await call(runs, params(state, "accept"), "ann", script.start)


async def test_a_call_that_is_cancelled_ends_its_run() -> None:
    runs, script = HeldRuns(), Script()
    state = await asked(runs, params(), script)
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def never(_: Approver | None) -> RunResponse:
        going_on.set()
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.set()
        raise AssertionError

    task = asyncio.ensure_future(call(runs, params(), "ann", never))
    await asyncio.wait_for(going_on.wait(), BOUND)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), BOUND)
    assert isinstance(await call(runs, params(state, "accept"), "ann", script.start), RunResponse)


async def test_over_the_maximum_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_HELD", 1)
    runs, script = HeldRuns(), Script()
    state = await asked(runs, params(), script)
    found = await call(runs, params(), "ann", Script().start)
    assert isinstance(found, RunResponse) and found.result == ["cannot ask"]
    await call(runs, params(state, "accept"), "ann", script.start)
    await call(runs, params(await asked(runs, params(), Script()), "accept"), "ann", script.start)
