"""Answers to lines of a stdio client that are no messages, as JSON-RPC 2.0 has them (section 5.1).

The SDK hands such a line on as an exception, and then drops it: a client with that bug would wait for ever.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

MAX_WHY_CHARS: Final = 300
"""Of what is wrong with a line."""

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
        return _unparsed(str(found[0]["input"]), found[0]["msg"])
    # Held against the four kinds of messages, an object lacks a field of one of them; the error then has it whole.
    whole = [one["input"] for one in found if len(one["loc"]) <= 1 or one["type"] == "missing"]
    return _judged(whole[0]) if whole else None


class AnsweringStream:
    """A transport's read stream that answers what is no message, and hands on all else.

    Args:
        inner: What the client sends.
        answers: Takes messages for it.
        before_end: Waited for before the end of `inner` is told.
    """

    def __init__(
        self,
        inner: ReadStream[Incoming],
        answers: WriteStream[SessionMessage],
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._inner = inner
        self._answers = answers
        self._before_end = before_end

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
            return False
        error = answer_to(item)
        if error is None:
            return False
        await self.answer(error)
        return True


# ---- inside ------------------------------------------------------------------------------------------


def _judged(message: Any) -> types.JSONRPCError | None:
    if not isinstance(message, dict):
        return _error(types.INVALID_REQUEST, None, "A message is one JSON object.")
    message = cast("dict[str, Any]", message)
    request_id = _id_of(message)
    if "method" not in message:
        if "result" in message or "error" in message:
            return None
        return _error(types.INVALID_REQUEST, request_id, "A request has a `method`.")
    if message.get("jsonrpc") != "2.0":
        return _error(types.INVALID_REQUEST, request_id, '`jsonrpc` is not "2.0".')
    if not isinstance(message["method"], str):
        return _error(types.INVALID_REQUEST, request_id, "`method` is no string.")
    # A notification is not answered, whatever is wrong with it.
    return None if "id" not in message else _error(types.INVALID_PARAMS, request_id, "`params` is no object.")


def _unparsed(line: str, why: str) -> types.JSONRPCError | None:
    if not line.strip():
        return None
    try:
        # Takes what the SDK's parser does not, such as half an emoji: the id at least is then known.
        data: object = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    request_id = None
    if isinstance(data, dict):
        message = cast("dict[str, Any]", data)
        if "method" not in message and ("result" in message or "error" in message):
            return None
        request_id = _id_of(message)
    return _error(types.PARSE_ERROR, request_id, f"The line cannot be read: {why[:MAX_WHY_CHARS]}.")


def _id_of(message: dict[str, Any]) -> types.RequestId | None:
    given: object = message.get("id")
    return given if isinstance(given, int | str) and not isinstance(given, bool) else None


def _error(code: int, request_id: types.RequestId | None, why: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=why))
