"""Knows whose MCP sessions are open. The SDK keeps them, and counts them together only: this follows what it does, so
that one principal cannot take all places, and nobody is known by a session of somebody else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cellblock.config.policy import NAMED
from cellblock.frontend.http.refusal import Refused

MAX_REMEMBERED: Final = 4
"""Times the maximum of sessions: a bound on this memory, should it ever miss an end."""


@dataclass(frozen=True, slots=True)
class Program:
    """Names who has opened a session: a principal, with one of its programs."""

    principal: str
    name: str


@dataclass(slots=True)
class _Session:
    opener: Program
    name: str
    in_flight: int
    quiet_since: float


class Sessions:
    """Holds the sessions that are open, and the places of those that are about to be.

    Args:
        share: How many a principal may have.
        total: How many there may be (the SDK's to keep).
        idle_seconds: After so long without a request the SDK forgets a session.
    """

    def __init__(self, share: int, total: int, idle_seconds: float) -> None:
        self.share = share
        self._most = total * MAX_REMEMBERED
        self._idle = idle_seconds
        self._open: dict[object, _Session] = {}

    def reserve(self, opener: Program, now: float) -> object | None:
        """Keeps a place for a session that a request wants to open; None: the principal has its share. `forget` must
        follow for the place, also behind `opened`."""
        for key, one in list(self._open.items()):
            if not one.in_flight and now - one.quiet_since > self._idle:
                del self._open[key]
        if sum(one.opener.principal == opener.principal for one in self._open.values()) >= self.share:
            return None
        place = object()
        self._open[place] = _Session(opener, "", 1, now)
        return place

    def opened(self, place: object, key: bytes, opener: Program, now: float) -> None:
        """Notes a session that the SDK has opened, in a place that was reserved."""
        self.forget(place)
        # The id lets its holder into the session: logs and the dashboard get another name for it.
        whose = f"{opener.principal} " if opener.principal.startswith(NAMED) else ""
        name = f"http {whose}session {hashlib.sha256(key).hexdigest()[:16]}"
        self._open[key] = _Session(opener, name, 0, now)
        if len(self._open) > self._most:
            del self._open[next(iter(self._open))]

    def begin(self, key: bytes, opener: Program) -> str | None:
        """Notes that a request of a session comes in; `end` must follow.

        Returns:
            The name by which the client is known; None: no such session was opened here.

        Raises:
            Refused: The session is somebody else's.
        """
        session = self._open.get(key)
        if session is None:
            return None
        if session.opener != opener:
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
