"""Knows whose MCP sessions are open. The SDK keeps them, and counts them together only: this follows what it does, so
that one principal cannot take all places, and nobody is known by a session of somebody else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

MAX_REMEMBERED: Final = 4
"""Times the maximum of sessions: a bound on this memory, should it ever miss an end."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Names who has opened a session: a principal, with one of its programs."""

    principal: str
    program: str


@dataclass(slots=True)
class _Session:
    owner: Owner
    name: str
    in_flight: int
    quiet_since: float


class NotOwner(Exception):
    """The session is somebody else's."""


class Sessions:
    """The sessions that are open.

    Args:
        share: How many a principal may have.
        total: How many there may be (the SDK's to keep).
        idle_seconds: After so long without a request the SDK forgets a session.
    """

    def __init__(self, share: int, total: int, idle_seconds: float) -> None:
        self._share = share
        self._most = total * MAX_REMEMBERED
        self._idle = idle_seconds
        self._open: dict[bytes, _Session] = {}
        self._opening: dict[str, int] = {}

    def reserve(self, principal: str, now: float) -> bool:
        """Keeps a place for a session that a request wants to open; False: the principal has its share. Either `opened`
        or `release` must follow."""
        for key in [key for key, one in self._open.items() if self._is_over(one, now)]:
            del self._open[key]
        count = sum(one.owner.principal == principal for one in self._open.values())
        opening = self._opening.get(principal, 0)
        if count + opening >= self._share:
            return False
        self._opening[principal] = opening + 1
        return True

    def release(self, principal: str) -> None:
        """Gives back a place that is not needed any more."""
        left = self._opening.pop(principal) - 1
        if left:
            self._opening[principal] = left

    def opened(self, key: bytes, owner: Owner, now: float) -> None:
        """Notes a session that the SDK has opened, in a place that was reserved."""
        self.release(owner.principal)
        # The id lets its holder into the session: logs and the dashboard get another name for it.
        name = f"http session {hashlib.sha256(key).hexdigest()[:16]}"
        self._open[key] = _Session(owner, name, 0, now)
        if len(self._open) > self._most:
            del self._open[next(iter(self._open))]

    def begin(self, key: bytes, owner: Owner) -> str | None:
        """Notes that a request of a session comes in; `end` must follow when there is a name.

        Returns:
            The name by which the client is known; None: no such session was opened here.

        Raises:
            NotOwner: It is not for this one to use.
        """
        session = self._open.get(key)
        if session is None:
            return None
        if session.owner != owner:
            raise NotOwner
        session.in_flight += 1
        return session.name

    def end(self, key: bytes, now: float) -> None:
        """Notes that a request of a session is answered."""
        if (session := self._open.get(key)) is not None:
            session.in_flight -= 1
            session.quiet_since = now

    def forget(self, key: bytes) -> None:
        """Forgets a session that is over."""
        self._open.pop(key, None)

    def _is_over(self, session: _Session, now: float) -> bool:
        return not session.in_flight and now - session.quiet_since > self._idle
