"""Activity is when a client was last here: a daemon that `connect` has started ends when nobody was for long."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send


class Activity:
    """Knows for how long nobody has asked for anything, or has a stream open."""

    def __init__(self) -> None:
        self._open = 0
        self._seen_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._seen_at

    def begin(self) -> None:
        self._open += 1

    def end(self) -> None:
        self._open -= 1
        self._seen_at = time.monotonic()


class Seen:
    """Notes requests as activity."""

    def __init__(self, app: ASGIApp, activity: Activity) -> None:
        self.app, self.activity = app, activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.activity.begin()
        try:
            await self.app(scope, receive, send)
        finally:
            self.activity.end()
