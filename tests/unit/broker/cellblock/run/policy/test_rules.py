"""The policy in one run: budgets, inputs, and questions, during which the clock stands still."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from cellblock.base.errors import CallDenied
from cellblock.base.settings.policy import Grant
from cellblock.run.policy.asking import Question, Verdict
from cellblock.run.policy.grants import Grants, Layer
from cellblock.run.policy.rules import MAX_QUESTIONS, RunRules
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from support.memory_host import hangs

TOOLS = {name: ToolEntry(name, name) for name in ("read", "write")}
FILES = ServerEntry("files", "files", "files", tools=tuple(TOOLS.values()))


class World:
    """The rules of one run, and a user who says what a test has her say."""

    def __init__(
        self,
        *layers: dict[str, Any],
        answer: Callable[[Question], Awaitable[Verdict]] | None = None,
    ) -> None:
        grants = Grants(tuple(Layer(Grant.model_validate(one), of_request=False) for one in layers))
        self.rules = RunRules(grants, answer)
        self.clock = Mock()

    @property
    def clock_said(self) -> list[str]:
        """What the clock was told, in that order."""
        return [name for name, *_ in self.clock.method_calls]

    async def call(self, tool: str = "read", arguments: Any = None) -> str | None:
        """None when the call may be sent, else the code."""
        try:
            await self.rules.admit(FILES, TOOLS[tool], {} if arguments is None else arguments, self.clock)
        except CallDenied as denied:
            told = denied.as_json()
            assert (told["errorClass"], told["certainty"]) == ("ToolCallError", "not_started")
            assert told["fault"] in ("script", "caller") and told["hint"]
            return str(told["code"])
        return None


@pytest.mark.parametrize(
    ("budgets", "calls", "allowed"),
    [
        ([{"files.*": 3, "files.write": 1}, {"*": 100}], "write write read read read", "yes no yes yes no"),
        ([{"*": 5}, {"*": 1}], "read read", "yes no"),
    ],
    ids=["of all tools that its pattern fits", "the smaller of two"],
)
async def test_a_budget(budgets: list[dict[str, int]], calls: str, allowed: str) -> None:
    world = World(*({"budgets": one} for one in budgets))
    codes = {"yes": None, "no": "BUDGET_USED_UP"}
    assert [await world.call(tool) for tool in calls.split()] == [codes[word] for word in allowed.split()]


async def test_many_schemas_for_one_call_take_no_longer_than_one_and_fail_closed() -> None:
    patterns = [
        f"{server}.{tool}" for server in ("f*", "fi*", "*s", "*") for tool in ("r*", "re*", "*d", "*")
    ]
    schema = {"properties": {"x": {"items": {"type": "integer"}}}}
    world = World(*({"arguments": dict.fromkeys(patterns, schema)} for _ in range(4)))
    assert await world.call(arguments={"x": [1] * 1_000}) is None
    large = {"x": [1] * 150_000}
    await world.call(arguments=large)
    began = time.process_time()
    with pytest.raises(CallDenied, match="all the schemas for it together could take too long"):
        await world.rules.admit(FILES, TOOLS["read"], large, world.clock)
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"path": "notes/a"}, None),
        ({"path": "secrets/a"}, "ARGUMENTS_NOT_GRANTED"),
        ({}, "ARGUMENTS_NOT_GRANTED"),
        ([], "ARGUMENTS_NOT_GRANTED"),
        ({"path": "notes/a", "x": 1}, "ARGUMENTS_NOT_GRANTED"),
        # What takes too long to check is not let through unchecked.
        ({"path": "notes/" + "a" * 40_000_000}, "ARGUMENTS_NOT_GRANTED"),
        ({"path": "notes/a", "many": [0] * 300_000}, "ARGUMENTS_NOT_GRANTED"),
    ],
)
async def test_an_input_must_fit_the_policys_schema(arguments: Any, expected: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "pattern": "^notes/"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    world = World({"arguments": {"files.read": schema}})
    assert await world.call("read", arguments) == expected
    assert await world.call("write", arguments) is None


async def test_a_tool_that_is_not_granted_is_refused_here_too() -> None:
    assert await World({"tools": ["files.write"]}).call("read") == "NOT_GRANTED"


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.ACCEPTED, None),
        (Verdict.DECLINED, "APPROVAL_DECLINED"),
        (Verdict.CANCELLED, "APPROVAL_CANCELLED"),
        (Verdict.CANNOT_ASK, "APPROVAL_UNAVAILABLE"),
    ],
)
async def test_what_the_user_says(verdict: Verdict, expected: str | None) -> None:
    asked: list[Question] = []

    async def answer(question: Question) -> Verdict:
        asked.append(question)
        assert world.clock_said == ["stop"]
        return verdict

    world = World({"approve": ["files.write"]}, answer=answer)
    assert await world.call("read") is None
    assert asked == world.clock_said == []
    assert await world.call("write", {"a": 1}) == expected
    assert (world.clock_said, world.rules.asked) == (["stop", "go_on"], 1)
    assert (asked[0].server_id, asked[0].tool_name, asked[0].arguments) == ("files", "write", {"a": 1})
    if verdict is Verdict.CANNOT_ASK:
        assert await world.call("write") == expected
        assert len(asked) == 1


async def test_nobody_to_ask() -> None:
    world = World({"approve": ["*"]})
    assert await world.call() == "APPROVAL_UNAVAILABLE"
    assert (world.clock_said, world.rules.pause_ms(parks=False)) == ([], 0)


async def test_a_user_who_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.run.policy.rules.APPROVAL_SECONDS", 1.0)
    answer = AsyncMock(side_effect=hangs)
    world = World({"approve": ["*"]}, answer=answer)
    assert [await world.call(), await world.call()] == ["APPROVAL_TIMEOUT", "APPROVAL_UNAVAILABLE"]
    assert (answer.call_count, world.clock_said) == (1, ["stop", "go_on"])
    assert world.rules.waited_ms >= 990


async def test_a_question_that_fails_is_no_approval() -> None:
    world = World({"approve": ["*"]}, answer=AsyncMock(side_effect=OSError("the client has gone")))
    assert await world.call() == "APPROVAL_UNAVAILABLE"
    assert world.clock_said == ["stop", "go_on"]


async def test_questions_come_one_at_a_time_and_no_more_than_a_user_can_take() -> None:
    alone = asyncio.Lock()

    async def answer(_: Question) -> Verdict:
        assert not alone.locked(), "two are open"
        async with alone:
            await asyncio.sleep(0)
        return Verdict.ACCEPTED

    world = World({"approve": ["*"]}, answer=answer)
    codes = await asyncio.gather(*(world.call() for _ in range(MAX_QUESTIONS + 2)))
    assert codes == [None] * MAX_QUESTIONS + ["TOO_MANY_QUESTIONS"] * 2
    # Who waits for its turn waits for the user, too.
    assert [world.clock_said.count(word) for word in ("stop", "go_on")] == [MAX_QUESTIONS + 2] * 2


async def test_a_declined_call_counts_for_its_budget() -> None:
    no = AsyncMock(return_value=Verdict.DECLINED)
    world = World({"approve": ["*"], "budgets": {"*": 2}}, answer=no)
    codes = [await world.call() for _ in range(3)]
    assert codes == ["APPROVAL_DECLINED", "APPROVAL_DECLINED", "BUDGET_USED_UP"]


async def test_a_run_that_ends_takes_its_question_back() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(_: Question) -> Verdict:
        begun.set()
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.set()
        raise AssertionError

    world = World({"approve": ["*"]}, answer=answer)
    call = asyncio.ensure_future(world.call())
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set() and world.clock_said == ["stop", "go_on"]


async def test_destructive_tools_are_asked_about_when_the_policy_says_so() -> None:
    tool = ToolEntry("wipe", "wipe", annotations={"destructiveHint": True})
    answer = AsyncMock(return_value=Verdict.ACCEPTED)
    world = World({"destructive": "approve"}, answer=answer)
    await world.rules.admit(FILES, tool, {}, world.clock)
    assert await world.call("read") is None
    assert [asked.args[0].destructive for asked in answer.await_args_list] == [True]
