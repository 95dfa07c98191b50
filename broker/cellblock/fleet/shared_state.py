"""Shared_state is what a broker has of the PostgreSQL that it shares with others: connections, keys, its sign of life,
and small things in rows, sealed: pins, tokens, logins.

Each broker holds those rows all in memory as they last were, so whoever asks waits for nobody, also while PostgreSQL is
away. A thread looks whether somebody has written, when that is announced and now and then. Writes block, and are for
threads beside the loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cellblock.base.database import Away, StoreError, Tables
from cellblock.base.state_keys import StateKeys, WrongSeal
from cellblock.base.store import NotShared, Shelf, Stamp, Store
from cellblock.fleet.postgresql import PostgresDatabase, PostgresServer, lock_number, named_errors
from cellblock.fleet.presence import KEY_KIND, KEY_MIGRATIONS, Presence, prepare
from cellblock_worker.base.private_files import TooLarge

KIND: Final = "shared"

MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE shared (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (kind, name)
    );
    ALTER TABLE shared ALTER body SET STORAGE EXTERNAL;
    """,
)

POLL_SECONDS: Final = 5.0
"""Passes between two looks where nothing is announced: earlier releases write without a word."""

FIRST_SECONDS: Final = 3.0
"""Bounds the wait for what there is, at a broker's start; it takes milliseconds."""

Row = tuple[str, str]
"""Names a row: its kind and its name."""


class SharedRows:
    """Holds the rows of one broker. Owns a thread between `start` and `close`.

    Args:
        server: Where they are.
        keys: Seal them.
        hold: Returns when they may be used; blocks. Raises StoreError.
    """

    def __init__(
        self, server: PostgresServer, keys: StateKeys, hold: Callable[[], object] = lambda: None
    ) -> None:
        self.server: Final = server
        self.keys: Final = keys
        self._hold = hold
        self._rows: dict[Row, tuple[int, bytes]] = {}
        self._seen = 0
        self._turn = threading.Lock()
        self._known = threading.Event()
        self._closing = threading.Event()
        self._announced = threading.Event()

    def start(self) -> None:
        """Starts the thread that follows what other brokers write."""
        self._closing.clear()
        threading.Thread(target=self._follow, name="cellblock-shared", daemon=True).start()

    def close(self) -> None:
        """Stops following what other brokers write."""
        self._closing.set()
        self.look()

    def look(self) -> None:
        """Has the thread look at once."""
        self._announced.set()

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    @property
    def is_known(self) -> bool:
        return self._known.is_set()

    def wait(self) -> None:
        """Waits until the rows were read once; blocks. Raises Away: They are not soon."""
        if not self._known.wait(FIRST_SECONDS):
            raise Away("what brokers share has not been read yet: PostgreSQL has not answered")

    # ---- what is known -----------------------------------------------------------------------------------

    def names(self, kind: str) -> list[str]:
        return sorted(name for of, name in self._rows.copy() if of == kind)

    def held(self, kind: str, name: str) -> tuple[int, bytes] | None:
        """Returns the version of a row, another number after each write, and its sealed bytes; None without one."""
        return self._rows.get((kind, name))

    # ---- what blocks -------------------------------------------------------------------------------------

    def put(
        self, kind: str, name: str, body: bytes, *, replace: bool = True, only: int | None = None
    ) -> bool:
        """Writes a row.

        Args:
            kind: Its kind.
            name: Its name.
            body: What it is to hold.
            replace: Whether it may take the place of another one.
            only: The version that it may replace; None: any.

        Returns:
            False where nothing is written: there is one, and `replace` is false, or it is another version.

        Raises:
            StoreError: Nothing was written.
        """
        sealed = self.keys.sealed((kind, name), body)
        with self._writing() as (database, version):
            found = database.rows("SELECT version FROM shared WHERE kind = ? AND name = ?", kind, name)
            is_fit = replace and only in (None, found[0][0]) if found else only is None
            if is_fit:
                database.execute(
                    "INSERT INTO shared VALUES (?, ?, ?, ?) ON CONFLICT (kind, name) "
                    "DO UPDATE SET version = excluded.version, body = excluded.body",
                    *(kind, name, version, sealed),
                )
        if is_fit:
            self._wrote((kind, name), (version, sealed))
        else:
            self.read()
        return is_fit

    def remove(self, kind: str, name: str) -> bool:
        """Removes a row, and says whether there was one. Raises StoreError: Nothing was removed."""
        with self._writing() as (database, _):
            found = database.execute("DELETE FROM shared WHERE kind = ? AND name = ?", kind, name)
        self._wrote((kind, name), None)
        return found > 0

    def read(self) -> None:
        """Reads the rows that other brokers have written. Raises StoreError."""
        with self._turn:
            database = self._database()
            changes = database.changes()
            if self.is_known and changes == self._seen:
                return
            held = self._rows
            listed = {
                (kind, name): version
                for kind, name, version in database.rows("SELECT kind, name, version FROM shared")
            }
            rows = {row: held[row] for row, version in listed.items() if held.get(row, (0,))[0] == version}
            for row in listed.keys() - rows.keys():
                # It may have gone since: then the count is another one at the next look.
                for version, body in database.rows(
                    "SELECT version, body FROM shared WHERE kind = ? AND name = ?", *row
                ):
                    rows[row] = version, bytes(body)
            self._rows, self._seen = rows, changes
            self._known.set()

    # ---- inside ------------------------------------------------------------------------------------------

    def _database(self) -> PostgresDatabase:
        self._hold()
        # One for each use: it belongs to one thread.
        return PostgresDatabase(self.server, KIND, MIGRATIONS, counted=True)

    @contextlib.contextmanager
    def _writing(self) -> Generator[tuple[PostgresDatabase, int]]:
        database = self._database()
        # One writer at a time: versions are in the order of their commits.
        with database.transaction(KIND):
            yield database, database.changes() + 1

    def _wrote(self, row: Row, held: tuple[int, bytes] | None) -> None:
        """Takes over what was written or, with None, removed; and what others wrote, now or with the next look."""
        with self._turn:
            kept = {one: value for one, value in self._rows.items() if one != row}
            self._rows = kept if held is None else {**kept, row: held}
            self._seen = -1
        with contextlib.suppress(StoreError):
            self.read()

    def _follow(self) -> None:
        is_anew = False
        while not self._closing.is_set():
            self._announced.clear()
            # Who keeps watch over PostgreSQL has told it.
            with contextlib.suppress(StoreError):
                self.read()
                if not is_anew:
                    self._seal_anew()
                    is_anew = True
            self._announced.wait(POLL_SECONDS)

    def _seal_anew(self) -> None:
        """Seals those rows anew that were sealed with the other key. Each broker does so once: two that change their
        key, one after the other, would go on undoing it. Raises StoreError."""
        for (kind, name), (version, sealed) in self._rows.copy().items():
            if not self.keys.is_newest(sealed):
                with contextlib.suppress(WrongSeal):
                    self.put(kind, name, self.keys.opened((kind, name), sealed), only=version)


class SharedShelf(Shelf):
    """Holds things in the rows that brokers share.

    Args:
        rows: The rows.
        kind: Of which kind they are.
        max_bytes: The most that one may hold.
        stem: Makes a row's name of a thing's; None: it is one.
    """

    is_shared = True

    def __init__(
        self, rows: SharedRows, kind: str, max_bytes: int, *, stem: Callable[[str], str] | None = None
    ) -> None:
        self._rows, self._kind, self._max_bytes = rows, kind, max_bytes
        self._stem = stem or str

    @property
    def is_closed(self) -> bool:
        """Says whether the broker has ended."""
        return self._rows.is_closed

    def refresh(self) -> None:
        """Looks at the rows. See `Shelf`."""
        with _worded():
            self._rows.read()

    def wait(self) -> None:
        """Waits for the first look; where there was none, whoever reads is told so."""
        with contextlib.suppress(StoreError):
            self._rows.wait()

    @property
    def place(self) -> str:
        """Names PostgreSQL, for people."""
        return "What brokers share in PostgreSQL"

    def where(self, name: str) -> str:
        """Names the row of a thing, for people."""
        return f"{self._stem(name)} among the {self._kind} in PostgreSQL"

    def names(self) -> list[str]:
        """Returns the names of the shelf's things, as the rows are known here. See `Shelf`."""
        self._know()
        return self._rows.names(self._kind)

    def stamp(self, name: str) -> int | None:
        """Returns the version of a thing's row, as it is known here. See `Shelf`."""
        found = self._rows.held(self._kind, self._stem(name))
        return None if found is None else found[0]

    def read(self, name: str) -> bytes:
        """Opens the sealed row of a thing, as it is known here. See `Shelf`."""
        self._know()
        row = self._kind, self._stem(name)
        if (found := self._rows.held(*row)) is None:
            raise FileNotFoundError
        with _worded():
            return self._rows.keys.opened(row, found[1])

    def write(self, name: str, data: bytes, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes the row; blocks. See `Shelf`."""
        assert not isinstance(only, tuple)
        if len(data) > self._max_bytes:
            raise TooLarge(Path(self.where(name)), self._max_bytes)
        with _worded():
            return self._rows.put(self._kind, self._stem(name), data, replace=replace, only=only)

    def remove(self, name: str) -> None:
        """Removes the row; blocks. See `Shelf`."""
        with _worded():
            if not self._rows.remove(self._kind, self._stem(name)):
                raise FileNotFoundError

    def _know(self) -> None:
        if not self._rows.is_known:
            raise NotShared("PostgreSQL was not reached yet", is_away=True)


@contextlib.contextmanager
def _worded() -> Generator[None]:
    try:
        yield
    except StoreError as error:
        raise NotShared(error, is_away=isinstance(error, Away)) from None


TABLES: Final[Mapping[str, Sequence[str]]] = {
    KEY_KIND: KEY_MIGRATIONS,
    KIND: MIGRATIONS,
}
"""Holds the migrations of the shared tables, by kind."""


class SharedState(Store):
    """Holds what one process has of a PostgreSQL; it connects when it is used first.

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
        self.keys = tuple(keys)
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

    @contextlib.contextmanager
    def lock(self, name: str, bound: float) -> Generator[None]:
        """Holds the lock of a name in a session of its own. See `Store`."""
        self.hold()
        with contextlib.closing(self.server.connect()) as connection:
            connection.silence += bound
            with named_errors(connection):
                connection.execute(
                    f"SET statement_timeout = 0; SET lock_timeout = {int(bound * 1000)}".encode()
                )
                connection.execute(b"SELECT pg_advisory_lock(%s)", (lock_number(name),))
            yield

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
        self.presence.on_change(KIND, self.rows.look)
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
