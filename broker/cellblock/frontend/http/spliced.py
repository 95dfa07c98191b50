"""Puts large results into HTTP responses, where tokens stand for them."""

from __future__ import annotations

from typing import Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from cellblock.apart.raw import Splices

PIECE_BYTES: Final = 256 * 1024
"""Bounds one write: the loop goes on between two."""


class SplicingManager(StreamableHTTPSessionManager):
    """The SDK's manager, in whose responses large results are put.

    Args:
        splices: Has them.
        arguments: As the SDK takes them.
    """

    def __init__(self, *arguments: Any, splices: Splices, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._splices = splices

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one HTTP request."""
        await super().handle_request(scope, receive, _Spliced(send, self._splices).send)


class _Spliced:
    """Sends one response with its large results put in. Each event, and each whole body, comes in one piece."""

    def __init__(self, send: Send, splices: Splices) -> None:
        self._send = send
        self._splices = splices
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and any(
            name.lower() == b"content-length" for name, _ in message["headers"]
        ):
            # Its length is known with its body.
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        pieces = self._splices.spliced(message.get("body", b""))
        if self._start is not None:
            await self._send(
                _with_length(self._start, sum(map(len, pieces))) if len(pieces) > 1 else self._start
            )
            self._start = None
        if len(pieces) == 1:
            await self._send(message)
            return
        for piece in pieces:
            for start in range(0, len(piece), PIECE_BYTES):
                chunk = piece[start : start + PIECE_BYTES]
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({**message, "body": b""})


def _with_length(start: Message, length: int) -> Message:
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", str(length).encode())]}
