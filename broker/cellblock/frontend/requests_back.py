"""The way back to a front-end's client: what upstream servers ask while they serve a call of one of its runs."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from cellblock.upstream.requester import requester

logger = logging.getLogger("cellblock.frontend")

NO_WAY: Final = "The client's protocol revision has no requests from servers."

ResultT = TypeVar("ResultT", bound=BaseModel)


class ClientOfRun:
    """A `Requester`: the client that sent one `codemode.run` request.

    Args:
        context: Of that request; what is asked goes on its stream.
    """

    wants_progress = False
    """For a front-end that passes progress on: set it, and override `progress`."""

    def __init__(self, context: ServerRequestContext[dict[str, Any]]) -> None:
        self._context = context

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """Asks the user, if the client can."""
        able = self._capabilities.elicitation
        if able is None:
            return _unsupported("elicitation")
        # Before there were two modes, an empty capability meant forms.
        if isinstance(params, types.ElicitRequestURLParams) and able.url is None:
            return _unsupported("elicitation by URL")
        if isinstance(params, types.ElicitRequestFormParams) and able.form is None and able.url is not None:
            return _unsupported("elicitation by form")
        return await self._ask(types.ElicitRequest(params=params), types.ElicitResult)

    async def sample(
        self, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Asks the client's model, if it lets itself be asked."""
        able = self._capabilities.sampling
        if able is None:
            return _unsupported("sampling")
        if params.tools is None and params.tool_choice is None:
            return await self._ask(types.CreateMessageRequest(params=params), types.CreateMessageResult)
        if able.tools is None:
            return _unsupported("sampling with tools")
        return await self._ask(types.CreateMessageRequest(params=params), types.CreateMessageResultWithTools)

    async def roots(self) -> types.ListRootsResult | types.ErrorData:
        """The client's roots, if it has any."""
        if self._capabilities.roots is None:
            return _unsupported("roots")
        return await self._ask(types.ListRootsRequest(), types.ListRootsResult)

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Nothing: nobody has asked for it."""

    # ---- inside --------------------------------------------------------------------------------------

    @property
    def _capabilities(self) -> types.ClientCapabilities:
        return self._context.session.client_capabilities or types.ClientCapabilities()

    async def _ask(self, request: types.ServerRequest, result: type[ResultT]) -> ResultT | types.ErrorData:
        session = self._context.session
        if not session.can_send_request:
            return types.ErrorData(code=types.METHOD_NOT_FOUND, message=NO_WAY)
        try:
            return await session.send_request(
                request, result, metadata=ServerMessageMetadata(related_request_id=self._context.request_id)
            )
        except NoBackChannelError:
            return types.ErrorData(code=types.METHOD_NOT_FOUND, message=NO_WAY)
        except MCPError as error:
            # The client's own refusal, as it words it.
            return types.ErrorData(code=error.code, message=error.message)
        except ValidationError:
            return types.ErrorData(
                code=types.INTERNAL_ERROR, message="The client's answer is not what the protocol says."
            )
        except Exception as error:  # noqa: BLE001 - a client that is gone must fail its own call only
            logger.warning("a client could not be asked: %s", type(error).__name__)
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The client cannot be reached.")


@contextmanager
def asking_back(context: ServerRequestContext[dict[str, Any]]) -> Generator[None]:
    """Around a run: upstream servers that it calls may ask this client."""
    token = requester.set(ClientOfRun(context))
    try:
        yield
    finally:
        requester.reset(token)


def _unsupported(what: str) -> types.ErrorData:
    return types.ErrorData(code=types.METHOD_NOT_FOUND, message=f"The client does not support {what}.")
