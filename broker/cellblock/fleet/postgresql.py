"""A PostgreSQL database is what brokers on several machines share: connections to it, and migrations in place.

The tables are in a schema of their own, `cellblock`. Everything here blocks, so it is for threads beside the loop.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cellblock.base.database import Away, Database, StoreError, Unusable
from cellblock.base.errors import ConfigError

MAX_IDLE: Final = 4
"""Bounds the connections that are held while nobody uses them: each store of a broker has one thread."""

SILENT_SECONDS: Final = 30.0
"""Bounds a silence while an answer is due: more than the server's own bound on a statement."""

CONNECT_SECONDS: Final = 3
"""Bounds the wait for a connection; one takes milliseconds."""

MIGRATION_SECONDS: Final = 3600.0
"""Bounds the silence while tables are made, or another broker makes them: what is in them may be large."""

UNSURE_SECONDS: Final = 5.0
"""Bounds the wait for an answer to whether a transaction was done whose connection was lost meanwhile."""

AGAIN_SECONDS: Final = 0.1
"""Separates two looks at whether a transaction was done whose connection was lost meanwhile."""

DEFAULTS: Final = {
    "application_name": "cellblock",
    "connect_timeout": CONNECT_SECONDS,
    # A machine that is gone is noticed in about ten seconds, and not in hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Holds the parameters of libpq that apply where a URL does not set them."""

SETUP: Final = b"""
SET search_path = cellblock;
SET default_transaction_isolation = 'read committed';
SET statement_timeout = '20s';
SET lock_timeout = '5s';
SET idle_in_transaction_session_timeout = '20s';
SET tcp_keepalives_idle = 5;
SET tcp_keepalives_interval = 2;
SET tcp_keepalives_count = 3;
"""
"""Has a transaction see what others have written while it waited for its lock, whatever the database's default is; and
bounds what the server does for a session, and how long it takes one for living whose machine is gone."""

MIGRATION_LOCK: Final = "migrations"

CHANNEL: Final = "cellblock"
"""Names the channel on which brokers hear of what others have written: the kind of its tables."""


HAS_OLDEST: Final = (
    b"SELECT 1 FROM pg_attribute WHERE attrelid = CAST('migrations' AS regclass) AND attname = 'oldest'"
)
"""Finds out whether the table of migrations has the column for which version a release must know at least: the first
releases did not make it."""


class Additive(str):
    """An additive migration leaves a release that does not know it as able to use the tables as before: it adds a
    table, an index, or a column that may be absent from what is written."""


class Connection(psycopg.Connection[Any]):
    """Is closed when the server says nothing for too long: its machine may live while its processes stand still, or
    its disk does; then TCP has all acknowledged, and no timeout of the server comes.

    Attributes:
        silence: So many seconds are too long; who asks for what takes longer says so before.
    """

    silence: float = SILENT_SECONDS

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Waits for PostgreSQL as psycopg does. Raises psycopg.OperationalError: The server was silent for too
        long."""
        return super().wait(self._heard(gen), *args, **options)

    def _heard(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        since = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                # Nothing is ready a few times a second, too: psycopg looks for signals.
                if ready := (yield wanted):
                    since = time.monotonic()
                elif time.monotonic() - since > self.silence:
                    self.close()
                    raise psycopg.OperationalError(f"it has been silent for {self.silence:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresServer:
    """Owns the connections of one broker.

    Args:
        url: As `state.url`.

    Raises:
        ConfigError: The URL is none.
    """

    def __init__(self, url: str) -> None:
        self._info = _parameters(url)
        self._idle: deque[Connection] = deque()
        self._closed = False
        self._migrated: set[str] = set()

    def connect(self) -> Connection:
        """Opens a connection for the caller alone, who closes it. Raises Away."""
        try:
            connection = Connection.connect(**self._info, autocommit=True)
            try:
                connection.execute(SETUP)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise Away(said(error)) from None
        return connection

    @contextlib.contextmanager
    def connection(self) -> Generator[Connection]:
        """Lends a connection that is used again later. Raises Away: There is none to be had."""
        connection = self._idle_one() or self.connect()
        try:
            yield connection
        finally:
            is_idle = connection.info.transaction_status.name == "IDLE"
            if is_idle and len(self._idle) < MAX_IDLE and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()

    def open(self) -> None:
        """Holds connections again, behind `close`."""
        self._closed = False

    def close(self) -> None:
        """Closes the connections that nobody uses now, and the others when they are given back."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def migrate(self, kind: str, migrations: Sequence[str]) -> None:
        """Brings the tables of one kind to this release's version, once; of several brokers one does it. Those of a
        newer release are used where all that is newer is `Additive`.

        Raises:
            Unusable: They are a newer release's, which this one cannot use.
            StoreError: This user may not make them.
        """
        if kind in self._migrated:
            return
        with self.connection() as connection, named_errors(connection), connection.transaction():
            connection.silence = MIGRATION_SECONDS
            connection.execute(b"SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
            connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (lock_number(MIGRATION_LOCK),))
            connection.execute(b"CREATE SCHEMA IF NOT EXISTS cellblock")
            connection.execute(
                b"CREATE TABLE IF NOT EXISTS migrations (kind TEXT PRIMARY KEY, "
                b"version INTEGER NOT NULL, changes BIGINT NOT NULL DEFAULT 0, oldest INTEGER)"
            )
            if not connection.execute(HAS_OLDEST).fetchone():
                connection.execute(b"ALTER TABLE migrations ADD COLUMN oldest INTEGER")
            statement = b"SELECT version, coalesce(oldest, version) FROM migrations WHERE kind = %s"
            version, oldest = connection.execute(statement, (kind,)).fetchone() or (0, 0)
            if oldest > len(migrations):
                raise Unusable(
                    f"the tables of {kind} were made by a newer Cellblock (version {version} of them)"
                )
            for script in migrations[version:]:
                connection.execute(script.encode())
            if version < len(migrations):
                needed = [number for number, one in enumerate(migrations, 1) if not isinstance(one, Additive)]
                connection.execute(
                    b"INSERT INTO migrations (kind, version, oldest) VALUES (%s, %s, %s) "
                    b"ON CONFLICT (kind) DO UPDATE SET version = excluded.version, oldest = excluded.oldest",
                    (kind, len(migrations), max(needed, default=0)),
                )
        self._migrated.add(kind)

    def _idle_one(self) -> Connection | None:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                connection.silence = CONNECT_SECONDS
                try:
                    connection.execute(b"")
                except psycopg.Error:
                    connection.close()
                else:
                    del connection.silence
                    return connection
        return None


class PostgresDatabase(Database):
    """Holds the rows of one store. It has nothing to close: the connections are the server's.

    Args:
        server: Where they are.
        kind: Names the store's tables.
        migrations: The statements that lead from each version of them to the next; released ones never change.
        counted: Whether transactions are counted, one after the other, so that others see whether there was one.

    Raises:
        StoreError: As `PostgresServer.migrate`.
    """

    after_seconds = "now() + make_interval(secs => ?)"
    now_ms = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"

    @staticmethod
    def epoch(column: str) -> str:
        """Returns SQL for a time in seconds. See `Database`."""
        return f"extract(epoch FROM {column})"

    def __init__(
        self, server: PostgresServer, kind: str, migrations: Sequence[str], *, counted: bool = False
    ) -> None:
        self._server = server
        self._kind = kind
        self._counted = counted
        self._own = 0
        self._current: Connection | None = None
        self._unsure: str | None = None
        self._looks = itertools.count(1)
        server.migrate(kind, migrations)

    @contextlib.contextmanager
    def transaction(self, key: str = "", *, safe: bool = False) -> Generator[None]:
        """Does the block's statements all or not at all; all are safe. See `Database`."""
        self._unsure = None
        with self._server.connection() as connection, named_errors(connection):
            begin = [b"BEGIN", b"SELECT CAST(pg_current_xact_id() AS TEXT)"]
            if key:
                begin.insert(1, f"SELECT pg_advisory_xact_lock({lock_number(key)})".encode())
            cursor = connection.execute(b";".join(begin))
            while cursor.nextset():
                pass
            (xid,) = cursor.fetchone() or ("",)
            self._current = connection
            try:
                yield
                if self._counted:
                    self.execute("UPDATE migrations SET changes = changes + 1 WHERE kind = ?", self._kind)
                    self.announce()
                try:
                    connection.execute(b"COMMIT")
                    self._own += 1
                except psycopg.Error:
                    if connection.closed and self._is_done(xid):
                        return
                    raise
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    connection.execute(b"ROLLBACK")
                raise
            finally:
                self._current = None

    def announce(self) -> None:
        """Has other processes look at once when the transaction is done. See `Database`."""
        self.execute("SELECT pg_notify(?, ?)", CHANNEL, self._kind)

    def execute(self, statement: str, *values: Any) -> int:
        """Does a statement of a transaction, and says how many rows it has changed."""
        assert self._current is not None
        return self._current.execute(_in_dialect(statement), values).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Does a statement of a transaction for each of several rows."""
        assert self._current is not None
        with self._current.cursor() as cursor:
            cursor.executemany(_in_dialect(statement), rows)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows that a statement finds. Raises StoreError."""
        if self._current is not None:
            return self._current.execute(_in_dialect(statement), values).fetchall()
        with self._server.connection() as connection, named_errors(connection):
            return connection.execute(_in_dialect(statement), values).fetchall()

    def changes(self) -> int:
        """Returns the count of others' transactions; where they are not counted, another number each time."""
        if not self._counted:
            return next(self._looks)
        counts = self.rows("SELECT changes FROM migrations WHERE kind = ?", self._kind)
        if not counts:
            raise StoreError(f"the tables of {self._kind} are not those that were made here")
        return counts[0][0] - self._own

    def came_through(self) -> bool:
        """Says whether the last transaction was done although its connection was lost. Raises Away. See `Database`."""
        if self._unsure is None:
            return False
        ((status,),) = self.rows("SELECT pg_xact_status(CAST(? AS xid8))", self._unsure)
        if status == "in progress":
            raise Away("a transaction whose connection was lost is still under way")
        self._unsure = None
        return status == "committed"

    def _is_done(self, xid: str) -> bool:
        """Says whether a transaction was done, as far as that can be found out soon."""
        self._current, self._unsure = None, xid
        until = time.monotonic() + UNSURE_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(Away):
                return self.came_through()
            time.sleep(AGAIN_SECONDS)
        return False


@contextlib.contextmanager
def named_errors(connection: Connection) -> Generator[None]:
    """Turns what PostgreSQL raises inside the block into a StoreError; as Away where the connection is lost."""
    try:
        yield
    except psycopg.Error as error:
        raise (Away if connection.closed else StoreError)(said(error)) from None


def said(error: Exception) -> str:
    """Returns what PostgreSQL, or its driver, says, in one line."""
    return "PostgreSQL: " + (" ".join(str(error).split()) or type(error).__name__)


def lock_number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"cellblock {name}".encode()).digest()[:8], "big", signed=True)


@functools.cache
def _in_dialect(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _parameters(url: str) -> dict[str, Any]:
    try:
        # A database without an encoding would give bytes for texts.
        return {**DEFAULTS, **conninfo_to_dict(url), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError:
        # What it says has the URL in it, and with it a password.
        raise ConfigError(
            "state.url is no URL of a PostgreSQL.", hint="postgresql://user@host/database"
        ) from None
