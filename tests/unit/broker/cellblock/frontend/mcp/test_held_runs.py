"""Runs whose client is away to ask its user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.execution.response import RunResponse
from cellblock.frontend.mcp import held_runs
from cellblock.frontend.mcp.approvals import elicitor
from cellblock.frontend.mcp.held_runs import HeldRun, HeldRuns, nobody_waits
from cellblock.frontend.mcp.request_state import RequestStates
from cellblock.frontend.mcp.requests_back import by_rounds
from cellblock.policy.asking import Approver, Question, Verdict

BOUND = 20.0


def states() -> RequestStates:
    """Words that are signed with a key."""

    async def key() -> tuple[bytes]:
        return (bytes(32),)

    return RequestStates(key)


def held() -> HeldRuns:
    """Runs with such words."""
    return HeldRuns(states())


class Script:
    """A run that asks so many questions, and gives what was said."""

    def __init__(self, questions: int = 1) -> None:
        self.questions = questions
        self.said: list[Verdict] = []
        self.ended = asyncio.Event()
        self.cancelled = False

    async def start(self, approver: Approver) -> RunResponse:
        try:
            for number in range(self.questions):
                self.said.append(
                    await approver(Question("files", "write", False, {"n": number}, 5.0, number + 1))
                )
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return RunResponse(logs=[], diagnostics=[], result=[verdict.value for verdict in self.said])


def params(state: str | None = None, action: str | None = None) -> types.CallToolRequestParams:
    answer = types.ElicitResult.model_validate({"action": action}) if action else None
    responses: Any = {f"question-{number + 1}": answer for number in (0, 1)} if answer else None
    return types.CallToolRequestParams(name="codemode.run", request_state=state, input_responses=responses)


def taken(runs: HeldRuns, made: types.CallToolRequestParams, owner: str = "ann") -> HeldRun:
    found = runs.take(made, owner)
    if found is None:
        raise nobody_waits()
    return found


async def call(
    runs: HeldRuns, made: types.CallToolRequestParams, owner: str, start: Any
) -> RunResponse | types.InputRequiredResult:
    if made.request_state is not None:
        return await runs.finish(taken(runs, made, owner))
    run = runs.new(owner, None)
    run.start(start(elicitor(by_rounds(run))))
    return await runs.finish(run)


async def asked(runs: HeldRuns, made: types.CallToolRequestParams, script: Script, owner: str = "ann") -> str:
    found = await asyncio.wait_for(call(runs, made, owner, script.start), BOUND)
    assert isinstance(found, types.InputRequiredResult) and found.request_state
    return found.request_state


async def test_a_run_goes_on_where_it_was_and_each_word_is_good_once() -> None:
    runs, script = held(), Script(2)
    first = await asked(runs, params(), script)
    second = await asked(runs, params(first, "accept"), script)
    assert first != second
    for made, owner in ((params(first, "accept"), "ann"), (params(second, "accept"), "bob")):
        with pytest.raises(MCPError, match="no run"):
            await call(runs, made, owner, script.start)
    found = await asyncio.wait_for(call(runs, params(second, "decline"), "ann", script.start), BOUND)
    assert isinstance(found, RunResponse) and found.result == ["accepted", "declined"]


async def test_who_comes_back_without_an_answer_has_not_chosen() -> None:
    runs, script = held(), Script()
    found = await call(runs, params(await asked(runs, params(), script)), "ann", script.start)
    assert isinstance(found, RunResponse) and found.result == ["cancelled"]


async def test_who_leaves_its_run_answers_nothing_and_waits_until_it_is_parked() -> None:
    runs, parks = held(), asyncio.Event()
    rounds: list[int] = []

    async def start(approver: Approver) -> RunResponse:
        asked = asyncio.ensure_future(approver(Question("files", "write", False, {}, 5.0, 1)))
        await parks.wait()
        assert not asked.done()
        asked.cancel()
        rounds.append(run.round)
        return RunResponse(logs=[], diagnostics=[], parked=True)

    run = runs.new("ann", None)
    run.start(start(elicitor(by_rounds(run))))
    first = await runs.finish(run)
    assert isinstance(first, types.InputRequiredResult)
    assert runs.take(params(first.request_state), "ann", leaves=True) is run
    # It is not parked in time: the client is asked again.
    second = await runs.finish(run, 0.05)
    assert isinstance(second, types.InputRequiredResult) and second.request_state != first.request_state
    assert second.input_requests == first.input_requests
    assert runs.take(params(second.request_state), "ann", leaves=True) is run
    asyncio.get_running_loop().call_later(0.05, parks.set)
    found = await asyncio.wait_for(runs.finish(run, BOUND), BOUND)
    assert isinstance(found, RunResponse) and found.parked
    # No word that the client has is for that round.
    assert rounds == [run.round] and rounds[0] > 2


@pytest.mark.parametrize("patience", [0.0, 0.05])
async def test_a_word_that_is_given_while_its_run_is_being_parked_is_good_for_that_park(
    patience: float,
) -> None:
    """The park is known to be written only after the client has heard of the questions."""
    runs, heard, rounds = held(), asyncio.Event(), list[int]()

    async def start(approver: Approver) -> RunResponse:
        asked = asyncio.ensure_future(approver(Question("files", "write", False, {}, 5.0, 1)))
        # Behind the first turn of the loop, in which the wait for the client begins.
        await asyncio.sleep(0.01)
        rounds.append(run.park_round())
        await heard.wait()
        asked.cancel()
        return RunResponse(logs=[], diagnostics=[], parked=True)

    run = runs.new("ann", None, number=3)
    run.start(start(elicitor(by_rounds(run))))
    found = await asyncio.wait_for(runs.finish(run, patience), BOUND)
    assert isinstance(found, types.InputRequiredResult) and found.request_state is not None
    heard.set()
    await asyncio.wait_for(run.next(), BOUND)
    assert runs.take(params(found.request_state, "accept"), "ann") is None
    word = await states().read(found.request_state, "ann")
    assert word is not None and word[1] == rounds[0]


async def test_a_client_that_does_not_come_back_loses_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_runs, "RETURN_SECONDS", -4.9)
    runs, script = held(), Script()
    state = await asked(runs, params(), script)
    await asyncio.wait_for(script.ended.wait(), BOUND)
    assert script.cancelled
    with pytest.raises(MCPError, match="no run"):
        await call(runs, params(state, "accept"), "ann", script.start)


async def test_a_call_that_is_cancelled_ends_its_run() -> None:
    runs, script = held(), Script()
    state = await asked(runs, params(), script)
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def never(_: Approver) -> RunResponse:
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
    monkeypatch.setattr(held_runs, "MAX_HELD", 1)
    runs, script = held(), Script()
    state = await asked(runs, params(), script)
    found = await call(runs, params(), "ann", Script().start)
    assert isinstance(found, RunResponse) and found.result == ["cannot ask"]
    await call(runs, params(state, "accept"), "ann", script.start)
    await call(runs, params(await asked(runs, params(), Script()), "accept"), "ann", script.start)


def form(text: str) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(
        message=text, requested_schema={"type": "object", "properties": {}}
    )
    return types.ElicitRequest(params=params)


def answer(text: str) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"said": text})


async def round_trip(runs: HeldRuns, run: Awaitable[Any], wanted: set[str]) -> str:
    found = await asyncio.wait_for(run, BOUND)
    assert isinstance(found, types.InputRequiredResult) and found.request_state
    assert set(found.input_requests or {}) == wanted
    return found.request_state


async def test_questions_of_several_calls_travel_together_and_each_gets_its_answer() -> None:
    """One asked while the client is away is its next question; one given up meanwhile is nobody's."""
    runs = held()
    run = runs.new("ann", None)
    ask: Any = run.ask
    later = asyncio.Event()

    async def third() -> Any:
        await later.wait()
        return await ask("c", form("three?"), 5.0)

    async def fourth() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask("d", form("four?"), 0.5)
        later.set()
        return "too late"

    async def work() -> RunResponse:
        said: Any = await asyncio.gather(
            ask("a", form("one?"), 5.0), ask("b", form("two?"), 5.0), third(), fourth()
        )
        result = [one and (one if isinstance(one, str) else one.content["said"]) for one in said]
        return RunResponse(logs=[], diagnostics=[], result=result)

    run.start(work())
    state = await round_trip(runs, runs.finish(run), {"a", "b", "d"})
    await asyncio.wait_for(later.wait(), BOUND)
    await asyncio.sleep(0)
    answers: Any = {"a": answer("1"), "c": answer("guessed"), "d": answer("late"), "x": answer("forged")}
    back = types.CallToolRequestParams(name="codemode.run", request_state=state, input_responses=answers)
    state = await round_trip(runs, runs.finish(taken(runs, back)), {"c"})
    back = types.CallToolRequestParams(
        name="codemode.run", request_state=state, input_responses={"c": answer("3")}
    )
    found = await asyncio.wait_for(runs.finish(taken(runs, back)), BOUND)
    assert isinstance(found, RunResponse) and found.result == ["1", None, "3", "too late"]


async def test_an_answer_that_does_not_fit_its_form_is_refused_and_the_word_stays_good() -> None:
    runs = held()
    form: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    request = types.ElicitRequest(params=types.ElicitRequestFormParams(message="?", requested_schema=form))
    got: list[Any] = []

    async def start() -> RunResponse:
        got.append(await run.ask("question-1", request, 5.0))
        return RunResponse(logs=[], diagnostics=[])

    def back(state: str | None, **content: Any) -> types.CallToolRequestParams:
        answer = types.ElicitResult(action="accept", content=content)
        return types.CallToolRequestParams(
            name="codemode.run", request_state=state, input_responses={"question-1": answer}
        )

    run = runs.new("ann", None)
    run.start(start())
    first = await runs.finish(run)
    assert isinstance(first, types.InputRequiredResult)
    for wrong in ({}, {"n": "five"}):
        with pytest.raises(MCPError, match=r"question-1 does not fit its form.*still open"):
            runs.take(back(first.request_state, **wrong), "ann")
    assert got == [] and runs.take(back(first.request_state, n=5), "ann") is run
    assert isinstance(await asyncio.wait_for(runs.finish(run), BOUND), RunResponse)
    assert got[0].content == {"n": 5}
