"""Knows whose MCP sessions are open. The SDK keeps them, and counts them together only: this follows what it does, so
that one principal cannot take all places, and nobody is known by a session of somebody else."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.base.settings.policy import NAMED
from cellblock.serve.http.caller import Caller
from cellblock.serve.http.refusal import Refused, busy, header

SESSION_HEADER: Final = b"mcp-session-id"

VERSION_HEADER: Final = b"mcp-protocol-version"
"""Names the header with the protocol version, which a request that opens a session does not have."""

NOT_HERE: Final = b"not-here"
"""Stands, before the SDK, for the id of another broker's session: the SDK makes no such id, and answers 404."""

SESSION_VERSIONS: Final = frozenset(HANDSHAKE_PROTOCOL_VERSIONS)
"""Lists the protocol versions with which, as with none, a request without a session opens one."""

MAX_REMEMBERED: Final = 4
"""Times the maximum of sessions: a bound on this memory, should it ever miss an end."""

RETRY_SECONDS: Final = 30
"""Says after how many seconds a client may ask again for a session; sessions that nobody uses end by themselves."""

TOO_MANY: Final = (
    "You have as many MCP sessions open as one may have here, each with a request or a stream. "
    "End one with DELETE."
)


@dataclass(slots=True)
class _Session:
    principal: str
    program: str
    name: str
    in_flight: int
    quiet_since: float
    user: object = None


class Sessions:
    """Holds the sessions that are open, and the places of those that are about to be.

    Args:
        total: How many there may be (the SDK's to keep).
        idle_seconds: After so long without a request the SDK forgets a session.

    Attributes:
        share: How many a principal may have.
    """

    def __init__(self, total: int, idle_seconds: float) -> None:
        self.total = self.share = total
        self._idle = idle_seconds
        self._open: dict[object, _Session] = {}

    def reserve(self, opener: Caller, now: float) -> object | None:
        """Keeps a place for a session that a request wants to open; None: the principal has its share. `forget` must
        follow for the place, also behind `opened`."""
        for key, one in list(self._open.items()):
            if not one.in_flight and now - one.quiet_since > self._idle:
                del self._open[key]
        if sum(one.principal == opener.principal for one in self._open.values()) >= self.share:
            return None
        place = object()
        self._open[place] = _Session(opener.principal, opener.program, "", 1, now)
        return place

    def longest_idle(self, opener: Caller) -> tuple[bytes, object] | None:
        """Returns the session of a principal that has been without a request or stream for longest, and as whom the SDK
        knows its program; None for none."""
        idle = [
            (one.quiet_since, key, one.user)
            for key, one in self._open.items()
            if isinstance(key, bytes) and one.principal == opener.principal and not one.in_flight
        ]
        return min(idle, key=lambda one: one[0])[1:] if idle else None

    def opened(self, key: bytes, opener: Caller, now: float, user: object = None) -> None:
        """Notes a session that the SDK has opened for a user."""
        # The id lets its holder into the session: logs and the dashboard get another name for it.
        whose = f"{opener.principal} " if opener.principal.startswith(NAMED) else ""
        name = f"http {whose}session {hashlib.sha256(key).hexdigest()[:16]}"
        self._open[key] = _Session(opener.principal, opener.program, name, 0, now, user)
        if len(self._open) > MAX_REMEMBERED * self.total:
            del self._open[next(iter(self._open))]

    def begin(self, key: bytes, caller: Caller) -> str | None:
        """Notes that a request of a session comes in; `end` must follow.

        Returns:
            The name by which the client is known; None: no such session was opened here.

        Raises:
            Refused: The session is somebody else's.
        """
        session = self._open.get(key)
        if session is None:
            return None
        if (session.principal, session.program) != (caller.principal, caller.program):
            raise Refused(404)
        session.in_flight += 1
        return session.name

    def end(self, key: bytes, now: float) -> None:
        """Notes that a request of a session is answered."""
        if (session := self._open.get(key)) is not None:
            session.in_flight -= 1
            session.quiet_since = now

    def forget(self, key: object) -> None:
        """Forgets a session that is over, or a place that is not needed any more."""
        self._open.pop(key, None)


class SessionLimit:
    """Refuses a session of somebody else's, and more than a principal's share; has callers known by their sessions."""

    def __init__(self, app: ASGIApp, sessions: Sessions, clock: Callable[[], float] = time.monotonic) -> None:
        self.app, self.sessions, self.clock = app, sessions, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session, version = header(scope, SESSION_HEADER), header(scope, VERSION_HEADER)
        if b"," in (session or b"") + (version or b""):
            # The SDK would take the first of two.
            raise Refused(400)
        if session is not None:
            await self._within(session, scope, receive, send)
        elif version is None or version.decode("latin-1") in SESSION_VERSIONS:
            await self._opening(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _within(self, session: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        async def follow(message: Message) -> None:
            """Sends, and follows which sessions the SDK has ended."""
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 404 or (scope["method"] == "DELETE" and status < 400):
                    self.sessions.forget(session)
            await send(message)

        caller = Caller.known(scope)
        # Only a session that was opened here is a client of its own: another name could be made up for each request.
        if name := self.sessions.begin(session, caller):
            replace(caller, client=name, has_session=True).put(scope)
        try:
            await self.app(scope, receive, follow)
        finally:
            self.sessions.end(session, self.clock())

    async def _opening(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller.known(scope)
        place = self.sessions.reserve(caller, self.clock())
        if place is None and (idle := self.sessions.longest_idle(caller)) is not None:
            # Of a client that has forgotten it: one that comes back is told 404, and begins a new one.
            await self._end(*idle, scope)
            place = self.sessions.reserve(caller, self.clock())
        if place is None:
            raise busy(503, RETRY_SECONDS, TOO_MANY)

        async def follow(message: Message) -> None:
            """Sends, and follows which session the SDK has opened."""
            if message["type"] == "http.response.start" and message["status"] < 400:
                for key, value in message.get("headers", ()):
                    if key.lower() == SESSION_HEADER:
                        self.sessions.forget(place)
                        self.sessions.opened(value, caller, self.clock(), scope.get("user"))
            await send(message)

        try:
            await self.app(scope, receive, follow)
        finally:
            self.sessions.forget(place)

    async def _end(self, session: bytes, user: object, scope: Scope) -> None:
        self.sessions.forget(session)

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unsaid(_: Message) -> None:
            pass

        bare = [
            (key, value) for key, value in scope["headers"] if not key.startswith((b"content-", b"transfer-"))
        ]
        # The SDK ends a session only for the program that opened it, and this one may be another of the principal's.
        asked = {**scope, "user": user, "method": "DELETE", "headers": [*bare, (SESSION_HEADER, session)]}
        await self.app(asked, nothing, unsaid)


class SessionNames:
    """Begins the ids of a broker's sessions with the broker's name, by which a balancer finds it again; stands between
    what knows whole ids and the SDK, which makes ids without a name.

    Args:
        app: The SDK's session manager.
        broker: The broker's name.
    """

    def __init__(self, app: ASGIApp, broker: str) -> None:
        self.app, self._start = app, f"{broker}.".encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = _with_session(message.get("headers", ()), lambda value: self._start + value)
                message = {**message, "headers": headers}
            await send(message)

        headers = _with_session(scope["headers"], self._own)
        await self.app({**scope, "headers": headers}, receive, named)

    def _own(self, session: bytes) -> bytes:
        return session.removeprefix(self._start) if session.startswith(self._start) else NOT_HERE


def _with_session(
    headers: Iterable[tuple[bytes, bytes]], change: Callable[[bytes], bytes]
) -> list[tuple[bytes, bytes]]:
    return [(key, change(value) if key.lower() == SESSION_HEADER else value) for key, value in headers]
