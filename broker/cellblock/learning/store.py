"""Keeps what was observed in one SQLite file: write-ahead log, versioned migrations, private to the user.

A `Store` belongs to the thread that opened it. Any failure of the file is a `StoreError`: who learns goes on without.
Several brokers can use one file; each write merges with what the others have written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cellblock.base.state_dir import DATABASE, DATABASE_ENDINGS
from cellblock.learning.fading import NOT_FADING
from cellblock.learning.observation import Observation, ToolKey
from cellblock.learning.record import decoded, encoded
from cellblock_worker.base.folders import FILE, Folder

logger = logging.getLogger("cellblock.schemas")

FILE_NAME: Final = DATABASE

BUSY_PAUSE_SECONDS: Final = 0.01
"""Separates two tries where SQLite does not wait by itself."""

BUSY_BOUND_SECONDS: Final = 5.0
"""Sets the longest wait for another broker's write; one takes milliseconds. A write that waits longer is given up."""

MAX_TOOLS: Final = 10_000
"""Bounds the tools remembered; the ones not seen for longest go first. About 2 KiB each."""

MAX_DEFINITIONS: Final = 4
"""Bounds the definitions remembered of one tool: projects that name their servers alike, and a server before its
update."""

MAX_VERSIONS: Final = 10
"""Bounds the older shapes kept of one tool, for `cellblock schemas diff`."""

_MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE observed (
        server TEXT NOT NULL,
        tool TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        version INTEGER NOT NULL,
        samples INTEGER NOT NULL,
        first_seen REAL NOT NULL,
        last_seen REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (server, tool, fingerprint)
    ) WITHOUT ROWID;
    CREATE TABLE versions (
        server TEXT NOT NULL,
        tool TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        version INTEGER NOT NULL,
        until REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (server, tool, fingerprint, version)
    ) WITHOUT ROWID;
    """,
)
"""Holds the statements that lead from each version of the file to the next; released ones never change."""

_UNREADABLE: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""Lists what reading a body raises that something else has written."""

_COLUMNS: Final = "server, tool, fingerprint, version, samples, first_seen, last_seen, body"
_OF_KEY: Final = "server = ? AND tool = ? AND fingerprint = ?"


class StoreError(Exception):
    """The file cannot be read or written; the text says why."""


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


class Store:
    """Holds one open file of observations.

    Args:
        path: The file; made with mode 0600 when absent. One that is no database of ours is set aside.

    Raises:
        StoreError: It cannot be opened, or a newer Cellblock has made it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _named_errors():
            try:
                self._connection = self._opened()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                logger.warning(
                    "the store of observed schemas was damaged (%s) and is set aside as %s; a new one is begun",
                    error,
                    set_aside(path),
                )
                self._connection = self._opened()
            self._data_version = _pragma(self._connection, "data_version")

    def close(self) -> None:
        """Closes the file. The write-ahead log goes into it where no other broker has it open."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def changed(self) -> bool:
        """Says whether another process has changed the file since this was last asked, or since it was opened.

        Raises:
            StoreError: The file cannot be read.
        """
        with _named_errors():
            # Counts what other connections have committed.
            held, self._data_version = self._data_version, _pragma(self._connection, "data_version")
        return held != self._data_version

    def load(self) -> dict[ToolKey, Observation]:
        """Gives everything that is remembered. Rows that cannot be read are left out.

        Raises:
            StoreError: The file cannot be read.
        """
        with _named_errors():
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM observed").fetchall()
        found: dict[ToolKey, Observation] = {}
        for row in rows:
            observation = _of_row(row)
            if observation is not None:
                found[ToolKey(*row[:3])] = observation
        return found

    def merge(self, news: Mapping[ToolKey, Observation]) -> dict[ToolKey, Observation]:
        """Adds observations to what is remembered, in one transaction, and gives what is remembered then.

        A result that only confirms what is known (`Observation.confirms`) is left out where that is forgotten.

        Raises:
            StoreError: Nothing was written.
        """
        merged: dict[ToolKey, Observation] = {}
        with _named_errors(), self._transaction():
            for key, newer in news.items():
                held = self._get(key)
                if held is None and newer.confirms:
                    continue
                merged[key] = newer.begun() if held is None else held.merged(newer)
                if held is not None and merged[key].version != held.version:
                    self._keep_version(key, held)
                self._put(key, merged[key])
                if held is None:
                    self._forget_old(key)
        return merged

    def versions(self, server: str, tool: str) -> list[tuple[int, float, Observation]]:
        """Gives older shapes of a tool, oldest first: version, until when it held, and its shape.

        Raises:
            StoreError: The file cannot be read.
        """
        with _named_errors():
            rows = self._connection.execute(
                "SELECT version, until, body FROM versions WHERE server = ? AND tool = ? ORDER BY until, version",
                (server, tool),
            ).fetchall()
        found: list[tuple[int, float, Observation]] = []
        for version, until, body in rows:
            with contextlib.suppress(*_UNREADABLE):
                found.append((version, until, decoded(body)))
        return found

    def clear(self, server: str | None = None, tool: str | None = None) -> int:
        """Forgets a tool, a server, or everything. Gives the number of tools forgotten.

        Raises:
            StoreError: Nothing was forgotten.
        """
        where, values = "1", list[str]()
        if server is not None:
            where, values = "server = ?", [server]
        if tool is not None:
            where, values = f"{where} AND tool = ?", [*values, tool]
        with _named_errors(), self._transaction():
            self._connection.execute(f"DELETE FROM versions WHERE {where}", values)
            return self._connection.execute(f"DELETE FROM observed WHERE {where}", values).rowcount

    # ---- inside --------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        _make_private(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY_BOUND_SECONDS, isolation_level=None)
        try:
            # In this order: another broker may be making them.
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() and not _pragma(
                connection, "user_version"
            ):
                raise StoreError(f"{self._path} is a database that Cellblock has not made")
            _into_wal(connection)
            # In WAL this keeps the file whole through a kill and through a power cut; the latter may cost
            # the last writes, which are observations and will be made again.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA trusted_schema = OFF")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if _pragma(connection, "user_version") == len(_MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again: another broker may have migrated while this one waited.
            version = _pragma(connection, "user_version")
            if version > len(_MIGRATIONS):
                raise StoreError(
                    f"{self._path} was made by a newer Cellblock (version {version} of the file)"
                )
            for script in _MIGRATIONS[version:]:
                for statement in filter(None, map(str.strip, script.split(";"))):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _get(self, key: ToolKey) -> Observation | None:
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM observed WHERE {_OF_KEY}", key).fetchone()
        return None if row is None else _of_row(row)

    def _put(self, key: ToolKey, seen: Observation) -> None:
        self._connection.execute(
            f"INSERT OR REPLACE INTO observed ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, seen.version, seen.samples, seen.first_seen, seen.last_seen, encoded(seen)),
        )

    def _keep_version(self, key: ToolKey, held: Observation) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO versions (server, tool, fingerprint, version, until, body) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (*key, held.version, time.time(), encoded(replace(held, fading=NOT_FADING))),
        )
        self._connection.execute(
            f"DELETE FROM versions WHERE {_OF_KEY} AND version <= ?",
            (*key, held.version - MAX_VERSIONS),
        )

    def _forget_old(self, key: ToolKey) -> None:
        of_tool = key[:2]
        self._connection.execute(
            "DELETE FROM observed WHERE server = ? AND tool = ? AND fingerprint NOT IN "
            "(SELECT fingerprint FROM observed WHERE server = ? AND tool = ? ORDER BY last_seen DESC LIMIT ?)",
            (*of_tool, *of_tool, MAX_DEFINITIONS),
        )
        (count,) = self._connection.execute("SELECT count(*) FROM observed").fetchone()
        if count > MAX_TOOLS:
            oldest = self._connection.execute(
                f"SELECT {_COLUMNS} FROM observed ORDER BY last_seen LIMIT ?", (count - MAX_TOOLS,)
            ).fetchall()
            self._connection.executemany(f"DELETE FROM observed WHERE {_OF_KEY}", [row[:3] for row in oldest])
        self._connection.execute(
            "DELETE FROM versions WHERE (server, tool, fingerprint) NOT IN "
            "(SELECT server, tool, fingerprint FROM observed)"
        )


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
def _named_errors() -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(str(error)) from None


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return value


def _of_row(row: tuple[Any, ...]) -> Observation | None:
    """Gives the observation in a row; None when the row holds something else, and what it was is then learnt anew."""
    try:
        made = decoded(row[7])
        return replace(made, version=row[3], samples=row[4], first_seen=row[5], last_seen=row[6])
    except _UNREADABLE as error:
        logger.warning("an observed schema of %s cannot be read and is forgotten: %s", row[0], error)
        return None
