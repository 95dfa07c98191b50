"""Answers to lines of a stdio client that are no messages, as JSON-RPC 2.0 has them (section 5.1).

The SDK hands such a line on as an exception, and then drops it: a client with that bug would wait for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType

import anyio
import mcp_types as types
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cellblock.frontend.misread import Misread, misread_line, misread_message

Incoming = SessionMessage | Exception


def answer_to(error: Exception) -> types.JSONRPCError | None:
    """The answer to a line that is no message; None for an empty line, and for what answers one of our own requests.

    Args:
        error: What the SDK says of the line.
    """
    if not isinstance(error, ValidationError):
        return None
    found = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        return _as_error(misread_line(str(found[0]["input"]), found[0]["msg"]))
    # Held against the four kinds of messages, an object lacks a field of one of them; the error then has it whole.
    whole = [one["input"] for one in found if len(one["loc"]) <= 1 or one["type"] == "missing"]
    return _as_error(misread_message(whole[0])) if whole else None


class AnsweringStream:
    """A transport's read stream that answers what is no message, and hands on all else.

    Args:
        inner: What the client sends.
        answers: Takes messages for it.
        before_end: Waited for before the end of `inner` is told.
        on_message: Called with each message that is handed on.
    """

    def __init__(
        self,
        inner: ReadStream[Incoming],
        answers: WriteStream[SessionMessage],
        before_end: Callable[[], Awaitable[None]] | None = None,
        on_message: Callable[[SessionMessage], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._answers = answers
        self._before_end = before_end
        self._on_message = on_message

    @property
    def last_context(self) -> object:
        """The sender's context variables, where the inner stream keeps them (read by the SDK)."""
        return getattr(self._inner, "last_context", None)

    async def answer(self, error: types.JSONRPCError) -> None:
        """Sends an answer to the client."""
        # Closed: nobody is there to be told.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._answers.send(SessionMessage(error))

    async def receive(self) -> Incoming:
        """The next message."""
        while await self._is_answered(item := await self._inner.receive()):
            pass
        return item

    async def aclose(self) -> None:
        """Closes the inner stream."""
        await self._inner.aclose()

    def __aiter__(self) -> AnsweringStream:
        return self

    async def __anext__(self) -> Incoming:
        try:
            while await self._is_answered(item := await self._inner.__anext__()):
                pass
        except StopAsyncIteration:
            if self._before_end is not None:
                await self._before_end()
            raise
        return item

    async def __aenter__(self) -> AnsweringStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)

    async def _is_answered(self, item: Incoming) -> bool:
        if not isinstance(item, Exception):
            self._on_message(item)
            return False
        error = answer_to(item)
        if error is None:
            return False
        await self.answer(error)
        return True


# ---- inside ------------------------------------------------------------------------------------------


def _as_error(found: Misread | None) -> types.JSONRPCError | None:
    if found is None:
        return None
    error = types.ErrorData(code=found.code, message=found.why)
    return types.JSONRPCError(jsonrpc="2.0", id=found.request_id, error=error)
