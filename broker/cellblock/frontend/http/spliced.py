"""Puts large results into HTTP responses, where tokens stand for them."""

from __future__ import annotations

from typing import Any, Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from cellblock.apart.raw import Splices

PIECE_BYTES: Final = 256 * 1024
"""Bounds the bytes of one write of an answer: the loop goes on between two."""


class SplicingManager(StreamableHTTPSessionManager):
    """Puts large results into the responses of the SDK's manager, whose other arguments it takes."""

    def __init__(self, *arguments: Any, splices: Splices, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._splices = splices

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one HTTP request."""
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
            pieces = self._splices.spliced(message.get("body", b""))
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

        await super().handle_request(scope, receive, spliced)


def _with_length(start: Message, length: int) -> Message:
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", str(length).encode())]}
