"""Some calls ask for input in rounds (MCP 2026-07-28): the answers go with the call when it is sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp import MCPError
from mcp.client._input_required import InputRequiredRoundsExceededError, run_input_required_driver
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import ProgressFnT
from pydantic import TypeAdapter

from cellblock.base.errors import ToolCallError
from cellblock.base.questions import Round, pack_round
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.outstanding import current_origin, in_round

_HINT = "Call a tool that needs no user input."

_Answer = types.CallToolResult | types.InputRequiredResult
_answer: TypeAdapter[_Answer] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)

T = TypeVar("T")


async def call_tool(
    session: ClientSession,
    server: str,
    tool: str,
    arguments: dict[str, object],
    progress: ProgressFnT | None,
) -> types.CallToolResult:
    """Calls a tool, and again with answers for as long as it asks for input.

    Args:
        session: The connection.
        server: The server's name, for errors.
        tool: Canonical tool name.
        arguments: In the form that the SDK takes.
        progress: Told the server's reports; None asks for none.

    Raises:
        ToolCallError: It asked for what cannot be had, or without end.
        MCPError: As the SDK's `send_request`, and whatever else that raises.
    """

    async def send(answers: types.InputResponses | None, state: str | None) -> _Answer:
        params = types.CallToolRequestParams(
            name=tool, arguments=arguments, input_responses=answers, request_state=state
        )
        return await session.send_request(
            types.CallToolRequest(params=params), _answer, progress_callback=progress
        )

    earlier = current_origin().round
    if earlier is not None:
        # Another process had it: the server keeps nothing of a call that asks in rounds.
        result: _Answer = types.InputRequiredResult.model_validate(earlier.result, by_name=False)
    else:
        result = await send(None, None)
    if isinstance(result, types.InputRequiredResult):
        return await _rounds(session, server, tool, result, send, earlier)
    return result


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
        more = types.InputResponseRequestParams(input_responses=answers, request_state=state)
        given = {**params, **more.model_dump(mode="json", by_alias=True, exclude_none=True)}
        request = types.Request[dict[str, Any], str](method=method, params=given)
        return await session.send_request(request, _result_of(method), progress_callback=progress)

    result = await send(None, None)
    if isinstance(result, types.InputRequiredResult):
        return await _rounds(session, server, method, result, send)
    return result


async def _rounds(
    session: ClientSession,
    server: str,
    tool: str,
    first: types.InputRequiredResult,
    send: Callable[[types.InputResponses | None, str | None], Awaitable[T | types.InputRequiredResult]],
    earlier: Round | None = None,
) -> T:
    refusal: types.ErrorData | None = None
    known = {} if earlier is None else dict(earlier.answers)
    now, origin = first.model_dump(mode="json", by_alias=True, exclude_none=True), current_origin()

    async def retry(answers: types.InputResponses | None, state: str | None) -> T | types.InputRequiredResult:
        nonlocal now
        if origin.sends is not None:
            await origin.sends()
        result = await send(answers, state)
        if isinstance(result, types.InputRequiredResult):
            now = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return result

    async def dispatch(key: str, asked: types.InputRequest) -> types.InputResponse | types.ErrorData:
        nonlocal refusal
        if (given := known.pop(key, None)) is not None:
            return cast("types.InputResponse | types.ErrorData", result_of(KINDS[asked.method], given))
        in_round(pack_round(key, now))
        context = ClientRequestContext(session=session, request_id=key)
        answer = await session.dispatch_input_request(context, asked)
        if isinstance(answer, types.ErrorData):
            refusal = answer
        return answer

    try:
        return await run_input_required_driver(first, dispatch=dispatch, retry=retry)
    except MCPError as error:
        if refusal is None:
            raise
        raise ToolCallError(
            f"{tool} of {server} asks for input that it cannot have: {error.message}", hint=_HINT
        ) from None
    except InputRequiredRoundsExceededError:
        raise ToolCallError(f"{tool} of {server} asks for input without end.", hint=_HINT) from None
