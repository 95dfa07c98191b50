"""Message_cap keeps the cap on one message of a server (twice `max_message_bytes`): what a message over it
becomes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.shared.message import SessionMessage

from cellblock.base.offload.budget import OverBudget
from cellblock.base.offload.light import is_light
from cellblock.tools.upstream.events import EventSplitter
from cellblock.tools.upstream.heavy import HeavyMessages
from cellblock.tools.upstream.incoming import TOO_LARGE_START
from cellblock.tools.upstream.lines import TooLong
from cellblock.tools.upstream.pace import MESSAGE_BYTES, Flooding, Pace
from cellblock.tools.upstream.posts import Post, RequestOver

_CAP: Final = "twice max_message_bytes"
_SDK_TEXT: Final = "Server-sent event exceeded the"
"""Repeats how the HTTP library says that an event is over the cap that it was given."""

EVENT_LINES: Final = 16
"""Sets how many lines of a stream of events cost as much as a message."""

Chunks = Callable[[], AsyncIterator[bytes]]


class MessageTooLarge(httpx2.StreamError):
    """Tells that a message is over the cap; the SDK takes it for an answer that could not be read."""


def is_too_large(message: str) -> bool:
    """Says whether the text of an error says that a message was over the cap. A server that writes the same is told
    so."""
    return _CAP in message or _SDK_TEXT in message


def too_large_error(line: TooLong, cap: int) -> SessionMessage | Exception:
    """Makes what the session is given in place of the line: the failure of the request it answers, where that is
    known."""
    text = _said(line.size, cap) if line.why is None else f"{TOO_LARGE_START}could not be read: {line.why}"
    if line.answers is None:
        return MessageTooLarge(text)
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=line.answers, error=error))


def cap_response(
    response: httpx2.Response,
    cap: int,
    heavy: HeavyMessages,
    post: Post | None = None,
    on_flood: Callable[[str], None] = lambda _: None,
    on_over: Callable[[str], None] = lambda _: None,
) -> None:
    """Lets no more of an HTTP answer into memory than the cap, counted after decompression, and gives the SDK small
    messages in place of large ones.

    Args:
        response: Its body is not read yet.
        cap: Of a body, or of each event of a stream of them, which may go on for ever.
        heavy: Reads what is large.
        post: What the answer is read for; None where it has no end of its own.
        on_flood: Told why, when its events have come too fast for too long; the body ends then.
        on_over: Told why, when one of its events is over the cap; the body ends then.
    """
    whole = response.aiter_bytes
    if post is not None:
        whole = partial(post.chunks, whole)
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        # As the standard has it, whatever the server says: else its lines could not be told apart here.
        response.encoding = "utf-8"
        bodies = _events(whole, cap, heavy, on_flood, on_over)
    else:
        bodies = _body(whole, cap, heavy)

    # The SDK makes its client itself where proxies of the environment are to count, so the answer is what can be
    # reached; everything that reads a body reads it through this method.
    response.aiter_bytes = lambda chunk_size=None: bodies


async def _body(whole: Chunks, cap: int, heavy: HeavyMessages) -> AsyncGenerator[bytes, Any]:
    size = 0
    kept: list[bytes] = []
    try:
        with heavy.counting() as count:
            async for chunk in whole():
                size += len(chunk)
                if size > cap:
                    raise MessageTooLarge(_said(size, cap))
                count(size)
                kept.append(chunk)
    except OverBudget as error:
        raise MessageTooLarge(f"the message could not be read: {error}") from None
    except RequestOver as over:
        raise httpx2.StreamError(str(over)) from None
    body = b"".join(kept)
    kept.clear()
    yield await heavy.lightened(body) or b""


async def _events(
    whole: Chunks,
    cap: int,
    heavy: HeavyMessages,
    on_flood: Callable[[str], None],
    on_over: Callable[[str], None],
) -> AsyncGenerator[bytes, Any]:
    splitter = EventSplitter()
    pace = Pace()
    try:
        with heavy.counting() as count:
            async for chunk in whole():
                events = splitter.feed(chunk)
                await pace.spend(len(events) + len(chunk) / MESSAGE_BYTES + chunk.count(b"\n") / EVENT_LINES)
                events.reverse()
                while events:
                    event = events.pop()
                    if event.data is None or is_light(event.data):
                        yield event.raw
                    else:
                        # While it is read apart, its bytes are here once.
                        data, event = event.data, event.without_data()
                        yield event.with_data(await heavy.lightened(data) or b"")
                        del data
                if splitter.held > cap:
                    on_over(_said(splitter.held, cap))
                    raise httpx2.SSEError(f"{_SDK_TEXT} {cap} byte limit.")
                count(splitter.held)
    except OverBudget as error:
        raise httpx2.SSEError(f"{TOO_LARGE_START}could not be read: {error}") from None
    except Flooding as error:
        on_flood(str(error))
        raise httpx2.SSEError(str(error)) from None
    except RequestOver as over:
        # The one failure after which the SDK does not ask for the rest of the stream.
        raise httpx2.SSEError(str(over)) from None


def _said(size: int, cap: int) -> str:
    return f"the message has {size} bytes or more, over {_CAP} = {cap}"
