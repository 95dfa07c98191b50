"""Channel is HTTP as the relay needs it: one request, and its answer in pieces, whole or message by message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from cellblock.upstream.events import EventSplitter

CONNECT_SECONDS: Final = 5.0
"""Bounds the time for the daemon to take a connection."""

SILENCE_SECONDS: Final = 60.0
"""Bounds the silence of the daemon in the middle of an answer; it sends a sign of life every 15 s."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Bounds one message of the daemon: a result of 16 MiB is in it twice."""


class Broken(Exception):
    """Tells that the daemon cannot be reached, or has hung up, or is silent for too long. The message says which."""


class Unreached(Broken):
    """Tells that the daemon takes no connection: nothing was sent."""


class HungUp(Broken):
    """Tells that the daemon has ended the connection without an answer, as one does that is killed."""


class Answer(Protocol):
    """Holds what the daemon answers."""

    @property
    def status(self) -> int:
        """Gives the HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Gives the headers by their names in lower case."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Gives the body in pieces. Raises Broken."""
        ...


class Channel(Protocol):
    """A channel is a way to a daemon."""

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AbstractAsyncContextManager[Answer]:
        """Sends one request to the daemon; it is over when its answer is left. Raises Broken."""
        ...


async def whole(answer: Answer) -> bytes:
    """Returns the whole body of an answer.

    Raises:
        Broken: It does not come, or is too large.
    """
    body = bytearray()
    async for piece in answer.pieces():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise Broken(f"an answer has over {MAX_MESSAGE_BYTES} bytes")
    return bytes(body)


async def messages_in(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Gives the data of each event that is a message.

    Raises:
        Broken: One is too large, or the stream breaks.
    """
    splitter = EventSplitter()
    async for piece in pieces:
        for event in splitter.feed(piece):
            kinds = {line.partition(b":")[2].strip() for line in event.lines if line.startswith(b"event:")}
            if event.data and kinds <= {b"message"}:
                yield event.data
        if splitter.held > MAX_MESSAGE_BYTES:
            raise Broken(f"a message has over {MAX_MESSAGE_BYTES} bytes")
