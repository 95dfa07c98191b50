"""Some calls ask for input in rounds (MCP 2026-07-28): the answers go with the call when it is sent again."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, Final, TypeVar, cast

import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from pydantic import TypeAdapter

from cellblock.base.errors import ToolCallError
from cellblock.base.questions import Round, pack_round
from cellblock.base.steps import next_step
from cellblock.base.tasks import end_tasks
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.dispatcher import AS_IT_IS
from cellblock.tools.upstream.outstanding import Outstanding
from cellblock.tools.upstream.wire.errors import AnswerUnreadable
from cellblock.tools.upstream.wire.messages import SMALL_BYTES, decoded
from cellblock.tools.upstream.wire.repair import carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult

_HINT = "Call a tool that needs no user input."

MAX_ROUNDS: Final = 10
"""Bounds how often one call may ask for input."""

PIECE_BYTES: Final = 1024 * 1024
"""Bounds what is looked at of a large result at a time."""

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 0.25
"""Sets the pauses before a call that asks for nothing is sent again; they double."""

T = TypeVar("T")


async def call_tool(session: ClientSession, call: Outstanding) -> ToolResult:
    """Calls a tool, and again with answers for as long as it asks for input.

    Raises:
        ToolCallError: It asked for what cannot be had, or without end.
        MCPError: As the SDK's `send_request`, and whatever else that raises.
    """

    async def send(
        answers: types.InputResponses | None, state: str | None
    ) -> ToolResult | types.InputRequiredResult:
        params = types.CallToolRequestParams(
            name=call.name, input_responses=answers, request_state=state, _meta=call.meta
        )
        answer = await _sent(session, types.CallToolRequest(params=params), AS_IT_IS, call)
        result: ToolResult | None = carried(answer.get("_meta"))
        if result is not None and len(result.body) > SMALL_BYTES:
            await _check_text(result.body)
        return result or types.InputRequiredResult.model_validate(answer, by_name=False)

    return await _in_rounds(session, call, send, call.origin.round)


async def read_resource(session: ClientSession, call: Outstanding) -> ResourceResult:
    """Reads a resource for a script, as `ask` does for a client; large or odd, it comes as it is."""

    async def send(
        answers: types.InputResponses | None, state: str | None
    ) -> ResourceResult | types.InputRequiredResult:
        answer = await _sent(session, _request(call, answers, state), AS_IT_IS, call)
        body: bytes | None = carried(answer.get("_meta"))
        if body is None:
            return types.InputRequiredResult.model_validate(answer, by_name=False)
        if len(body) > SMALL_BYTES:
            await _check_text(body)
        return ResourceResult(body)

    return await _in_rounds(session, call, send)


async def ask(session: ClientSession, call: Outstanding) -> Any:
    """Sends a request that is no tool call, as `call_tool` does; its input has the names of MCP."""
    result_type = _result_of(call.name)

    async def send(answers: types.InputResponses | None, state: str | None) -> Any:
        found = await _sent(session, _request(call, answers, state), result_type, call)
        body: bytes | None = carried(getattr(found, "meta", None))
        if body is None or len(body) > SMALL_BYTES:
            return found
        return result_type.validate_python(decoded(body), by_name=False)

    return await _in_rounds(session, call, send)


def _request(
    call: Outstanding, answers: types.InputResponses | None, state: str | None
) -> types.Request[dict[str, Any], str]:
    more = types.InputResponseRequestParams(input_responses=answers, request_state=state)
    given = {**call.value, **more.model_dump(mode="json", by_alias=True, exclude_none=True)}
    given["_meta"] = {**(given.get("_meta") or {}), **call.meta}
    return types.Request[dict[str, Any], str](method=call.name, params=given)


async def _sent(
    session: ClientSession, request: types.Request[Any, Any], result: TypeAdapter[Any], call: Outstanding
) -> Any:
    return await session.send_request(request, result, progress_callback=call.progress)


async def _check_text(body: bytes) -> None:
    """Looks whether a large result is UTF-8, a piece at a time. Raises AnswerUnreadable."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), PIECE_BYTES):
            await next_step()
            decoder.decode(body[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(body))
    except UnicodeDecodeError:
        raise AnswerUnreadable("it is not UTF-8") from None
    await next_step()


@cache
def _result_of(method: str) -> TypeAdapter[Any]:
    if method == "resources/read":
        return TypeAdapter(types.ReadResourceResult | types.InputRequiredResult)
    if method == "prompts/get":
        return TypeAdapter(types.GetPromptResult | types.InputRequiredResult)
    return TypeAdapter(types.CompleteResult if method == "completion/complete" else types.EmptyResult)


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
    send: Callable[[types.InputResponses | None, str | None], Awaitable[T | types.InputRequiredResult]],
    earlier: Round | None = None,
) -> T:
    """Sends a request until it asks for no input any more; `earlier` says where it goes on that another process has
    had: the server keeps nothing of a call that asks in rounds."""
    known, wait, what = dict[str, Any](), FIRST_WAIT_SECONDS, f"{call.name} of {call.server}"
    asking: T | types.InputRequiredResult
    if earlier is None:
        asking = await send(None, None)
    else:
        known = dict(earlier.answers)
        asking = types.InputRequiredResult.model_validate(earlier.result, by_name=False)

    async def answer(key: str, asked: types.InputRequest, now: dict[str, Any]) -> types.InputResponse:
        if (given := known.pop(key, None)) is not None:
            found = cast("types.InputResponse | types.ErrorData", result_of(KINDS[asked.method], given))
        else:
            number = call.in_round(pack_round(key, now))
            context = ClientRequestContext(session=session, request_id=number)
            found = await session.dispatch_input_request(context, asked)
        if isinstance(found, types.ErrorData):
            raise ToolCallError(f"{what} asks for input that it cannot have: {found.message}", hint=_HINT)
        return found

    for _ in range(MAX_ROUNDS):
        if not isinstance(asking, types.InputRequiredResult):
            return asking
        answers: types.InputResponses | None = None
        if asking.input_requests:
            now = asking.model_dump(mode="json", by_alias=True, exclude_none=True)
            requests = asking.input_requests.items()
            found = await _together(*(answer(key, asked, now) for key, asked in requests))
            answers, wait = dict(zip(asking.input_requests, found, strict=True)), FIRST_WAIT_SECONDS
        else:
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if call.origin.sends is not None:
            await call.origin.sends()
        asking = await send(answers, asking.request_state)
    if not isinstance(asking, types.InputRequiredResult):
        return asking
    raise ToolCallError(f"{what} asks for input without end.", hint=_HINT)
