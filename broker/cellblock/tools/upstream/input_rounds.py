"""Some calls ask for input in rounds (MCP 2026-07-28): the answers go with the call when it is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar, cast

import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession

from cellblock.base.errors import ToolCallError
from cellblock.base.questions import Round, pack_round
from cellblock.base.raw_json import is_light
from cellblock.base.tasks import end_tasks
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.dispatcher import AS_IT_IS
from cellblock.tools.upstream.outstanding import CALL_META, Outstanding
from cellblock.tools.upstream.wire.messages import decoded
from cellblock.tools.upstream.wire.repair import PASSED_ON, carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult

_HINT = "Call a tool that needs no user input."

MAX_ROUNDS: Final = 10
"""Bounds how often one call may ask for input."""

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 0.25
"""Sets the pauses before a call that asks for nothing is sent again; they double."""

TOOLS_CALL: Final = "tools/call"

_RESULTS: Final[Mapping[str, type[types.Result]]] = {
    "resources/read": types.ReadResourceResult,
    "prompts/get": types.GetPromptResult,
    "completion/complete": types.CompleteResult,
}

T = TypeVar("T")


async def call_tool(session: ClientSession, call: Outstanding) -> ToolResult:
    """Calls a tool, and again with answers for as long as it asks for input.

    Raises:
        ToolCallError: It asked for what cannot be had, or without end.
        MCPError: As the SDK's `send_request`, and whatever else that raises.
    """
    asked = {"name": call.name}
    return await _in_rounds(session, call, TOOLS_CALL, asked, lambda _, found: found, call.origin.round)


async def read_resource(session: ClientSession, call: Outstanding) -> ResourceResult:
    """Reads a resource for a script, as `ask` does for a client; large or odd, it comes as it is."""
    return await _in_rounds(session, call, call.name, call.value, lambda _, found: ResourceResult(found))


async def ask(session: ClientSession, call: Outstanding) -> Any:
    """Sends a request that is no tool call, as `call_tool` does; its input has the names of MCP."""
    model = _RESULTS.get(call.name, types.EmptyResult)

    def read(answer: dict[str, Any], found: bytes | None) -> types.Result:
        result = decoded(found) if found is not None and is_light(found) else answer
        return model.model_validate(result, by_name=False)

    return await _in_rounds(session, call, call.name, call.value, read)


async def _sent(
    session: ClientSession,
    call: Outstanding,
    method: str,
    params: Mapping[str, Any],
    answers: types.InputResponses | None,
    state: str | None,
) -> tuple[dict[str, Any], Any]:
    """Sends a request, and returns its result, made small, and what belongs to that."""
    more = types.InputResponseRequestParams(input_responses=answers, request_state=state)
    given = {**params, **more.model_dump(mode="json", by_alias=True, exclude_none=True)}
    given["_meta"] = {**(given.get("_meta") or {}), CALL_META: call.number}
    request = types.Request[dict[str, Any], str](method=method, params=given)
    answer = await session.send_request(request, AS_IT_IS, progress_callback=call.progress)
    return answer, carried(answer.get("_meta"))


async def _together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Waits for all of them; the first that fails ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


async def _in_rounds(
    session: ClientSession,
    call: Outstanding,
    method: str,
    params: Mapping[str, Any],
    read: Callable[[dict[str, Any], Any], T],
    earlier: Round | None = None,
) -> T:
    """Sends a request until it asks for no input any more.

    Args:
        session: The connection.
        call: The call that it is of.
        method: Its method.
        params: Its parameters.
        read: Makes what is returned of the result, and what belongs to that.
        earlier: Where it goes on that another process has had: the server keeps nothing of a call that asks in rounds.
    """
    known, wait, what = dict[str, Any](), FIRST_WAIT_SECONDS, f"{call.name} of {call.server}"
    answers, state = None, None
    if earlier is not None:
        known = dict(earlier.answers)

    async def answer(key: str, asked: types.InputRequest, now: dict[str, Any]) -> types.InputResponse:
        if (given := known.pop(key, None)) is not None:
            found = cast("types.InputResponse | types.ErrorData", result_of(KINDS[asked.method], given))
        else:
            in_round = f"{call.number} {pack_round(key, now)}"
            context = ClientRequestContext(session=session, request_id=in_round)
            found = await session.dispatch_input_request(context, asked)
        if isinstance(found, types.ErrorData):
            raise ToolCallError(f"{what} asks for input that it cannot have: {found.message}", hint=_HINT)
        return found

    for number in range(MAX_ROUNDS + 1):
        if number == 0 and earlier is not None:
            said = earlier.result
        else:
            said, found = await _sent(session, call, method, params, answers, state)
            # To most of what asks, a result belongs where there is one.
            asks = said.get("resultType") == "input_required" or method in (TOOLS_CALL, *PASSED_ON)
            if found is not None or not asks:
                return read(said, found)
        asking = types.InputRequiredResult.model_validate(said, by_name=False)
        if number == MAX_ROUNDS:
            break
        answers, state = None, asking.request_state
        if asking.input_requests:
            now = asking.model_dump(mode="json", by_alias=True, exclude_none=True)
            requests = asking.input_requests.items()
            given = await _together(*(answer(key, asked, now) for key, asked in requests))
            answers, wait = dict(zip(asking.input_requests, given, strict=True)), FIRST_WAIT_SECONDS
        else:
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if call.origin.sends is not None:
            await call.origin.sends()
    raise ToolCallError(f"{what} asks for input without end.", hint=_HINT)
