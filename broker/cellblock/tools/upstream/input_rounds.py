"""Some calls ask for input in rounds (MCP 2026-07-28): the answers go with the call when it is sent again."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, Final, TypeVar, cast

import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import ProgressFnT
from pydantic import TypeAdapter

from cellblock.base.errors import ToolCallError
from cellblock.base.questions import Round, pack_round
from cellblock.base.tasks import end_tasks
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.client import AS_IT_IS
from cellblock.tools.upstream.dispatcher import AnswerUnreadable
from cellblock.tools.upstream.outstanding import current_origin, in_round
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


async def call_tool(
    session: ClientSession, server: str, tool: str, value: object, progress: ProgressFnT | None
) -> ToolResult:
    """Calls a tool, and again with answers for as long as it asks for input.

    Args:
        session: The connection; it is given the input beside, see `dispatcher.sent_input`.
        server: The server's name, for errors.
        tool: Canonical tool name.
        value: The input.
        progress: Told the server's reports; None asks for none.

    Raises:
        ToolCallError: It asked for what cannot be had, or without end.
        MCPError: As the SDK's `send_request`, and whatever else that raises.
    """

    async def send(
        answers: types.InputResponses | None, state: str | None
    ) -> ToolResult | types.InputRequiredResult:
        params = types.CallToolRequestParams(name=tool, input_responses=answers, request_state=state)
        request = types.CallToolRequest(params=params)
        answer: dict[str, Any] = await session.send_request(request, AS_IT_IS, progress_callback=progress)
        result: ToolResult | None = carried(answer.get("_meta"))
        if result is not None and len(result.body) > SMALL_BYTES:
            await _check_text(result.body)
        return result or types.InputRequiredResult.model_validate(answer, by_name=False)

    earlier = current_origin().round
    if earlier is not None:
        # Another process had it: the server keeps nothing of a call that asks in rounds.
        first: ToolResult | types.InputRequiredResult = types.InputRequiredResult.model_validate(
            earlier.result, by_name=False
        )
    else:
        first = await send(None, None)
    if isinstance(first, types.InputRequiredResult):
        return await _rounds(session, server, tool, first, send, earlier)
    return first


async def read_resource(
    session: ClientSession, server: str, method: str, params: dict[str, Any], progress: ProgressFnT | None
) -> ResourceResult:
    """Reads a resource for a script, as `ask` does for a client; large or odd, it comes as it is."""

    async def send(
        answers: types.InputResponses | None, state: str | None
    ) -> ResourceResult | types.InputRequiredResult:
        request = _request(method, params, answers, state)
        answer: dict[str, Any] = await session.send_request(request, AS_IT_IS, progress_callback=progress)
        body: bytes | None = carried(answer.get("_meta"))
        if body is None:
            return types.InputRequiredResult.model_validate(answer, by_name=False)
        if len(body) > SMALL_BYTES:
            await _check_text(body)
        return ResourceResult(body)

    first = await send(None, None)
    if isinstance(first, types.InputRequiredResult):
        return await _rounds(session, server, method, first, send)
    return first


def _request(
    method: str, params: dict[str, Any], answers: types.InputResponses | None, state: str | None
) -> types.Request[dict[str, Any], str]:
    more = types.InputResponseRequestParams(input_responses=answers, request_state=state)
    given = {**params, **more.model_dump(mode="json", by_alias=True, exclude_none=True)}
    return types.Request[dict[str, Any], str](method=method, params=given)


async def _check_text(body: bytes) -> None:
    """Looks whether a large result is UTF-8, a piece at a time. Raises AnswerUnreadable."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), PIECE_BYTES):
            await asyncio.sleep(0)
            decoder.decode(body[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(body))
    except UnicodeDecodeError:
        raise AnswerUnreadable("it is not UTF-8") from None
    await asyncio.sleep(0)


@cache
def _result_of(method: str) -> TypeAdapter[Any]:
    if method == "resources/read":
        return TypeAdapter(types.ReadResourceResult | types.InputRequiredResult)
    if method == "prompts/get":
        return TypeAdapter(types.GetPromptResult | types.InputRequiredResult)
    return TypeAdapter(types.CompleteResult if method == "completion/complete" else types.EmptyResult)


async def ask(
    session: ClientSession, server: str, method: str, params: dict[str, Any], progress: ProgressFnT | None
) -> Any:
    """Sends a request that is no tool call, as `call_tool` does; `params` have the names of MCP."""

    async def send(answers: types.InputResponses | None, state: str | None) -> Any:
        request = _request(method, params, answers, state)
        found = await session.send_request(request, _result_of(method), progress_callback=progress)
        body: bytes | None = carried(getattr(found, "meta", None))
        if body is None or len(body) > SMALL_BYTES:
            return found
        return _result_of(method).validate_python(decoded(body), by_name=False)

    result = await send(None, None)
    if isinstance(result, types.InputRequiredResult):
        return await _rounds(session, server, method, result, send)
    return result


async def _together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Waits for all of them; the first that fails ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


async def _rounds(
    session: ClientSession,
    server: str,
    tool: str,
    first: types.InputRequiredResult,
    send: Callable[[types.InputResponses | None, str | None], Awaitable[T | types.InputRequiredResult]],
    earlier: Round | None = None,
) -> T:
    known = {} if earlier is None else dict(earlier.answers)
    origin, wait = current_origin(), FIRST_WAIT_SECONDS
    asking: T | types.InputRequiredResult = first

    async def answer(key: str, asked: types.InputRequest, now: dict[str, Any]) -> types.InputResponse:
        if (given := known.pop(key, None)) is not None:
            found = cast("types.InputResponse | types.ErrorData", result_of(KINDS[asked.method], given))
        else:
            in_round(pack_round(key, now))
            context = ClientRequestContext(session=session, request_id=key)
            found = await session.dispatch_input_request(context, asked)
        if isinstance(found, types.ErrorData):
            raise ToolCallError(
                f"{tool} of {server} asks for input that it cannot have: {found.message}", hint=_HINT
            )
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
        if origin.sends is not None:
            await origin.sends()
        asking = await send(answers, asking.request_state)
    if not isinstance(asking, types.InputRequiredResult):
        return asking
    raise ToolCallError(f"{tool} of {server} asks for input without end.", hint=_HINT)
