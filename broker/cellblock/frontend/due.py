"""Answers that a stdio client is still due when it closes stdin: requests are counted where they are read, and answers
where they are written."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

import mcp_types as types
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage

LONG: Final = ("tools/call", "subscriptions/listen")
"""Requests that take as long as they like, and end with stdin."""


class DueAnswers:
    """A transport's write stream that knows which requests wait for an answer.

    Args:
        inner: Takes messages for the client.
    """

    def __init__(self, inner: WriteStream[SessionMessage]) -> None:
        self._inner = inner
        self._due: set[types.RequestId] = set()
        self._changed = asyncio.Event()

    def received(self, message: SessionMessage) -> None:
        """A message of the client has been read."""
        body = message.message
        if isinstance(body, types.JSONRPCRequest) and body.method not in LONG:
            self._due.add(body.id)
        elif isinstance(body, types.JSONRPCNotification) and body.method == "notifications/cancelled":
            # Whether it still gets one is the server's to say.
            self._settle((body.params or {}).get("requestId"))

    async def none_left(self) -> None:
        """Waits until every request is answered. They are only looked up, and nothing starts for them."""
        while self._due:
            self._changed.clear()
            await self._changed.wait()

    async def send(self, item: SessionMessage, /) -> None:
        """Sends a message to the client."""
        try:
            await self._inner.send(item)
        finally:
            if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                self._settle(item.message.id)

    async def aclose(self) -> None:
        """Closes the inner stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> DueAnswers:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)

    def _settle(self, request_id: object) -> None:
        if isinstance(request_id, int | str):
            self._due.discard(request_id)
            self._changed.set()
