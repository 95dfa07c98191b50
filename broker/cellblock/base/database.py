"""A database is where a store keeps its rows: a file of this machine, or a PostgreSQL that brokers share.

Statements are those of SQL that both read alike, with `?` for values. Any failure is a `StoreError`.

A file is an SQLite database of ours: write-ahead log, versioned migrations, private to the user. It belongs to the
thread that opened it, and several processes may have the same file open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cellblock.base.state_dir import DATABASE_ENDINGS
from cellblock_worker.base.folders import FILE, Folder

BUSY_PAUSE_SECONDS: Final = 0.01
"""Separates two tries where SQLite does not wait by itself."""

BUSY_BOUND_SECONDS: Final = 5.0
"""Sets the longest wait for another broker's write; one takes milliseconds. A write that waits longer is given up."""


class StoreError(Exception):
    """Tells that the store cannot be read or written; the text says why."""


class Away(StoreError):
    """Tells that PostgreSQL does not answer. What was to be written can be written when it is back."""


class Unusable(StoreError):
    """Tells that PostgreSQL answers, and that this broker must not use what is there."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one kind of thing.

    Args:
        kind: Names them in PostgreSQL.
        file: Names their file in a state directory.
        what: What is in them, for people.
        logger: Takes the warning that the file is damaged.
        sqlite: The statements that lead from each version of the file to the next; released ones never change.
        postgresql: The same for PostgreSQL.
        setup: Pragmas of the file; those for a new one are before its tables.
        counted: Whether others' transactions must be seen in `Database.changes`.
    """

    kind: str
    file: str
    what: str
    logger: logging.Logger
    sqlite: Sequence[str]
    postgresql: Sequence[str]
    setup: Sequence[str] = ()
    counted: bool = False


class Database(Protocol):
    """Holds the rows of one store; `SqliteDatabase` and `PostgresDatabase` do. It belongs to one thread.

    What has a body here is right for one of the two; the other has its own.

    Attributes:
        after_seconds: SQL for a time so many seconds after `now()`, with `?` for them, as columns of times have it.
        now_ms: SQL for the milliseconds since 1970.
    """

    after_seconds: str
    now_ms: str

    @staticmethod
    def epoch(column: str) -> str:
        """Returns SQL for the seconds since 1970 of a column of times; the column, where it has them."""
        return column

    def close(self) -> None:
        """Closes the database, where that is its own."""

    def transaction(self, key: str = "", *, safe: bool = False) -> AbstractContextManager[None]:
        """Runs a block whose statements are done all or not at all.

        Args:
            key: Names what the block is about: of two blocks with one key, the second waits for the first's end.
            safe: Whether it is to outlive a power cut as soon as it is done.

        Raises:
            Away: PostgreSQL has not answered: nothing was written, unless `came_through` says so.
            StoreError: Nothing was written.
        """
        ...

    def announce(self) -> None:
        """Has other processes look at once when the transaction is done; where they share a file, they look at its
        version soon."""

    def execute(self, statement: str, *values: Any) -> int:
        """Does a statement of a transaction, and says how many rows it has changed."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Does a statement of a transaction for each of several rows."""

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows that a statement finds. Raises StoreError."""
        ...

    def changes(self) -> int:
        """Returns a number that differs from the last one if somebody else may have changed something. Raises
        StoreError."""
        ...

    def used_bytes(self) -> int | None:
        """Returns the bytes that the database uses of the disk; None where that is not to be known, as of tables in
        which what is deleted counts, too. Raises StoreError."""
        return None

    def give_back(self, pages: int) -> None:
        """Gives free space back to the disk, where the database does not do so by itself. Raises StoreError."""

    def came_through(self) -> bool:
        """Says whether the last transaction, which has raised `Away`, was done all the same; one that has failed in a
        file was not. Raises Away: It does not answer yet."""
        return False


class SqliteDatabase(Database):
    """Holds one open file.

    Args:
        path: The file; made with mode 0600 when absent.
        tables: What is in it.
        checked: Whether the whole file is read to see that it is not damaged, 1 s for 1 GiB, and set aside where it is;
            False for a mere look.

    Raises:
        StoreError: It cannot be opened, is damaged and not to be set aside, a newer Cellblock has made it, or
            Cellblock has not made it.
    """

    now_ms = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    after_seconds = "now() + ?"

    def __init__(self, path: Path, tables: Tables, *, checked: bool = True) -> None:
        self._path = path
        self._tables = tables
        self._checked = checked
        with named_errors():
            self.connection: Final = self._opened_or_new()

    def close(self) -> None:
        """Closes the file. The write-ahead log goes into it where no other process has it open."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    @contextlib.contextmanager
    def transaction(self, key: str = "", *, safe: bool = False) -> Generator[None]:
        """Does the block's statements all or not at all; one at a time, whatever the key. See `Database`."""
        with named_errors():
            if safe:
                self.connection.execute("PRAGMA synchronous = FULL")
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self.connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                    raise
            finally:
                if safe:
                    self.connection.execute("PRAGMA synchronous = NORMAL")

    def execute(self, statement: str, *values: Any) -> int:
        """Does a statement of a transaction, and says how many rows it has changed."""
        return self.connection.execute(statement, values).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Does a statement of a transaction for each of several rows."""
        self.connection.executemany(statement, rows)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows that a statement finds. Raises StoreError."""
        with named_errors():
            return self.connection.execute(statement, values).fetchall()

    def changes(self) -> int:
        """Returns a number that changes when another connection has changed the file. Raises StoreError."""
        with named_errors():
            return _pragma(self.connection, "data_version")

    def used_bytes(self) -> int:
        """Returns the bytes that the file uses. Raises StoreError."""
        with named_errors():
            pages, free, size = (
                _pragma(self.connection, name) for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * size

    def give_back(self, pages: int) -> None:
        """Gives free pages of the file back to the disk. Raises StoreError."""
        with named_errors():
            # Not `execute`, which takes one step of it, and with it one page.
            self.connection.executescript(f"PRAGMA incremental_vacuum({pages})")

    # ---- inside --------------------------------------------------------------------------------------

    def _opened_or_new(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            if not self._checked:
                raise StoreError(f"{self._path} is damaged ({error})") from None
            text = "the store of %s was damaged (%s) and is set aside as %s; a new one is begun"
            self._tables.logger.warning(text, self._tables.what, error, set_aside(self._path))
            return self._opened()

    def _opened(self) -> sqlite3.Connection:
        _make_private(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY_BOUND_SECONDS, isolation_level=None)
        # SQLite's own clock has milliseconds, in which two rows may be made.
        connection.create_function("now", 0, time.time)
        try:
            # In this order: another broker may be making them.
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() and not _pragma(
                connection, "user_version"
            ):
                raise StoreError(f"{self._path} is a database that Cellblock has not made")
            for statement in self._tables.setup:
                connection.execute(statement)
            _into_wal(connection)
            # In WAL this keeps the file whole through a kill and through a power cut; the latter may cost
            # the last writes.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA trusted_schema = OFF")
            if self._checked:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise sqlite3.DatabaseError(verdict)
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        migrations = self._tables.sqlite
        if _pragma(connection, "user_version") == len(migrations):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again: another broker may have migrated while this one waited.
            version = _pragma(connection, "user_version")
            if version > len(migrations):
                raise StoreError(
                    f"{self._path} was made by a newer Cellblock (version {version} of the file)"
                )
            for script in migrations[version:]:
                for statement in filter(None, map(str.strip, script.split(";"))):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def set_aside(path: Path) -> Path:
    """Renames a file that cannot be used, with what belongs to it, and gives its new name. Raises StoreError."""
    aside = path.with_name(
        f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}"
    )
    try:
        path.replace(aside)
        for ending in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    except OSError as error:
        raise StoreError(f"{path} is damaged and cannot be set aside: {error}") from None
    return aside


@contextlib.contextmanager
def named_errors() -> Generator[None]:
    """Turns what SQLite and the file system raise inside the block into a StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(str(error)) from None


def _into_wal(connection: sqlite3.Connection) -> None:
    """Sets the mode of a file that another broker may be making at this moment: SQLite does not wait for that lock."""
    deadline = time.monotonic() + BUSY_BOUND_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_PAUSE_SECONDS)


def _make_private(path: Path) -> None:
    """Makes the file where there is none, and refuses what SQLite must not touch. Raises OSError."""
    with Folder.named(path.parent) as folder:
        for ending in DATABASE_ENDINGS:
            folder.check(path.name + ending, FILE)
        seen = folder.look(path.name)
        if seen is None or seen.st_nlink > 1 or stat.S_IMODE(seen.st_mode) != 0o600:
            # Not otherwise: with any descriptor that is closed, the process loses the locks of its open connections.
            descriptor = folder.open(path.name, os.O_RDWR | os.O_CREAT, alone=True)
            # SQLite gives its -wal and -shm files the mode of the file itself.
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
        folder.check(path.name, FILE)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return value
