"""What a client's model says to a server that asks it during a call goes to that server: it has read what the run's
author has, and so it is asked only where the server may know that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import mcp_types as types
from pydantic import BaseModel

from cellblock.tools.upstream.requester import Asked, CallOrigin, Live, Requester

REFUSED: Final = types.ErrorData(
    code=types.INVALID_REQUEST,
    message="The policy does not let what the client's model may know go to this server.",
)


def guarded(origin: CallOrigin, may_know: Callable[[], bool]) -> CallOrigin:
    """Returns the origin of a call that can be asked: its server has answers of the client's model only while it may
    know them."""
    requester = None if origin.requester is None else _Guarded(origin.requester, may_know)
    asked = _guarded_later(origin.asked, may_know)
    # Who asks is the same as before.
    return replace(origin, requester=requester, asked=asked, run=origin.who)


def _guarded_later(asked: Asked | None, may_know: Callable[[], bool]) -> Asked | None:
    if asked is None:
        return None

    async def answer(request: types.InputRequest, live: Live, round: str = "") -> BaseModel | types.ErrorData:
        if isinstance(request, types.CreateMessageRequest) and not may_know():
            return REFUSED
        return await asked(request, live, round)

    return answer


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Passes on to a requester all that is not for its model; implements `Requester`."""

    inner: Requester
    may_know: Callable[[], bool]

    async def elicit(
        self, params: types.ElicitRequestParams, key: str = ""
    ) -> types.ElicitResult | types.ErrorData:
        return await self.inner.elicit(params, key)

    async def sample(
        self, params: types.CreateMessageRequestParams, key: str = ""
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        return await self.inner.sample(params, key) if self.may_know() else REFUSED

    async def roots(self, key: str = "") -> types.ListRootsResult | types.ErrorData:
        return await self.inner.roots(key)

    @property
    def wants_progress(self) -> bool:
        return self.inner.wants_progress

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        self.inner.progress(server, tool, progress, total, message)

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        self.inner.logged(params)
