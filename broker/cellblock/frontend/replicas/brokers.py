"""Brokers know each other by a table in PostgreSQL, and by nothing else: each writes every few seconds that it lives.

Where one is to be reached is signed: it is sent the tokens of clients. Who has not written for a while is gone, by the
clock of whoever looks, and its row is removed by whoever sees that first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.database import Away, StoreError
from cellblock.base.postgresql import PostgresServer, named_errors
from cellblock.base.tasks import end_tasks
from cellblock.base.threads import DaemonThread, is_done_within
from cellblock.frontend.replicas.words import Words

if TYPE_CHECKING:
    from cellblock.base.postgresql import Connection

logger = logging.getLogger("cellblock.frontend")

BEAT_SECONDS: Final = 2.0
"""Passes between two signs of life."""

GONE_SECONDS: Final = 10.0
"""Sets after how long without a sign of life a broker is gone: five were missed then. One that has died on a machine
that lives is found out at once, by its refused connections."""

ASK_SECONDS: Final = 5.0
"""Bounds one look at the table, with the connection to the database; both take milliseconds."""

KIND: Final = "brokers"

MIGRATIONS: Final = (
    """
    CREATE TABLE brokers (
        name TEXT PRIMARY KEY,
        url TEXT NOT NULL,
        draining BOOLEAN NOT NULL,
        seen TIMESTAMPTZ NOT NULL DEFAULT now()
    )
    """,
)

Statement = tuple[bytes, tuple[Any, ...]]

_BEAT: Final = b"""
INSERT INTO brokers (name, url, draining) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET url = excluded.url, draining = excluded.draining, seen = now()
"""
_REMOVE: Final = b"DELETE FROM brokers WHERE name = %s AND CAST(seen AS TEXT) = %s"
_ALL: Final = b"SELECT name, url, draining, CAST(seen AS TEXT) FROM brokers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer is another broker: its name, the URL at which brokers reach it, and whether it takes nothing new."""

    name: str
    url: str
    draining: bool


class Brokers:
    """Says of one broker that it lives, and knows the others. Owns a thread, and in it a connection.

    Args:
        server: PostgreSQL; whoever makes this closes it.
        name: Of this broker.
        url: Where others reach it, without a path.
        words: Signs where brokers are reached.
        hold: Returns when this broker may use the table; blocks. Raises StoreError.

    Attributes:
        has_looked: Whether it has seen once who there is.
    """

    def __init__(
        self,
        server: PostgresServer,
        name: str,
        url: str,
        words: Words,
        hold: Callable[[], object] = lambda: None,
    ) -> None:
        self.name, self._words = name, words
        self._written = words.address(name, url.rstrip("/"))
        self._server, self._hold = server, hold
        self._thread = DaemonThread("cellblock-brokers")
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._asked: Future[list[Any]] | None = None
        self._peers: dict[str, Peer] = {}
        self._signs: dict[str, tuple[str, float]] = {}
        self._draining = False
        self._beating: asyncio.Task[None] | None = None
        self._last = self._unbroken_since = 0.0
        self._failing = False
        self.has_looked = False

    async def join(self) -> None:
        """Enters this broker, and goes on saying that it lives; bounded. Without the database it is entered later."""
        await self._try()
        self._beating = asyncio.create_task(self._beats(), name="heartbeats")

    async def drain(self) -> None:
        """Tells the other brokers that this one takes nothing new; bounded. Without the database they see it later."""
        self._draining = True
        await self._try()

    async def leave(self) -> None:
        """Takes this broker out, within twice `ASK_SECONDS`."""
        await end_tasks(self._beating)
        if self._asked is not None:
            # A sign of life that is on its way keeps anything else from being asked.
            await is_done_within(self._asked, ASK_SECONDS)
        with contextlib.suppress(StoreError):
            await self._ask((b"DELETE FROM brokers WHERE name = %s", (self.name,)))
        await self._thread.close(self._hang_up, ASK_SECONDS)

    async def peer(self, name: str) -> Peer | None:
        """Returns another broker that lives; one that is not known yet is looked for. While the database is away, what
        was known last is true.

        Raises:
            StoreError: It is not known, and it cannot be looked for.
        """
        if name not in self._peers and name != self.name:
            await self._look()
        return self._peers.get(name)

    def another(self) -> Peer | None:
        """Returns any other broker that takes new requests."""
        able = [peer for peer in self._peers.values() if not peer.draining]
        return random.choice(able) if able else None

    # ---- inside --------------------------------------------------------------------------------------

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._try()

    async def _try(self) -> None:
        try:
            await self._beat()
            self._failing = False
        except StoreError as error:
            if not self._failing:
                logger.warning("other brokers may take this one for gone: %s", error)
            self._failing = True

    async def _beat(self) -> None:
        now = time.monotonic()
        if now - self._last > GONE_SECONDS / 2:
            # It has not written for a while itself, and so perhaps nobody could.
            self._unbroken_since = now
        statements: list[Statement] = [(_BEAT, (self.name, self._written, self._draining))]
        if self._judges:
            gone = [(name, seen) for name, (seen, _) in self._signs.items() if self._is_late(name)]
            statements += [(_REMOVE, one) for one in gone]
        await self._look(*statements)
        self._last = now

    @property
    def _judges(self) -> bool:
        """Says whether this broker has seen the database for long enough to take who is silent for gone."""
        return time.monotonic() - self._unbroken_since > GONE_SECONDS

    def _is_late(self, name: str) -> bool:
        """Says whether a broker has given no new sign of life for too long."""
        return time.monotonic() - self._signs[name][1] > GONE_SECONDS

    async def _look(self, *before: Statement) -> None:
        judges = self._judges
        rows = await self._ask(*before, (_ALL, ()))
        self.has_looked = True
        # Since when each sign is known: the database's clock may be put on or back.
        known, now = self._signs, time.monotonic()
        self._signs = {
            name: known[name] if name in known and known[name][0] == seen else (seen, now)
            for name, _, _, seen in rows
        }
        self._peers = {
            name: Peer(name, url, draining)
            for name, written, draining, _ in rows
            if name != self.name and not (judges and self._is_late(name))
            # What is not signed is no broker: who can write to the database has made it.
            if (url := self._words.read_address(name, written)) is not None
        }

    async def _ask(self, *statements: Statement) -> list[Any]:
        """Executes statements, and returns the rows of the last one. Raises StoreError."""
        async with self._turn:
            if self._asked is not None and not self._asked.done():
                raise Away("PostgreSQL has not answered yet")
            try:
                self._asked = asked = self._thread.submit(self._done, statements)
            except RuntimeError:
                raise Away("the broker is stopping") from None
            if not await is_done_within(asked, ASK_SECONDS):
                raise Away(f"PostgreSQL has not answered within {ASK_SECONDS:g} s")
            return asked.result()

    # ---- inside: the thread --------------------------------------------------------------------------

    def _done(self, statements: Sequence[Statement]) -> list[Any]:
        try:
            self._hold()
            if self._connection is None:
                self._server.migrate(KIND, MIGRATIONS)
                self._connection = self._server.connect()
            rows: list[Any] = []
            with named_errors(self._connection):
                for text, values in statements:
                    cursor = self._connection.execute(text, values)
                    rows = cursor.fetchall() if cursor.description else []
            return rows
        except StoreError:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
