"""Requests_back is the way back to a front-end's client: what upstream servers ask while they serve a call of one of
its runs.

Clients of the older revisions are sent a request. Those of 2026-07-28 get it as the result of their own call, when its
run is written down.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from cellblock.serve.mcp.live import LiveRun
from cellblock.serve.service import Context
from cellblock.tools.upstream.outstanding import ANSWER_BOUND_SECONDS, LATER

logger = logging.getLogger("cellblock.serve")

NO_WAY: Final = "The client cannot be asked over this connection."

WRONG_ANSWER: Final = "The client's answer is not what the protocol says."


class Ask(Protocol):
    """Asks the client of a run."""

    async def __call__(
        self, request: types.InputRequest, result: type[BaseModel], bound: float, *, key: str = ""
    ) -> BaseModel | types.ErrorData:
        """Returns the client's answer to a request.

        Args:
            request: What is asked.
            result: What its result is.
            bound: The seconds for it, which the caller keeps.
            key: Names the question, also after the run was parked; empty: any name.
        """
        ...


ResultT = TypeVar("ResultT", bound=BaseModel)


class ClientOfRun:
    """The client that sent one `codemode.run` request is a `Requester`.

    Args:
        context: Of that request.
        ask: Asks the client what it can be asked; None where it is asked when its run is parked.
        live: What it is told of the run; None when it wants to know nothing.
    """

    def __init__(self, context: Context, ask: Ask | None, live: LiveRun | None) -> None:
        self.wants_progress = live is not None and live.wants_progress
        self._live = live
        self._capabilities = context.session.client_capabilities or types.ClientCapabilities()
        self._send = ask

    async def elicit(
        self, params: types.ElicitRequestParams, key: str = ""
    ) -> types.ElicitResult | types.ErrorData:
        """Asks the user, if the client can."""
        return await self._ask(types.ElicitRequest(params=params), types.ElicitResult, key)

    async def sample(
        self, params: types.CreateMessageRequestParams, key: str = ""
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Asks the client's model, if it lets itself be asked."""
        request = types.CreateMessageRequest(params=params)
        if params.tools is None and params.tool_choice is None:
            return await self._ask(request, types.CreateMessageResult, key)
        return await self._ask(request, types.CreateMessageResultWithTools, key)

    async def roots(self, key: str = "") -> types.ListRootsResult | types.ErrorData:
        """Returns the client's roots, if it has any."""
        return await self._ask(types.ListRootsRequest(), types.ListRootsResult, key)

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Tells the client of a call's progress, with the run's own."""
        if self._live is not None:
            self._live.call_progress(server, tool, progress, total, message)

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Tells the client what an upstream server logs, where there is no script whose log that would be mixed up
        with."""
        if self._live is not None:
            self._live.call_logged(params)

    # ---- inside --------------------------------------------------------------------------------------

    async def _ask(
        self, request: types.InputRequest, result: type[ResultT], key: str
    ) -> ResultT | types.ErrorData:
        if (lack := _lack(self._capabilities, request)) is not None:
            return types.ErrorData(
                code=types.METHOD_NOT_FOUND, message=f"The client does not support {lack}."
            )
        if self._send is None:
            return LATER
        answer = await self._send(request, result, ANSWER_BOUND_SECONDS, key=key)
        if isinstance(answer, result | types.ErrorData):
            return answer
        return types.ErrorData(code=types.INTERNAL_ERROR, message=WRONG_ANSWER)


def by_requests(context: Context) -> Ask:
    """Sends requests, on the stream of the client's own."""
    session = context.session

    async def ask(
        request: types.InputRequest, result: type[BaseModel], bound: float, *, key: str = ""
    ) -> BaseModel | types.ErrorData:
        try:
            return await session.send_request(
                request, result, metadata=ServerMessageMetadata(related_request_id=context.request_id)
            )
        except NoBackChannelError:
            return types.ErrorData(code=types.METHOD_NOT_FOUND, message=NO_WAY)
        except MCPError as error:
            # The client's own refusal, as it words it.
            return types.ErrorData(code=error.code, message=error.message)
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=WRONG_ANSWER)
        except Exception as error:  # noqa: BLE001 - a client that is gone must fail its own call only
            logger.warning("a client could not be asked: %s", type(error).__name__)
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The client cannot be reached.")

    return ask


def in_rounds(context: Context) -> bool:
    """Says whether the client is asked by interim results of its call, not by requests."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def can_be_asked(context: Context) -> bool:
    """Says whether the client says that upstream servers can ask it for anything."""
    able = context.session.client_capabilities
    return able is not None and not (
        able.elicitation is None and able.sampling is None and able.roots is None
    )


def can_answer(context: Context, request: types.InputRequest) -> bool:
    """Says whether the client has said that it has an answer to what a server asks."""
    able = context.session.client_capabilities
    return able is not None and _lack(able, request) is None


def can_show_forms(context: Context) -> bool:
    """Says whether the client can be asked to show its user a form."""
    able = context.session.client_capabilities
    can_be_reached = in_rounds(context) or context.session.can_send_request
    return can_be_reached and able is not None and _has_forms(able.elicitation)


def _has_forms(able: types.ElicitationCapability | None) -> bool:
    # Before there were two modes, an empty capability meant forms.
    return able is not None and (able.form is not None or able.url is None)


def _lack(able: types.ClientCapabilities, request: types.InputRequest) -> str | None:
    """Names what a client does not support of what a request needs; None where it does."""
    match request:
        case types.ListRootsRequest():
            return "roots" if able.roots is None else None
        case types.CreateMessageRequest():
            if able.sampling is None:
                return "sampling"
            with_tools = request.params.tools is not None or request.params.tool_choice is not None
            return "sampling with tools" if with_tools and able.sampling.tools is None else None
        case types.ElicitRequest():
            if able.elicitation is None:
                return "elicitation"
            if isinstance(request.params, types.ElicitRequestURLParams):
                return "elicitation by URL" if able.elicitation.url is None else None
            return None if _has_forms(able.elicitation) else "elicitation by form"
