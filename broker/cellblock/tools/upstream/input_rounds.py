"""Some calls ask for input in rounds (MCP 2026-07-28): the answers go with the call when it is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import mcp_types as types
from mcp.client.session import ClientRequestContext

from cellblock.base.errors import ToolCallError
from cellblock.base.questions import Round, pack_round
from cellblock.base.raw_json import is_light
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.dispatcher import Session, plain
from cellblock.tools.upstream.failures import first_of
from cellblock.tools.upstream.outstanding import Outstanding
from cellblock.tools.upstream.wire.messages import decoded
from cellblock.tools.upstream.wire.repair import CARRIED, PASSED_ON
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


async def call_tool(session: Session, call: Outstanding) -> ToolResult:
    """Calls a tool, and again with answers for as long as it asks for input.

    Raises:
        ToolCallError: It asked for what cannot be had, or without end.
        MCPError, ValueError: As `Session.ask`.
    """
    asked = {"name": call.name} | ({} if call.value is None else {"arguments": call.value})
    return await _in_rounds(session, call, TOOLS_CALL, asked, lambda found: found, call.origin.round)


async def read_resource(session: Session, call: Outstanding) -> ResourceResult:
    """Reads a resource for a script, as `ask` does for a client; large or odd, it comes as it is."""
    return await _in_rounds(session, call, call.name, call.value, lambda found: ResourceResult(found.body))


async def ask(session: Session, call: Outstanding) -> Any:
    """Sends a request that is no tool call, as `call_tool` does; its input has the names of MCP."""
    model = _RESULTS.get(call.name, types.EmptyResult)

    def read(found: ToolResult) -> types.Result:
        if call.name in PASSED_ON and not is_light(found.body):
            small: dict[str, Any] = {PASSED_ON[call.name]: [], "_meta": {CARRIED: found.body}}
            return model.model_validate(small, by_name=False)
        return model.model_validate(plain(found.body), by_name=False)

    return await _in_rounds(session, call, call.name, call.value, read)


async def _in_rounds(
    session: Session,
    call: Outstanding,
    method: str,
    params: Mapping[str, Any],
    read: Callable[[ToolResult], T],
    earlier: Round | None = None,
) -> T:
    """Sends a request until it asks for no input any more.

    Args:
        session: The connection.
        call: The call that it is of.
        method: Its method.
        params: Its parameters.
        read: Makes what is returned of the result.
        earlier: Where it goes on that another process has had: the server keeps nothing of a call that asks in rounds.
    """
    if earlier is None:
        found = await _sent(session, call, method, params)
        if not found.asks_for_input:
            return read(found)
        said, known = decoded(found.body), dict[str, Any]()
    else:
        said, known = earlier.result, dict(earlier.answers)
    wait, what = FIRST_WAIT_SECONDS, f"{call.name} of {call.server}"

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

    for _ in range(MAX_ROUNDS):
        asking = types.InputRequiredResult.model_validate(said, by_name=False)
        now = asking.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            async with asyncio.TaskGroup() as group:
                answers = {
                    key: group.create_task(answer(key, asked, now))
                    for key, asked in (asking.input_requests or {}).items()
                }
        except BaseExceptionGroup as error:
            raise first_of(error) from None
        if answers:
            wait = FIRST_WAIT_SECONDS
        else:
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if call.origin.sends is not None:
            await call.origin.sends()
        more = types.InputResponseRequestParams(
            input_responses={key: task.result() for key, task in answers.items()} or None,
            request_state=asking.request_state,
        )
        given = {**params, **more.model_dump(mode="json", by_alias=True, exclude_none=True)}
        found = await _sent(session, call, method, given)
        if not found.asks_for_input:
            return read(found)
        said = decoded(found.body)
    raise ToolCallError(f"{what} asks for input without end.", hint=_HINT)


async def _sent(session: Session, call: Outstanding, method: str, params: Mapping[str, Any]) -> ToolResult:
    # The SDK writes into it.
    return await session.ask(method, {**params, "_meta": dict(params.get("_meta") or {})}, call)
