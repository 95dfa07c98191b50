"""Reads the body of a request whole, within its bounds, before anybody decodes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import mcp_types as types
from starlette.types import Message, Receive

from cellblock.apart.pool import Apart
from cellblock.config.http import HttpSettings
from cellblock.frontend.http.refusal import Refused, busy
from cellblock.frontend.intake import NotTaken, take
from cellblock.frontend.memory import Charge

MEMORY_RETRY_SECONDS: Final = 1
"""Says when to ask again after memory was short: bodies are read and cut in milliseconds."""

TOO_LARGE: Final = (
    "This request takes more of the daemon's memory than one client may have. Send less in one request."
)
NO_MEMORY: Final = (
    "Your requests under way take as much of the daemon's memory as they may. Wait for their answers, then ask again; "
    "or send less in one request."
)


class Bodies:
    """Reads bodies.

    Args:
        settings: The bounds.
        apart: Where large ones are looked at.
    """

    def __init__(self, settings: HttpSettings, apart: Apart) -> None:
        self._settings = settings
        self._apart = apart

    async def body(
        self, headers: Mapping[bytes, bytes], charge: Charge, receive: Receive, client: str
    ) -> bytes:
        """Returns what is to be decoded of a request.

        Args:
            headers: Its headers.
            charge: For what is held of it; the caller's to end.
            receive: Gives its parts.
            client: Whose it is.

        Raises:
            Refused: It is too large, too slow, cut off, or there is no memory for it.
        """
        raw = await self._read(headers, charge, receive)
        try:
            taken = await take(raw, self._apart, client)
        except NotTaken as refused:
            if refused.later:
                raise busy(503, MEMORY_RETRY_SECONDS, refused.why) from None
            raise Refused(400 if refused.code == types.PARSE_ERROR else 413, why=refused.why) from None
        if taken.weight > charge.most:
            raise Refused(413, why=TOO_LARGE)
        if not charge.to(taken.weight):
            raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
        return taken.body

    async def _read(self, headers: Mapping[bytes, bytes], charge: Charge, receive: Receive) -> bytes:
        bound = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > bound:
            raise Refused(413)
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self._settings.body_timeout_ms / 1000):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refused(400)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > bound:
                        raise Refused(413)
                    if not charge.to(len(body)):
                        raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
        except TimeoutError:
            raise Refused(408) from None
        return bytes(body)


def giving(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives a body that has been read, keeps nothing of it, and goes on."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return replay
