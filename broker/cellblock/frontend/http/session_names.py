"""Session_names begins the ids of a broker's sessions with the broker's name, by which a balancer finds it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_HEADER: Final = b"mcp-session-id"

NOT_HERE: Final = b"not-here"
"""Stands, before the SDK, for the id of another broker's session: the SDK makes no such id, and answers 404."""


class SessionNames:
    """Stands between the gate, which knows whole ids, and the SDK, which makes ids without a name.

    Args:
        app: The SDK's session manager.
        broker: The broker's name.
    """

    def __init__(self, app: ASGIApp, broker: str) -> None:
        self._app, self._start = app, f"{broker}.".encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = _with_session(message.get("headers", ()), lambda value: self._start + value)
                message = {**message, "headers": headers}
            await send(message)

        headers = _with_session(scope["headers"], self._own)
        await self._app({**scope, "headers": headers}, receive, named)

    def _own(self, session: bytes) -> bytes:
        return session.removeprefix(self._start) if session.startswith(self._start) else NOT_HERE


def _with_session(
    headers: Iterable[tuple[bytes, bytes]], change: Callable[[bytes], bytes]
) -> list[tuple[bytes, bytes]]:
    return [(key, change(value) if key.lower() == SESSION_HEADER else value) for key, value in headers]
