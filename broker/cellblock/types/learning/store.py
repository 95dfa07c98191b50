"""Keeps what was observed in a database: an SQLite file of the state directory, or a PostgreSQL that brokers share.

An `Observations` belongs to the thread that opened it. Any failure is a `StoreError`: who learns goes on without.
Several brokers can use one database; each write merges with what the others have written. Of the JSON in a row nothing
is believed when it is read back. It is an `Observation` as it is; that of 0.1.0 is read too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cellblock.base.database import Away, Database, StoreError, Tables
from cellblock.base.raw_json import is_deeper
from cellblock.base.settings.sections import OF_PERSON
from cellblock.base.state_dir import DATABASE
from cellblock.base.store import Store
from cellblock.types.learning.observation import NOT_FADING, Forms, GivenCheck, Observation, ToolKey
from cellblock.types.learning.shape import Fields, Number, Property, Shape, join_fields

logger = logging.getLogger("cellblock.schemas")

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
        samples BIGINT NOT NULL,
        first_seen DOUBLE PRECISION NOT NULL,
        last_seen DOUBLE PRECISION NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (server, tool, fingerprint)
    );
    CREATE TABLE versions (
        server TEXT NOT NULL,
        tool TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        version INTEGER NOT NULL,
        until DOUBLE PRECISION NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (server, tool, fingerprint, version)
    );
    """,
)
"""Holds the statements that lead from each version of the tables to the next; released ones never change."""

TABLES: Final = Tables(
    "observed", DATABASE, "observed schemas", logger, _MIGRATIONS, _MIGRATIONS, counted=True
)

_UNREADABLE: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""Lists what reading a body raises that something else has written."""

_MAX_NESTING: Final = 160
"""Bounds the levels of JSON in a body: a shape has at most 24, of six in rows of 0.1.0."""

_COLUMNS: Final = "server, tool, fingerprint, version, samples, first_seen, last_seen, body"
_CHANGING: Final = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[3:])
_OF_KEY: Final = "server = ? AND tool = ? AND fingerprint = ?"


class Observations:
    """Holds an open database of observations.

    Args:
        database: The database, with `TABLES`.

    Raises:
        StoreError: It cannot be read.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._changes = self.database.changes()

    def close(self) -> None:
        """Closes the database. A file's write-ahead log goes into it where no other broker has it open."""
        self.database.close()

    def changed(self) -> bool:
        """Says whether another process has changed the store since the last call, or since it was opened.

        Raises:
            StoreError: The file cannot be read.
        """
        held, self._changes = self._changes, self.database.changes()
        return held != self._changes

    def load(self) -> dict[ToolKey, Observation]:
        """Gives all observations that the store holds. Rows that cannot be read are left out.

        Raises:
            StoreError: The file cannot be read.
        """
        rows = self.database.rows(f"SELECT {_COLUMNS} FROM observed")
        found: dict[ToolKey, Observation] = {}
        for row in rows:
            observation = _of_row(row)
            if observation is not None:
                found[ToolKey(*row[:3])] = observation
        return found

    def merge(self, news: Mapping[ToolKey, Observation]) -> dict[ToolKey, Observation]:
        """Adds observations to what is remembered, in one transaction, and gives what is remembered then.

        Raises:
            StoreError: Nothing was written.
        """
        merged: dict[ToolKey, Observation] = {}
        with self.database.transaction(TABLES.kind):
            for key, newer in news.items():
                held = self._get(key)
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
        rows = self.database.rows(
            "SELECT version, until, body FROM versions WHERE server = ? AND tool = ? ORDER BY until, version",
            *(server, tool),
        )
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
        where, values = "1 = 1", list[str | int]()
        if server is not None:
            of_persons = server + OF_PERSON
            where = "(server = ? OR substr(server, 1, ?) = ?)"
            values = [server, len(of_persons), of_persons]
        if tool is not None:
            where, values = f"{where} AND tool = ?", [*values, tool]
        with self.database.transaction(TABLES.kind):
            self.database.execute(f"DELETE FROM versions WHERE {where}", *values)
            return self.database.execute(f"DELETE FROM observed WHERE {where}", *values)

    # ---- inside --------------------------------------------------------------------------------------

    def _get(self, key: ToolKey) -> Observation | None:
        rows = self.database.rows(f"SELECT {_COLUMNS} FROM observed WHERE {_OF_KEY}", *key)
        return _of_row(rows[0]) if rows else None

    def _put(self, key: ToolKey, seen: Observation) -> None:
        self.database.execute(
            f"INSERT INTO observed ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (server, tool, fingerprint) DO UPDATE SET {_CHANGING}",
            *(*key, seen.version, seen.samples, seen.first_seen, seen.last_seen, encoded(seen)),
        )

    def _keep_version(self, key: ToolKey, held: Observation) -> None:
        self.database.execute(
            "INSERT INTO versions (server, tool, fingerprint, version, until, body) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (server, tool, fingerprint, version) DO UPDATE SET until = excluded.until, "
            "body = excluded.body",
            *(*key, held.version, time.time(), encoded(replace(held, fading=NOT_FADING))),
        )
        self.database.execute(
            f"DELETE FROM versions WHERE {_OF_KEY} AND version <= ?",
            *(*key, held.version - MAX_VERSIONS),
        )

    def _forget_old(self, key: ToolKey) -> None:
        of_tool = key[:2]
        self.database.execute(
            "DELETE FROM observed WHERE server = ? AND tool = ? AND fingerprint NOT IN "
            "(SELECT fingerprint FROM observed WHERE server = ? AND tool = ? ORDER BY last_seen DESC LIMIT ?)",
            *(*of_tool, *of_tool, MAX_DEFINITIONS),
        )
        ((count,),) = self.database.rows("SELECT count(*) FROM observed")
        if count > MAX_TOOLS:
            oldest = self.database.rows(
                "SELECT server, tool, fingerprint FROM observed ORDER BY last_seen LIMIT ?", count - MAX_TOOLS
            )
            self.database.execute_many(f"DELETE FROM observed WHERE {_OF_KEY}", oldest)
        self.database.execute(
            "DELETE FROM versions WHERE (server, tool, fingerprint) NOT IN "
            "(SELECT server, tool, fingerprint FROM observed)"
        )


def _of_row(row: tuple[Any, ...]) -> Observation | None:
    """Gives the observation in a row; None when the row holds something else, and what it was is then learnt anew."""
    try:
        made = decoded(row[7])
        return replace(made, version=row[3], samples=row[4], first_seen=row[5], last_seen=row[6])
    except _UNREADABLE as error:
        logger.warning("an observed schema of %s cannot be read and is forgotten: %s", row[0], error)
        return None


class Memory:
    """Holds the observations of tools, by tool: known here at once, written to the store from time to time. All but
    `known` and `revision` belong to one thread.

    Several processes share a store, so what it holds after a write or a change by another is taken over. When the store
    fails, learning goes on for this process alone.

    Args:
        store: Where they are kept; None: in this process only.
        forgotten: Called with the key of a tool that another process has forgotten.

    Attributes:
        known: What is known of each tool.
        revision: Counts up whenever that changes in more than counts and dates, and with a second result.
    """

    def __init__(self, store: Store | None, forgotten: Callable[[ToolKey], None]) -> None:
        self._where = store
        self._forgotten = forgotten
        self._store: Observations | None = None
        self._is_away = False
        self._unwritten: dict[ToolKey, list[Observation]] = {}
        self._batch: dict[ToolKey, Observation] = {}
        self._warned = False
        self.known: dict[ToolKey, Observation] = {}
        self.revision = 0

    @property
    def is_shared(self) -> bool:
        """Says whether there is a store, which other processes may change."""
        return self._store is not None or self._is_away

    @property
    def has_unwritten(self) -> bool:
        """Says whether observations wait to be written."""
        return bool(self._unwritten or self._batch)

    def open(self) -> None:
        """Opens the store and reads what it holds; a PostgreSQL that is away is tried again later."""
        if self._where is None:
            return
        self._is_away = False
        try:
            store = Observations(self._where.database(TABLES))
            self.known = store.load()
            self._store = store
            self.revision += 1
        except StoreError as error:
            self._is_away = isinstance(error, Away)
            self._warn(f"what tools return is not remembered: {error}")

    def close(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()

    def add(self, key: ToolKey, seen: Observation) -> Observation:
        """Merges an observation with what is known of its tool, and gives what is known then."""
        held = self.known.get(key)
        merged = seen.begun() if held is None else held.merged(seen)
        if held is None and len(self.known) >= MAX_TOOLS:
            del self.known[next(iter(self.known))]
        self.known[key] = merged
        # A step for each change, so that the store keeps what was before it.
        steps = self._unwritten.setdefault(key, [])
        if not steps or (held is not None and held.samples and held.shape != merged.shape):
            steps.append(seen)
        else:
            steps[-1] = steps[-1].together(seen)
        # Of one result alone less is certain than of two.
        if held is None or held.samples == 1 or held.shape != merged.shape:
            self.revision += 1
        return merged

    def write(self) -> bool:
        """Writes the observations that wait; False when the store cannot be written for now."""
        if self._is_away:
            self.open()
        if self._store is None:
            if not self._is_away:
                self._unwritten.clear()
            return not self._is_away
        written: dict[ToolKey, Observation] = {}
        try:
            while self.has_unwritten:
                if not self._batch:
                    self._batch = {key: steps[0] for key, steps in self._unwritten.items()}
                    self._unwritten = {
                        key: steps[1:] for key, steps in self._unwritten.items() if len(steps) > 1
                    }
                # Unless that was done when its connection was lost.
                held = (
                    self._store.load()
                    if self._store.database.came_through()
                    else self._store.merge(self._batch)
                )
                written |= {key: held[key] for key in self._batch if key in held}
                self._batch = {}
        except StoreError as error:
            self._warn(f"what tools return is not remembered for now: {error}")
            return False
        # Others' results are in there too, and a tool that someone has forgotten begins anew.
        self._take_over(self.known | written)
        return True

    def refresh(self) -> None:
        """Takes over what other processes have done to the store; nothing may wait to be written."""
        if self._is_away:
            self.open()
        try:
            if self._store is not None and self._store.changed():
                self._take_over(self._store.load())
        except StoreError as error:
            self._warn(f"what other processes remember is not read for now: {error}")

    def _take_over(self, now: dict[ToolKey, Observation]) -> None:
        before, self.known = self.known, now
        if now.keys() != before.keys() or any(seen.shape != before[key].shape for key, seen in now.items()):
            self.revision += 1
        for key in before.keys() - now.keys():
            self._forgotten(key)

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s; results and scripts are not affected", text)


# ---- rows ------------------------------------------------------------------------------------------------

_NUMBERS: Final[dict[str, Number]] = {"": "", "i": "integer", "n": "number"}


def encoded(seen: Observation) -> str:
    """Writes the whole of an observation as JSON."""
    return json.dumps(msgspec.to_builtins(seen), separators=(",", ":"))


def decoded(body: str) -> Observation:
    """Reads an observation.

    Raises:
        Exception: One of `_UNREADABLE`: it is no such data, the store was changed by something else.
    """
    data = json.loads(body)
    if is_deeper(body.encode("utf-8", "surrogatepass"), _MAX_NESTING):
        raise ValueError("nested too deeply")
    if "value" in data:
        data = msgspec.to_builtins(_older(data))
    return msgspec.convert(data, Observation)


def _older(data: dict[str, Any]) -> Observation:
    """Reads an observation of 0.1.0, and of what was between; as if nothing of it had begun to fade."""
    return Observation(
        Forms(
            _older_shape(data["value"]),
            _older_shape(data["json"]),
            data.get("texts", False),
            data.get("results", False),
        ),
        skipped=data.get("skipped", 0),
        disagreements=data.get("disagreements", 0),
        disagreement=data.get("disagreement", ""),
        sample=data.get("sample"),
        given=GivenCheck(*data.get("given") or ()),
        by=data.get("by", ""),
    )


def _older_shape(data: dict[str, Any]) -> Shape:
    return Shape(
        anything="a" in data,
        null="z" in data,
        boolean="b" in data,
        number=_NUMBERS[data.get("n", "")],
        formats=frozenset(data["s"]) if "s" in data else None,
        items=_older_shape(data["i"]) if "i" in data else None,
        # 0.1.0 kept several kinds of objects apart, by a tag.
        objects=reduce(join_fields, map(_older_fields, data["o"]["v"].values())) if "o" in data else None,
    )


def _older_fields(data: dict[str, Any]) -> Fields:
    # Whose they are was not known to 0.1.0.
    by, others = data.get("b", ""), data.get("w", {})
    properties = {
        name: Property(_older_shape(shape), bool(required), others.get(name, by))
        for name, (shape, required) in data["p"].items()
    }
    return Fields(properties, _older_shape(data.get("x", {})), "m" in data, by)
