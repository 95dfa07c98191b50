"""Reads the body of a request whole, before anybody decodes it, and bounds what requests take of the broker's memory
while they are read, wait and run: a bound for a client, for a principal and for all together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final

import mcp_types as types
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.serve.http.caller import Caller
from cellblock.serve.http.refusal import Refused, busy, header
from cellblock.serve.intake import take
from cellblock.serve.misread import NotTaken
from cellblock.serve.splices import Splices

RETRY_SECONDS: Final = 1
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

    Attributes:
        share: Bytes for one principal.
    """

    def __init__(self, total: int) -> None:
        self.total = self.share = total
        self.of_client = max(1, total // CLIENT_PART)
        self.held = 0
        self._held_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def charge(self, client: str, principal: str) -> Generator[Callable[[int], bool]]:
        """Counts for one request inside the block. Gives what changes its charge to so many bytes; False: the client
        may not have so many now, and the charge stays as it was."""
        held = 0
        bounds = {f"client {client}": self.of_client, f"principal {principal}": self.share}

        def to(size: int) -> bool:
            nonlocal held
            by = size - held
            is_over = any(self._held_by[key] + by > bound for key, bound in bounds.items())
            if by > 0 and (is_over or self.held + by > self.total):
                return False
            held = size
            self.held += by
            for key in bounds:
                self._held_by[key] += by
                if not self._held_by[key]:
                    del self._held_by[key]
            return True

        try:
            yield to
        finally:
            to(0)


async def read_body(
    scope: Scope, receive: Receive, bound: int, seconds: float, held: Callable[[int], bool] = lambda _: True
) -> bytes:
    """Returns a request's body as it came.

    Args:
        scope: The request.
        receive: Gives the pieces of the body.
        bound: How large it may be.
        seconds: How long it may take.
        held: Is told what is held of it so far, and says whether there is memory for it.

    Raises:
        Refused: It is too large, too slow, cut off, or there is no memory for it.
    """
    declared = header(scope, b"content-length") or b"0"
    if not declared.isdigit() or int(declared[:20]) > bound:
        raise Refused(413)
    body = bytearray()
    more = True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refused(400)
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > bound:
                    raise Refused(413)
                if not held(len(body)):
                    raise busy(429, RETRY_SECONDS, NO_MEMORY)
    except TimeoutError:
        raise Refused(408) from None
    return bytes(body)


class WholeBody:
    """Reads the body of a POST before anybody decodes it, and cuts off what nobody needs of it.

    Args:
        app: What gets the body.
        bound: How large a body may be.
        seconds: How long it may take.
        memory: What all requests hold.
    """

    def __init__(self, app: ASGIApp, bound: int, seconds: float, memory: Memory) -> None:
        self.app, self.bound, self.seconds, self.memory = app, bound, seconds, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        caller = Caller.known(scope)
        with self.memory.charge(caller.client, caller.principal) as held:
            raw = await read_body(scope, receive, self.bound, self.seconds, held)
            receive = _giving(await self._decodable(raw, held), receive)
            del raw
            await self.app(scope, receive, send)

    async def _decodable(self, raw: bytes, held: Callable[[int], bool]) -> bytes:
        try:
            taken = await take(raw)
        except NotTaken as refused:
            raise Refused(400 if refused.found.code == types.PARSE_ERROR else 413, why=str(refused)) from None
        if taken.weight > self.memory.of_client:
            raise Refused(413, why=TOO_LARGE)
        if not held(taken.weight):
            raise busy(429, RETRY_SECONDS, NO_MEMORY)
        return taken.body


def _giving(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives a body that has been read, keeps nothing of it, and goes on."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return replay


PIECE_BYTES: Final = 256 * 1024
"""Bounds the bytes of one write of an answer: the loop goes on between two."""


class Spliced:
    """Puts large results into the responses behind it."""

    def __init__(self, app: ASGIApp, splices: Splices) -> None:
        self.app, self.splices = app, splices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Message | None = None

        async def spliced(message: Message) -> None:
            """Sends a response with its large results put in. Each event, and each whole body, comes in one piece."""
            nonlocal begun
            if message["type"] == "http.response.start" and any(
                name.lower() == b"content-length" for name, _ in message["headers"]
            ):
                # Its length is known with its body.
                begun = message
                return
            if message["type"] != "http.response.body":
                await send(message)
                return
            pieces = self.splices.spliced(message.get("body", b""))
            if begun is not None:
                await send(_with_length(begun, sum(map(len, pieces))) if len(pieces) > 1 else begun)
                begun = None
            if len(pieces) == 1:
                await send(message)
                return
            for piece in pieces:
                for start in range(0, len(piece), PIECE_BYTES):
                    chunk = piece[start : start + PIECE_BYTES]
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({**message, "body": b""})

        await self.app(scope, receive, spliced)


def _with_length(start: Message, length: int) -> Message:
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", str(length).encode())]}
