"""Claims say which of several brokers has what may be at one of them alone: an advisory lock in PostgreSQL keeps it,
and a row tells the others whose it is.

A lock ends with its session, also while its broker lives. So who has something ends it when PostgreSQL has not said for
`UNSURE_SECONDS` that the lock is held, and who gets the lock of another's waits `TAKE_OVER_SECONDS`, unless that one
has written that it has ended it. Nobody's clock is compared with another's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cellblock.base.postgresql import lock_number, named_errors
from cellblock.base.presence import Presence

if TYPE_CHECKING:
    from cellblock.base.postgresql import Connection

UNSURE_SECONDS: Final = 4.0
"""Passes without PostgreSQL's word until a broker ends what it has: four looks, so that a slow answer costs nothing."""

END_SECONDS: Final = 8.0
"""Bounds the end of what a broker has, from when it is no longer sure: its closing has this bound."""

TAKE_OVER_SECONDS: Final = 15.0
"""Passes between a broker's getting the lock of what another had, and its beginning: that one was sure at most
until then, and has `UNSURE_SECONDS` and `END_SECONDS` to end it; three seconds are for a loop that is late."""

KIND: Final = "claims"

MIGRATIONS: Final = (
    """
    CREATE TABLE claims (
        name TEXT PRIMARY KEY,
        broker TEXT NOT NULL,
        url TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        ended BOOLEAN NOT NULL
    )
    """,
)

_ALL: Final = b"SELECT name, broker, url, epoch, ended FROM claims"
_TRY: Final = b"SELECT pg_try_advisory_lock(%s)"
_UNLOCK: Final = b"SELECT pg_advisory_unlock(%s)"
_TAKE: Final = b"""
INSERT INTO claims (name, broker, url, epoch, ended) VALUES (%s, %s, %s, %s, false)
ON CONFLICT (name) DO UPDATE SET broker = excluded.broker, url = excluded.url, epoch = excluded.epoch, ended = false
"""
_ENDED: Final = b"UPDATE claims SET ended = true WHERE name = %s AND broker = %s AND epoch = %s"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim is one broker's to one thing.

    Attributes:
        broker: Whose it is.
        url: Where the other brokers reach that one.
        epoch: Counts whose it was: who has an older one has nothing.
        ended: Whether that broker has ended it.
    """

    broker: str
    url: str
    epoch: int
    ended: bool


class Claims:
    """Holds the claims of one broker, and knows those of others. What it does is done in the thread of its presence.

    Args:
        presence: Holds the session whose locks are meant.
        names: What may be claimed.
    """

    def __init__(self, presence: Presence, names: Sequence[str]) -> None:
        self.broker: Final = presence.name
        self.names: Final = tuple(names)
        self._presence = presence
        self._turn = threading.Lock()
        self._url: str | None = None
        self._wanted: set[str] = set()
        self._known: dict[str, Claim] = {}
        self._held: dict[str, int] = {}
        self._over: dict[str, int] = {}
        self._sure: dict[str, float] = {}
        self._session = 0
        self._locked: dict[str, float] = {}
        presence.does_beside(self._look)

    def want(self, name: str) -> None:
        """Says that this broker can have something: what it lacks the means for is another one's."""
        with self._turn:
            is_new = name not in self._wanted
            self._wanted.add(name)
        if is_new:
            self._presence.wake()

    def take(self, url: str) -> None:
        """Begins to claim what is wanted and nobody has; others reach this broker at the URL."""
        with self._turn:
            self._url = url
        self._presence.wake()

    def let_go(self) -> None:
        """Stops claiming things; what this broker holds is given up when it has `ended`."""
        with self._turn:
            self._url = None
        self._presence.wake()

    @property
    def takes(self) -> bool:
        """Says whether this broker claims servers that no broker has."""
        return self._url is not None

    @property
    def trouble(self) -> str | None:
        """Says why claims cannot be looked at now; None: they can."""
        unusable = self._presence.unusable
        return self._presence.trouble if unusable is None else str(unusable)

    def claim(self, name: str) -> Claim | None:
        """Returns the claim to a thing, as it was known last; None where no broker had one yet."""
        return self._known.get(name)

    def epoch(self, name: str) -> int | None:
        """Returns the epoch in which this broker has something; None where it has not, or is not sure."""
        with self._turn:
            held = self._held.get(name)
            is_sure = time.monotonic() - self._sure.get(name, -UNSURE_SECONDS) < UNSURE_SECONDS
            return held if is_sure and self._over.get(name) != held else None

    def ended(self, name: str, epoch: int) -> None:
        """Takes note that this broker has ended what it had in an epoch: others may begin."""
        with self._turn:
            if self._held.get(name) == epoch:
                self._over[name] = epoch
        self._presence.wake()

    @property
    def has_any(self) -> bool:
        """Says whether this broker holds a claim that it has not ended."""
        with self._turn:
            return self._held != self._over

    @property
    def held(self) -> bool:
        """Says whether this broker holds a claim, or has not yet been able to tell the others that it has ended
        one."""
        return bool(self._held)

    # ---- inside: the thread --------------------------------------------------------------------------

    def _look(self, connection: Connection, session: int) -> None:
        began = time.monotonic()
        if session != self._session:
            self._session, self._locked = session, {}
        with named_errors(connection):
            known = {
                name: Claim(broker, url, epoch, ended)
                for name, broker, url, epoch, ended in connection.execute(_ALL).fetchall()
            }
            for name in self.names:
                self._tend(connection, name, known, began)
        self._known = known

    def _tend(self, connection: Connection, name: str, known: dict[str, Claim], began: float) -> None:
        found = known.get(name)
        with self._turn:
            url = self._url if name in self._wanted else None
            held, over = self._held.get(name), self._over.get(name)
        is_own = found is not None and found.broker == self.broker and found.epoch == held
        if held is not None and over == held:
            if is_own and found is not None:
                connection.execute(_ENDED, (name, self.broker, held))
                known[name] = found = Claim(self.broker, found.url, held, ended=True)
            with self._turn:
                del self._held[name], self._over[name]
            held = None
        if held is None and url is None:
            if self._locked.pop(name, None) is not None:
                connection.execute(_UNLOCK, (lock_number(f"claim {name}"),))
            return
        if name not in self._locked:
            ((is_locked,),) = connection.execute(_TRY, (lock_number(f"claim {name}"),)).fetchall()
            if not is_locked:
                return
            self._locked[name] = time.monotonic()
        if held is not None:
            # Another one may have had it between two sessions of this broker: then it is not sure any more.
            if is_own:
                with self._turn:
                    self._sure[name] = began
            return
        waited = time.monotonic() - self._locked[name]
        is_free = found is None or found.ended or found.broker == self.broker
        if url is not None and (is_free or waited >= TAKE_OVER_SECONDS):
            epoch = 1 if found is None else found.epoch + 1
            connection.execute(_TAKE, (name, self.broker, url, epoch))
            known[name] = Claim(self.broker, url, epoch, ended=False)
            with self._turn:
                self._held[name], self._sure[name] = epoch, began
