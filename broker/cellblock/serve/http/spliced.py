"""Puts large results into HTTP responses, where tokens stand for them."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.base.offload.raw import Splices

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
