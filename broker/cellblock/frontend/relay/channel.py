"""HTTP as the relay needs it: one request, and its answer in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

CONNECT_SECONDS: Final = 5.0
"""For the daemon to take a connection."""

SILENCE_SECONDS: Final = 60.0
"""Of the daemon in the middle of an answer; it sends a sign of life every 15 s."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""One message of the daemon: a result of 16 MiB is in it twice."""


class Broken(Exception):
    """The daemon cannot be reached, or has hung up, or is silent for too long. The message says which."""


class Answer(Protocol):
    """What the daemon answers."""

    @property
    def status(self) -> int:
        """Of HTTP."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises Broken."""
        ...


class Channel(Protocol):
    """A way to a daemon."""

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AbstractAsyncContextManager[Answer]:
        """One request; it is over when its answer is left. Raises Broken."""
        ...


async def whole(answer: Answer) -> bytes:
    """The whole body.

    Raises:
        Broken: It does not come, or is too large.
    """
    body = bytearray()
    async for piece in answer.pieces():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise Broken(f"an answer has over {MAX_MESSAGE_BYTES} bytes")
    return bytes(body)
