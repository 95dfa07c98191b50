"""Presence says to the brokers of one PostgreSQL that this one lives, and hears what they write, in a session of its
own that holds a lock of its name.

The lock ends with the session, so nobody's clock is trusted. A session may end without its broker, as when PostgreSQL
is restarted; so a broker counts as dead only when nobody has held its lock for a while. Who was taken for dead and is
not can write nothing of a run that another has taken: each write names the owner that it expects.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from cellblock.base.callbacks import tell
from cellblock.base.database import Away, StoreError, Unusable
from cellblock.fleet.postgresql import CHANNEL, Connection, PostgresServer, lock_number, named_errors

KEY_KIND: Final = "state"

KEY_MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE state (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), key TEXT NOT NULL);
    """,
)

OTHER: Final = "state.key is another one than that of the brokers before, and is not accepted by them"


def prepare(
    server: PostgresServer,
    connection: Connection,
    tables: Mapping[str, Sequence[str]],
    ids: Sequence[str],
    *,
    claims: Sequence[str],
) -> None:
    """Makes tables, once, and returns where this broker accepts the key of whoever came last.

    Args:
        server: Where they are.
        connection: To it.
        tables: Their migrations, by kind.
        ids: The keys of this broker; empty: it has none.
        claims: Those with which others may have written, of which this broker writes with the first from now on, where
            nobody has written with another; empty: it has said so already.

    Raises:
        Unusable: It does not, and so can read nothing of the others', nor they of it.
        StoreError: That is not known.
    """
    for kind, migrations in tables.items():
        server.migrate(kind, migrations)
    connection.execute(b"SELECT 1")
    if claims:
        own = claims[0]
        connection.execute(b"INSERT INTO cellblock.state (key) VALUES (%s) ON CONFLICT DO NOTHING", (own,))
        connection.execute(b"UPDATE cellblock.state SET key = %s WHERE key = ANY(%s)", (own, list(claims)))
    row = connection.execute(b"SELECT key FROM cellblock.state").fetchone() if ids else None
    if row is not None and row[0] not in ids:
        raise Unusable(OTHER)


logger = logging.getLogger("cellblock.state")

BEAT_SECONDS: Final = 1.0
"""Separates two looks at whether PostgreSQL is there."""

SILENT_SECONDS: Final = 5.0
"""Passes without an answer until PostgreSQL counts as away."""

GRACE_SECONDS: Final = 10.0
"""Passes, in one session of who looks, with nobody holding a broker's lock, until it counts as dead: after a restart of
PostgreSQL the brokers that live need a second or two to be back."""


class Presence:
    """Holds the lock of a name, and knows whether PostgreSQL is there. Owns a thread and a connection.

    Args:
        server: PostgreSQL.
        tables: The migrations of what this broker keeps there, by kind; they are made when it is reached.
        keys: The ids of its keys, of which others must accept the first; empty: it has none.
        broker: Begins the name.
        serves: Whether sessions of clients begin with it: of several brokers one has it then.

    Attributes:
        name: What the runs of this broker are written down under.
        server: PostgreSQL.
        unusable: Why nothing that is there may be used; None: it may, as far as is known.
        rival: Why the name under which this broker serves is not its own; None: it is, or it serves under none.
    """

    def __init__(
        self,
        server: PostgresServer,
        tables: Mapping[str, Sequence[str]] | None = None,
        keys: Sequence[str] = (),
        broker: str = "broker",
        *,
        serves: bool = False,
    ) -> None:
        self.name: Final = f"{broker}.{secrets.token_hex(8)}"
        self.server: Final = server
        self.unusable: Unusable | None = None
        self._tables, self._keys = tables or {}, keys
        self._has_claimed = False
        self._closing = threading.Event()
        self._is_held = threading.Event()
        self._trouble: str | None = None
        self._answered = time.monotonic()
        self._session = 0
        self._free: dict[str, tuple[int, float]] = {}
        self.rival = f"it is not known yet whether another broker has the name {broker}" if serves else None
        self._broker, self._serves = broker, serves
        self._listeners: list[tuple[str, Callable[[], object]]] = []
        self._thread = threading.Thread(target=self._serve, name="cellblock-presence", daemon=True)

    def start(self) -> None:
        """Starts the thread that connects to PostgreSQL."""
        self._thread.start()

    def on_change(self, kind: str, listener: Callable[[], object]) -> None:
        """Has `listener` called in the thread whenever something of a kind was written (`Database.announce`), and
        may have been while nobody listened."""
        self._listeners.append((kind, listener))

    @property
    def trouble(self) -> str | None:
        """Says why PostgreSQL cannot be asked now; None: it can."""
        if self._trouble is not None:
            return self._trouble
        silent = time.monotonic() - self._answered
        return f"PostgreSQL has not answered for {silent:.0f} s" if silent > SILENT_SECONDS else None

    @property
    def may_serve(self) -> bool:
        """Says whether a balancer may send anything here: PostgreSQL was reached once, what is there may be used, and
        nobody else has the name."""
        return self._session > 0 and self.unusable is None and self.rival is None

    def hold(self) -> None:
        """Waits until the lock is held for the first time.

        Raises:
            Away: It is not soon.
            Unusable: What is there may not be used.
        """
        if not self._is_held.wait(SILENT_SECONDS):
            raise Away(self.trouble or "PostgreSQL has not answered")
        if self.unusable is not None:
            raise self.unusable.with_traceback(None)

    def is_own(self, name: str) -> bool:
        """Says whether a name is this broker's."""
        return name == self.name

    def lives(self, name: str) -> bool:
        """Says whether the broker of a name runs, as far as can be seen; blocks. Raises StoreError."""
        if self.is_own(name):
            return True
        number = lock_number(name) & 0xFFFF_FFFF_FFFF_FFFF
        with self.server.connection() as connection, named_errors(connection):
            held = connection.execute(
                b"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
                b"AND CAST(classid AS BIGINT) = %s AND CAST(objid AS BIGINT) = %s "
                b"AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                (number >> 32, number & 0xFFFF_FFFF),
            ).fetchone()
        if held:
            self._free.pop(name, None)
            return True
        session, since = self._free.get(name, (0, 0.0))
        now = time.monotonic()
        if session != self._session:
            self._free[name], since = (self._session, now), now
        return now - since < GRACE_SECONDS

    def close(self) -> None:
        """Gives the lock up: runs that go on are anybody's then."""
        self._closing.set()

    # ---- inside: the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._hold()
            except StoreError as error:
                if self._trouble is None:
                    logger.error(
                        "PostgreSQL is away, what is to be written waits, and what needs it is refused: %s",
                        error,
                    )
                self._trouble = str(error)
            self._closing.wait(BEAT_SECONDS)

    def _hold(self) -> None:
        with contextlib.closing(self.server.connect()) as connection, named_errors(connection):
            # The session before may count as living still: then its lock does, and this one waits behind it.
            connection.execute(b"SET lock_timeout = 0; SET statement_timeout = 0")
            connection.execute(b"SELECT pg_advisory_lock(%s)", (lock_number(self.name),))
            connection.execute(b"LISTEN " + CHANNEL.encode())
            self._check(connection)
            self._session += 1
            self._came()
            self._tell({kind for kind, _ in self._listeners})
            is_named = not self._serves
            while not self._closing.is_set():
                is_named = is_named or self._take_name(connection)
                for notice in connection.notifies(timeout=BEAT_SECONDS):
                    self._tell({notice.payload})
                self._check(connection)
                self._answered = time.monotonic()

    def _tell(self, kinds: Set[str]) -> None:
        for kind, listener in self._listeners:
            if kind in kinds and not self._closing.is_set():
                tell(listener)

    def _take_name(self, connection: Connection) -> bool:
        """Says whether the broker's name is its own now, and tells it where it is another's."""
        number = lock_number(f"serves as {self._broker}")
        ((is_own,),) = connection.execute(b"SELECT pg_try_advisory_lock(%s)", (number,)).fetchall()
        rival = f"another broker has the name {self._broker}: give each its own in state.broker"
        if is_own and self.rival == rival:
            logger.error("the name %s is this broker's now", self._broker)
        elif not is_own and self.rival != rival:
            logger.error("%s; until then this one is not ready", rival)
        self.rival = None if is_own else rival
        return is_own

    def _check(self, connection: Connection) -> None:
        """Makes the tables, and finds out whether they may be used, with the keys of this broker. Raises StoreError:
        That is not known."""
        found = None
        try:
            claims = () if self._has_claimed else self._keys
            prepare(self.server, connection, self._tables, self._keys, claims=claims)
            self._has_claimed = True
        except Unusable as error:
            found = error
        if found is not None and self.unusable is None:
            logger.error("what is in PostgreSQL is not used, and this broker is not ready: %s", found)
        elif found is None and self.unusable is not None:
            logger.error("what is in PostgreSQL is used again")
        self.unusable = found

    def _came(self) -> None:
        self._answered = time.monotonic()
        if self._trouble is not None:
            # At the level of what it ends: who reads the one must find the other.
            logger.error("PostgreSQL is there again")
        self._trouble = None
        self._is_held.set()
