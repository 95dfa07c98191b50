"""Shared_state is what a broker has of the PostgreSQL that it shares with others: connections, keys, rows, and its sign
of life."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from cellblock.base import key_check, shared_rows
from cellblock.base.postgresql import PostgresServer, named_errors
from cellblock.base.presence import Presence
from cellblock.base.shared_rows import SharedRows
from cellblock.base.state_keys import StateKeys

TABLES: Final[Mapping[str, Sequence[str]]] = {
    key_check.KIND: key_check.MIGRATIONS,
    shared_rows.KIND: shared_rows.MIGRATIONS,
}
"""Holds the migrations of the shared tables, by kind."""


class SharedState:
    """Holds what one process has of a PostgreSQL; it connects when it is used first.

    Args:
        url: As `state.url`.
        keys: As for `StateKeys`.

    Attributes:
        presence: Says to others that this broker lives; None in a process that is no broker.
        serves: Whether the broker is about to serve clients' sessions under its name.

    Raises:
        ConfigError: As `PostgresServer`.
    """

    def __init__(self, url: str, keys: Sequence[bytes]) -> None:
        self.server: Final = PostgresServer(url)
        self.keys: Final = StateKeys(keys)
        self.rows: Final = SharedRows(self.server, self.keys, self.hold)
        self.presence: Presence | None = None
        self.serves = False
        self._checked = False
        self._turn = threading.Lock()

    def start(self, tables: Mapping[str, Sequence[str]], broker: str = "broker") -> Presence:
        """Becomes a broker's, until `close`: it connects, and follows what others write.

        Args:
            tables: The migrations of what else the broker keeps there, by kind.
            broker: Its name, as `state.broker`.
        """
        self.server.open()
        self.presence = Presence(self.server, {**TABLES, **tables}, self.keys.ids, broker, serves=self.serves)
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
            for kind, migrations in TABLES.items():
                self.server.migrate(kind, migrations)
            with self.server.connection() as connection, named_errors(connection):
                key_check.claim(connection, self.keys.ids[:1])
                key_check.check(connection, self.keys.ids)
            self._checked = True
