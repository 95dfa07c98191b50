"""Shared_state is what a broker has of the PostgreSQL that it shares with others: connections, keys, rows, and its sign
of life."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cellblock.base.state_keys import StateKeys
from cellblock.base.store import Tables
from cellblock.fleet import shared_rows
from cellblock.fleet.postgresql import PostgresDatabase, PostgresServer, named_errors
from cellblock.fleet.presence import KEY_KIND, KEY_MIGRATIONS, Presence, prepare
from cellblock.fleet.shared_rows import SharedRows, SharedShelf

TABLES: Final[Mapping[str, Sequence[str]]] = {
    KEY_KIND: KEY_MIGRATIONS,
    shared_rows.KIND: shared_rows.MIGRATIONS,
}
"""Holds the migrations of the shared tables, by kind."""


class SharedState:
    """Holds what one process has of a PostgreSQL; it connects when it is used first. A `Store`.

    Args:
        server: The PostgreSQL.
        keys: As for `StateKeys`.

    Attributes:
        presence: Says to others that this broker lives; None in a process that is no broker.
        serves: Whether the broker is about to serve clients' sessions under its name.

    """

    is_shared = True

    def __init__(self, server: PostgresServer, keys: Sequence[bytes]) -> None:
        self.server: Final = server
        self.keys: Final = tuple(keys)
        self._seal = StateKeys(keys)
        self.rows: Final = SharedRows(self.server, self._seal, self.hold)
        self.presence: Presence | None = None
        self.serves = False
        self._checked = False
        self._turn = threading.Lock()

    @property
    def trouble(self) -> str | None:
        """Says why PostgreSQL cannot be asked now. See `Store`."""
        return None if self.presence is None else self.presence.trouble

    def exists(self, tables: Tables) -> bool:
        """Says that tables may be there: other brokers may have made them. See `Store`."""
        return True

    def database(self, tables: Tables, *, checked: bool = True) -> PostgresDatabase:
        """Brings tables to this version, when others can see that this broker lives. See `Store`."""
        self.hold()
        return PostgresDatabase(self.server, tables.kind, tables.postgresql, counted=tables.counted)

    def shelf(
        self,
        kind: str,
        max_bytes: int,
        *,
        folder: str = "",
        secret: bool = True,
        stem: Callable[[str], str] | None = None,
    ) -> SharedShelf:
        """Returns the shelf whose things are the rows of a kind. See `Store`."""
        return SharedShelf(self.rows, kind, max_bytes, stem=stem)

    def lock(self, name: str, bound: float) -> contextlib.AbstractContextManager[None]:
        """Holds the lock of a name in a session of its own. See `Store`."""
        return self.rows.lock(name, bound)

    def sealed(self, place: Sequence[str], body: bytes) -> bytes:
        """Seals bytes for a place. See `Store`."""
        return self._seal.sealed(place, body)

    def opened(self, place: Sequence[str], sealed: bytes) -> bytes:
        """Opens what was sealed for a place. See `Store`."""
        return self._seal.opened(place, sealed)

    def start(self, tables: Sequence[Tables], broker: str = "broker") -> Presence:
        """Becomes a broker's, until `close`: it connects, and follows what others write.

        Args:
            tables: What the broker keeps there.
            broker: Its name, as `state.broker`.
        """
        self.server.open()
        all_tables = {**TABLES, **{one.kind: one.postgresql for one in tables}}
        self.presence = Presence(self.server, all_tables, self._seal.ids, broker, serves=self.serves)
        self.presence.on_change(shared_rows.KIND, self.rows.look)
        self.presence.start()
        self.rows.start()
        return self.presence

    def close(self) -> None:
        """Closes the connections, and stops following what other brokers write."""
        self.rows.close()
        if self.presence is not None:
            self.presence.close()
            self.presence = None
        self.server.close()

    def hold(self) -> None:
        """Returns when the shared PostgreSQL may be used; blocks. Raises StoreError."""
        if self.presence is not None:
            self.presence.hold()
            return
        with self._turn:
            if self._checked:
                return
            with self.server.connection() as connection, named_errors(connection):
                prepare(self.server, connection, TABLES, self._seal.ids, claims=self._seal.ids[:1])
            self._checked = True
