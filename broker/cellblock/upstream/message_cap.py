"""The cap on one message of a server (`upstream.max_message_bytes`): what a message over it becomes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.shared.message import SessionMessage

from cellblock.upstream.lines import TooLong

_SETTING: Final = "upstream.max_message_bytes"
_SDK_TEXT: Final = "Server-sent event exceeded the"
"""How the HTTP library says that an event is over the cap that it was given."""


class MessageTooLarge(httpx2.StreamError):
    """A message is over the cap; the SDK takes it for an answer that could not be read."""


def is_too_large(message: str) -> bool:
    """Whether the text of an error says that a message was over the cap. A server that writes the same is told so."""
    return _SETTING in message or _SDK_TEXT in message


def too_large_error(line: TooLong, cap: int) -> SessionMessage | Exception:
    """What the session is given in place of the line: the failure of the request it answers, where that is known."""
    text = _said(line.size, cap)
    if line.answers is None:
        return MessageTooLarge(text)
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=line.answers, error=error))


def cap_response(response: httpx2.Response, cap: int) -> None:
    """Lets no more of an HTTP answer into memory than the cap, counted after decompression.

    A stream of events may go on for ever; its events are capped one by one, by the SDK.
    """
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    whole = response.aiter_bytes

    async def capped(chunk_size: int | None = None) -> AsyncGenerator[bytes, Any]:
        size = 0
        async for chunk in whole(chunk_size):
            size += len(chunk)
            if size > cap:
                raise MessageTooLarge(_said(size, cap))
            yield chunk

    # The SDK makes its client itself where proxies of the environment are to count, so the answer is what can be
    # reached; everything that reads a body reads it through this method.
    response.aiter_bytes = capped


def _said(size: int, cap: int) -> str:
    return f"the message has {size} bytes or more, over {_SETTING} = {cap}"
