"""Proxied calls whose client is away with a question."""

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.serve.mcp import held_calls
from cellblock.serve.mcp.held_calls import MAY_HAVE_RUN, HeldCalls
from cellblock.serve.mcp.request_state import RequestStates
from cellblock.serve.mcp.requests_back import Ask
from support.waits import within

FORM = types.ElicitRequest(
    params=types.ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
)
YES = types.ElicitResult(action="accept", content={})


async def keys() -> tuple[bytes]:
    return (bytes(32),)


class Calls(HeldCalls):
    """Calls that ask so often, one after the other or at once, and give what was said."""

    def __init__(self) -> None:
        super().__init__(RequestStates(keys))
        self.ended = asyncio.Event()

    async def call(self, *, times: int = 1, at_once: bool = False, bound: float = 60) -> Any:
        async def work(ask: Ask) -> list[Any]:
            try:
                if at_once:
                    return await asyncio.gather(*(ask(FORM, types.ElicitResult, bound) for _ in range(times)))
                return [await ask(FORM, types.ElicitResult, bound) for _ in range(times)]
            finally:
                self.ended.set()

        return await within(self.outcome(self.begin("ann", None, work)))

    async def again(self, asked: types.InputRequiredResult, *answers: Any, principal: str = "ann") -> Any:
        given = dict(zip(asked.input_requests or {}, answers, strict=False))
        params = types.CallToolRequestParams(
            name="x", request_state=asked.request_state, input_responses=given
        )
        return await within(self.outcome(await self.back(params, principal)))


async def test_each_word_is_good_once_and_for_its_principal() -> None:
    calls = Calls()
    first = await calls.call(times=2)
    with pytest.raises(MCPError, match=MAY_HAVE_RUN):
        await calls.again(first, YES, principal="bob")
    second = await calls.again(first, YES)
    assert first.request_state != second.request_state
    with pytest.raises(MCPError, match=MAY_HAVE_RUN):
        await calls.again(first, YES)
    assert await calls.again(second, YES) == [YES, YES]


async def test_what_is_asked_at_once_is_asked_together() -> None:
    calls = Calls()
    asked = await calls.call(times=3, at_once=True)
    assert len(asked.input_requests) == 3
    said = await calls.again(asked, YES, YES)
    assert said[:2] == [YES, YES] and said[2].message == held_calls.NO_ANSWER


async def test_a_call_whose_client_stays_away_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "RETURN_SECONDS", 0.01)
    calls = Calls()
    asked = await calls.call(bound=0.01)
    await within(calls.ended.wait())
    with pytest.raises(MCPError, match="too late"):
        await calls.again(asked, YES)


async def test_so_many_calls_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD", 1)
    calls = Calls()
    asked = await calls.call(times=2)
    (refused,) = await calls.call()
    assert refused.message == held_calls.TOO_MANY
    # What asks already may ask more, and makes place when it is over.
    assert await calls.again(await calls.again(asked, YES), YES) == [YES, YES]
    assert isinstance(await calls.call(), types.InputRequiredResult)


async def test_a_client_that_leaves_ends_its_call() -> None:
    calls = Calls()
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
