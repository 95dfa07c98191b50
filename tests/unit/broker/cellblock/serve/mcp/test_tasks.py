"""Requests that are answered later: tasks, the state that a client brings back, and proxied calls whose client is away
with a question."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.base.database import StoreError
from cellblock.base.questions import ParkedQuestion
from cellblock.record.views import ParkedStatus
from cellblock.run.hook import CANCELLED, LOST
from cellblock.run.response import RunResponse, Usage
from cellblock.serve.mcp import held_calls
from cellblock.serve.mcp.front import Front
from cellblock.serve.mcp.held_calls import MAY_HAVE_RUN, HeldCalls
from cellblock.serve.mcp.request_state import RequestStates, digest_of, text_of
from cellblock.serve.mcp.requests_back import Ask
from cellblock.serve.mcp.run_tool import RunTool
from cellblock.serve.mcp.task_models import EXTENSION, TaskParams
from cellblock.serve.mcp.tasks import Tasks
from cellblock.serve.service import Owner
from cellblock.serve.splices import Splices
from support.waits import within

RUN, ANN, BOB = "0123456789abcdef", "token:ann", "token:bob"
FORMS = {"elicitation": {"form": {}}}
ABLE = {**FORMS, "extensions": {EXTENSION: {}}}
DONE = RunResponse(logs=[], diagnostics=[], result=7)
PARKED = RunResponse(logs=[], diagnostics=[], result=None, parked=True, usage=Usage(run_id=RUN))
QUESTION = ParkedQuestion(call=4, server="files", tool="write", destructive=False, input="{}", bytes=2)


class Runs:
    """Parked runs, of which there is one, Ann's."""

    def __init__(self, **status: Any) -> None:
        now = time.time()
        given = {"began": 1.5, "changed": 2.0, "until": now + 60, "state": "parked", "questions": (QUESTION,)}
        self.one = ParkedStatus(id=RUN, **{**given, **status})
        self.broken = False

    async def signing_keys(self, purpose: str) -> list[bytes]:
        return [bytes(32) + purpose.encode()]

    async def status(self, run_id: str, principal: str) -> ParkedStatus | None:
        if self.broken:
            raise StoreError("no disk")
        return self.one if (run_id, principal) == (RUN, ANN) else None

    async def questions(self, run_id: str, principal: str) -> None:
        await self.status(run_id, principal)


def tasks(runs: Runs) -> Tasks:
    async def shown(_: Any, response: RunResponse) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content=response.as_json())

    return Tasks(front(runs), shown)


def front(runs: Runs) -> Front:
    service = SimpleNamespace(
        parked_runs=runs,
        settings=SimpleNamespace(state_dir=None),
        run_request=AsyncMock(return_value=PARKED),
    )
    return Front(
        cast("Any", service), lambda context: Owner(cast("Any", context).principal, "one"), Splices()
    )


def context(
    principal: str = ANN,
    able: Mapping[str, Any] = ABLE,
    version: str = "2026-07-28",
) -> Any:
    return SimpleNamespace(
        principal=principal,
        session=SimpleNamespace(
            client_capabilities=types.ClientCapabilities.model_validate(able), can_send_request=False
        ),
        protocol_version=version,
        method="tasks/get",
        meta=None,
        request=None,
    )


async def created(runs: Runs) -> str:
    task: Any = await tasks(runs).created(context(), RUN)
    return task.task_id


@pytest.mark.parametrize(
    ("asking", "run_id"),
    [({"able": FORMS}, RUN), ({"version": "2025-11-25"}, RUN), ({}, "another"), ({}, None)],
    ids=["forms only", "an older version", "another run", "no run"],
)
async def test_no_task_is_made_for_others(asking: dict[str, Any], run_id: str | None) -> None:
    assert await tasks(Runs()).created(context(**asking), run_id) is None


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        ({"state": "running"}, "working"),
        ({"state": "ended", "outcome": "ok", "response": DONE}, "completed"),
        ({"state": "ended", "outcome": "SCRIPT_ERROR", "response": DONE}, "completed"),
        ({"state": "ended", "outcome": "ok"}, "failed"),
        ({"state": "ended", "outcome": LOST}, "failed"),
        ({"state": "ended", "outcome": CANCELLED}, "cancelled"),
        ({"state": "ended", "outcome": CANCELLED, "response": DONE}, "cancelled"),
    ],
)
async def test_what_a_run_is_to_a_client(status: dict[str, Any], seen: str) -> None:
    runs = Runs(**status)
    task = await tasks(runs).get(context(), TaskParams(task_id=await created(runs)))
    assert task.status == seen and task.result_type == "complete" and task.input_requests is None
    assert (task.result is not None) == (seen == "completed")
    assert (task.error is not None) == (seen == "failed")


@pytest.mark.parametrize(
    ("asking", "broken", "code"),
    [({"version": "2025-11-25"}, False, types.METHOD_NOT_FOUND), ({}, True, types.INTERNAL_ERROR)],
    ids=["an older version", "a disk that cannot be read"],
)
async def test_who_cannot_be_answered_is_told_why(asking: dict[str, str], broken: bool, code: int) -> None:
    runs = Runs()
    about = TaskParams(task_id=await created(runs))
    runs.broken = broken
    with pytest.raises(MCPError) as found:
        await tasks(runs).get(context(**asking), about)
    assert found.value.error.code == code and ("Try again" in found.value.error.message) is broken


@pytest.mark.parametrize("able", [ABLE, FORMS], ids=["with tasks", "with questions"])
async def test_a_run_that_was_parked_and_cannot_be_reached_is_not_to_be_sent_again(
    able: dict[str, Any],
) -> None:
    """The client has no word of the run yet: an error would have it send its request again, which is another run."""
    runs = Runs()
    runs.broken = True
    carried = RunTool(front(runs), tasks(runs))
    params = types.CallToolRequestParams(name="codemode.run", arguments={"code": ""})
    assert await carried.call(context(able=able), params) is PARKED


def states(key: bytes = b"k" * 32, now: float = 1_000.0, *others: bytes) -> RequestStates:
    return RequestStates(AsyncMock(return_value=(key, *others)), lambda: now)


async def test_a_word_names_its_run_and_round_for_its_principal_until_its_time() -> None:
    word = await states().signed(RUN, ANN, 3, 60)
    good = [(states(), ANN), (states(now=1_061.0), ANN)]
    bad = [(states(now=1_062.0), ANN), (states(), BOB), (states(key=b"x" * 32), ANN)]
    read = [await there.read(word, principal) for there, principal in (*good, *bad)]
    assert read == [(RUN, 3)] * 2 + [None] * 3
    assert ANN not in base64.urlsafe_b64decode(word.split(".")[1] + "==").decode()


async def test_a_word_of_an_earlier_release_names_its_broker_too() -> None:
    data = json.dumps([RUN, 3, digest_of(ANN), 1_061, "broker-a"], separators=(",", ":")).encode()
    word = f"v1.{text_of(data)}.{text_of(hmac.digest(b'k' * 32, data, 'sha256'))}"
    assert await states().read(word, ANN) == (RUN, 3)


async def test_while_keys_change_two_are_accepted() -> None:
    both = states(b"n" * 32, 1_000.0, b"k" * 32)
    assert await both.read(await states().signed(RUN, ANN, 3, 60), ANN) == (RUN, 3)
    new = await both.signed(RUN, ANN, 3, 60)
    assert await states(b"n" * 32).read(new, ANN) == (RUN, 3)
    assert await states().read(new, ANN) is None


async def test_nothing_but_the_word_itself_is_taken() -> None:
    word = await states().signed(RUN, ANN, 1, 60)
    version, body, tag = word.split(".")
    payload = json.loads(base64.urlsafe_b64decode(body + "=="))
    other = (
        base64.urlsafe_b64encode(json.dumps([*payload[:1], 2, *payload[2:]]).encode()).decode().rstrip("=")
    )
    for one in (
        *(
            "",
            ".",
            "..",
            "v1",
            "v1..",
            f"v2.{body}.{tag}",
            f"{version}.{other}.{tag}",
            f"{word}=",
            f" {word}",
        ),
        *(word[:at] + ("A" if word[at] != "A" else "B") + word[at + 1 :] for at in range(3, len(word))),
        *(word * 9, f"{version}.{body}.{tag[:-1]}", f"{version}.{body}.\u00e9", f"{version}.{tag}.{tag}"),
    ):
        assert await states().read(one, ANN) is None, one


async def test_without_a_key_words_are_good_in_this_process() -> None:
    no_keys = AsyncMock(side_effect=StoreError("there is no disk"))
    here, there = RequestStates(no_keys), RequestStates(no_keys)
    word = await here.signed(RUN, ANN, 1, 60)
    assert await here.read(word, ANN) == (RUN, 1)
    assert await there.read(word, ANN) is None


@pytest.mark.parametrize("name", ["stdio:\ud800", "oauth:" + "x" * 4_000])
async def test_any_principal_has_words(name: str) -> None:
    word = await states().signed(RUN, name, 1, 60)
    assert len(word) < 512 and await states().read(word, name) == (RUN, 1)


QUESTIONS = types.ElicitRequest(
    params=types.ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
)
YES = types.ElicitResult(action="accept", content={})


class Calls(HeldCalls):
    """Calls that ask so often, one after the other or at once, and give what was said."""

    def __init__(self) -> None:
        super().__init__(states())
        self.ended = asyncio.Event()

    async def call(self, *, times: int = 1, at_once: bool = False, bound: float = 60) -> Any:
        async def work(ask: Ask) -> list[Any]:
            try:
                if at_once:
                    return await asyncio.gather(
                        *(ask(QUESTIONS, types.ElicitResult, bound) for _ in range(times))
                    )
                return [await ask(QUESTIONS, types.ElicitResult, bound) for _ in range(times)]
            finally:
                self.ended.set()

        return await within(self.outcome(self.begin("ann", None, work)))

    async def again(self, asked: types.InputRequiredResult, *answers: Any, principal: str = "ann") -> Any:
        given = dict(zip(asked.input_requests or {}, answers, strict=False))
        params = types.CallToolRequestParams(
            name="x", request_state=asked.request_state, input_responses=given
        )
        return await within(self.outcome(await self.back(params, principal)))


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_each_word_is_good_once_and_for_its_principal(calls: Calls) -> None:
    first = await calls.call(times=2)
    with pytest.raises(MCPError, match=MAY_HAVE_RUN):
        await calls.again(first, YES, principal="bob")
    second = await calls.again(first, YES)
    assert first.request_state != second.request_state
    with pytest.raises(MCPError, match=MAY_HAVE_RUN):
        await calls.again(first, YES)
    assert await calls.again(second, YES) == [YES, YES]


async def test_what_is_asked_at_once_is_asked_together(calls: Calls) -> None:
    asked = await calls.call(times=3, at_once=True)
    assert len(asked.input_requests) == 3
    said = await calls.again(asked, YES, YES)
    assert said[:2] == [YES, YES] and said[2].message == held_calls.NO_ANSWER


async def test_a_call_whose_client_stays_away_is_ended(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "RETURN_SECONDS", 0.01)
    asked = await calls.call(bound=0.01)
    await within(calls.ended.wait())
    with pytest.raises(MCPError, match="too late"):
        await calls.again(asked, YES)


async def test_so_many_calls_ask_at_the_same_time(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD", 1)
    asked = await calls.call(times=2)
    (refused,) = await calls.call()
    assert refused.message == held_calls.TOO_MANY
    # What asks already may ask more, and makes place when it is over.
    assert await calls.again(await calls.again(asked, YES), YES) == [YES, YES]
    assert isinstance(await calls.call(), types.InputRequiredResult)


async def test_a_client_that_leaves_ends_its_call(calls: Calls) -> None:
    began = asyncio.Event()

    async def work(_: Ask) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            calls.ended.set()

    waiting = asyncio.create_task(calls.outcome(calls.begin("ann", None, work)))
    await within(began.wait())
    waiting.cancel()
    await within(calls.ended.wait())
