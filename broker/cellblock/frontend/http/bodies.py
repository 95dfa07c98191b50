"""The body of a request, read whole within its bounds before anybody decodes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Receive

from cellblock.config_http import HttpSettings
from cellblock.frontend.http.refusal import Refused, busy
from cellblock.frontend.memory import Charge, weight_of

MEMORY_RETRY_SECONDS: Final = 1
"""When to ask again after memory was short: bodies are read and cut in milliseconds."""

NO_MEMORY: Final = (
    "Your requests under way take as much of the daemon's memory as they may. Wait for their answers, then ask again; "
    "or send less in one request."
)


async def body_of(
    headers: Mapping[bytes, bytes], settings: HttpSettings, charge: Charge, receive: Receive
) -> bytes:
    """Reads it.

    Args:
        headers: Of the request.
        settings: The bounds.
        charge: For what is held of it; the caller's to end.
        receive: Gives its parts.

    Raises:
        Refused: It is too large, too slow, cut off, or there is no memory for it.
    """
    bound = settings.max_body_bytes
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared[:20]) > bound:
        raise Refused(413)
    parts = bytearray()
    more = True
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refused(400)
                parts += message.get("body", b"")
                more = message.get("more_body", False)
                if len(parts) > bound:
                    raise Refused(413)
                if not charge.to(len(parts)):
                    raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
    except TimeoutError:
        raise Refused(408) from None
    body = bytes(parts)
    if not charge.to(weight_of(body)):
        raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
    return body


def giving(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that has been read, keeps nothing of it, and goes on."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return replay
