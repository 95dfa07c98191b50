"""Reads the body of a request whole, before anybody decodes it, and bounds what requests take of the broker's memory
while they are read, wait and run: a bound for a client, for a principal and for all together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

import mcp_types as types
from starlette.types import Message, Receive

from cellblock.apart.pool import Apart
from cellblock.config.http import HttpSettings
from cellblock.frontend.http.refusal import Refused, busy
from cellblock.frontend.intake import NotTaken, take

MEMORY_RETRY_SECONDS: Final = 1
"""Says when to ask again after memory was short: bodies are read and cut in milliseconds."""

CLIENT_PART: Final = 4
"""Allows a client one in so many of all bytes: an honest one sends kilobytes, and at times a large script."""

TOO_LARGE: Final = (
    "This request takes more of the daemon's memory than one client may have. Send less in one request."
)
NO_MEMORY: Final = (
    "Your requests under way take as much of the daemon's memory as they may. Wait for their answers, then ask again; "
    "or send less in one request."
)


class Memory:
    """Counts the memory that all requests hold.

    Args:
        total: Bytes for all together.
        share: Bytes for one principal.
    """

    def __init__(self, total: int, share: int) -> None:
        self.total = total
        self.share = share
        self.of_client = max(1, total // CLIENT_PART)
        self.held = 0
        self._held_by: Counter[str] = Counter()

    def charge(self, client: str, principal: str) -> Charge:
        """Opens an account for one request; its owner must `end` it."""
        return Charge(self, f"client {client}", f"principal {principal}")

    def move(self, by: int, client: str, principal: str) -> bool:
        """Takes so many bytes more, or gives some back; False: they are not there, and nothing is taken."""
        if by > 0 and (
            self.held + by > self.total
            or self._held_by[client] + by > self.of_client
            or self._held_by[principal] + by > self.share
        ):
            return False
        self.held += by
        for key in (client, principal):
            self._held_by[key] += by
            if not self._held_by[key]:
                del self._held_by[key]
        return True


class Charge:
    """Counts the memory that one request holds."""

    __slots__ = ("_bytes", "_client", "_memory", "_principal")

    def __init__(self, memory: Memory, client: str, principal: str) -> None:
        self._memory = memory
        self._client = client
        self._principal = principal
        self._bytes = 0

    @property
    def most(self) -> int:
        """Returns the most bytes that all requests of one client may hold."""
        return self._memory.of_client

    def to(self, size: int) -> bool:
        """Changes the charge to so many bytes; False: the client may not have so many now, and the charge stays as it
        was."""
        if not self._memory.move(size - self._bytes, self._client, self._principal):
            return False
        self._bytes = size
        return True

    def end(self) -> None:
        """Gives back all that the request holds."""
        self.to(0)


async def read_body(
    headers: Mapping[bytes, bytes],
    receive: Receive,
    settings: HttpSettings,
    charge: Charge | None = None,
    *,
    bound: int | None = None,
) -> bytes:
    """Returns a request's body as it came.

    Args:
        headers: Those of the request.
        receive: Gives the pieces of the body.
        settings: Say how long it may take, and how large it may be.
        charge: Is raised to what is held of it, and is the caller's to end; None: it is small, and counts for nothing.
        bound: The most bytes that it may have; None: what the settings say.

    Raises:
        Refused: It is too large, too slow, cut off, or there is no memory for it.
    """
    bound = settings.max_body_bytes if bound is None else bound
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared[:20]) > bound:
        raise Refused(413)
    body = bytearray()
    more = True
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refused(400)
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > bound:
                    raise Refused(413)
                if charge is not None and not charge.to(len(body)):
                    raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
    except TimeoutError:
        raise Refused(408) from None
    return bytes(body)


async def decodable(raw: bytes, charge: Charge, client: str, apart: Apart) -> bytes:
    """Returns a body that was read, in the form that is then decoded.

    Raises:
        Refused: It is too large, or there is no memory for it.
    """
    try:
        taken = await take(raw, apart, client)
    except NotTaken as refused:
        if refused.later:
            raise busy(503, MEMORY_RETRY_SECONDS, str(refused)) from None
        raise Refused(400 if refused.code == types.PARSE_ERROR else 413, why=str(refused)) from None
    if taken.weight > charge.most:
        raise Refused(413, why=TOO_LARGE)
    if not charge.to(taken.weight):
        raise busy(429, MEMORY_RETRY_SECONDS, NO_MEMORY)
    return taken.body


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
