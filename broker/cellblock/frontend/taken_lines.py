"""Lines of standard input as the SDK takes them: as text, and a large one is looked at apart first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, cast

import anyio
import mcp_types as types

from cellblock.apart.pool import Apart
from cellblock.frontend.intake import AS_IT_IS_BYTES, NotTaken, take
from cellblock.frontend.misread import INVALID_REQUEST, NO_UTF8, misread_line
from cellblock.frontend.stdio.stdin import LineTooLong, StdinLines

CLIENT: Final = "stdio"
"""Over stdio, a process serves one client."""

ApartWhenItRuns = Callable[[], Awaitable[Apart]]

Refuse = Callable[[types.JSONRPCError], Awaitable[None]]


class TakenLines:
    """An async iterator. Implements as much of `anyio.AsyncFile[str]` as `mcp.server.stdio.stdio_server` uses.

    Args:
        lines: As they come.
        apart: Waits for where large lines are looked at.
    """

    def __init__(self, lines: StdinLines, apart: ApartWhenItRuns) -> None:
        self._lines = lines
        self._apart = apart
        self._refuse: asyncio.Future[Refuse] = asyncio.get_running_loop().create_future()

    def refuse_by(self, refuse: Refuse) -> None:
        """From now on `refuse` answers what is not taken; until then that waits."""
        self._refuse.set_result(refuse)

    def as_file(self) -> anyio.AsyncFile[str]:
        """Itself, as the type that the SDK asks for."""
        return cast("anyio.AsyncFile[str]", self)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            try:
                return await self._text()
            except NotTaken as refused:
                error = types.ErrorData(code=refused.code, message=refused.why)
                refuse = await self._refuse
                await refuse(types.JSONRPCError(jsonrpc="2.0", id=refused.request_id, error=error))

    async def _text(self) -> str:
        while True:
            try:
                line = await self._lines.line()
            except LineTooLong as error:
                raise NotTaken(str(error), code=INVALID_REQUEST, request_id=error.request_id) from None
            if not line:
                raise StopAsyncIteration
            if len(line) > AS_IT_IS_BYTES:
                line = (await take(line, await self._apart(), CLIENT)).body
            try:
                return line.decode()
            except UnicodeDecodeError:
                found = misread_line(line.decode("utf-8", "replace"), NO_UTF8)
            if found is not None:
                raise NotTaken(found.why, code=found.code, request_id=found.request_id)
