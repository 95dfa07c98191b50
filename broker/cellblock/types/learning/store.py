"""Keeps what was observed in a database: an SQLite file of the state directory, or a PostgreSQL that brokers share.

An `Observations` belongs to the thread that opened it. Any failure is a `StoreError`: who learns goes on without.
Several brokers can use one database; each write merges with what the others have written. Of the JSON in a row nothing
is believed when it is read back. Its keys are only ever added: a row of an older Cellblock lacks the newer ones, and an
older Cellblock passes them by.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import msgspec

from cellblock.base.database import Away, Database, StoreError
from cellblock.base.settings.sections import OF_PERSON
from cellblock.base.state_dir import DATABASE
from cellblock.base.store import Store, Tables
from cellblock.types.learning.observation import (
    MAX_WINDOW,
    NOT_FADING,
    NOT_GIVEN,
    WINDOW,
    Fading,
    Forms,
    GivenCheck,
    Observation,
    ToolKey,
)
from cellblock.types.learning.shape import (
    ANYTHING,
    MAX_DEPTH,
    MAX_NAMES,
    NAME,
    NOTHING,
    Fields,
    Number,
    Property,
    Shape,
    join_fields,
)

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

_UNREADABLE: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""Lists what reading a body raises that something else has written."""

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
        rows = self.database.rows(f"SELECT {_COLUMNS} FROM observed WHERE {_OF_KEY}", *_plain(key))
        return _of_row(rows[0]) if rows else None

    def _put(self, key: ToolKey, seen: Observation) -> None:
        self.database.execute(
            f"INSERT INTO observed ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (server, tool, fingerprint) DO UPDATE SET {_CHANGING}",
            *(*_plain(key), seen.version, seen.samples, seen.first_seen, seen.last_seen, encoded(seen)),
        )

    def _keep_version(self, key: ToolKey, held: Observation) -> None:
        self.database.execute(
            "INSERT INTO versions (server, tool, fingerprint, version, until, body) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (server, tool, fingerprint, version) DO UPDATE SET until = excluded.until, "
            "body = excluded.body",
            *(*_plain(key), held.version, time.time(), encoded(replace(held, fading=NOT_FADING))),
        )
        self.database.execute(
            f"DELETE FROM versions WHERE {_OF_KEY} AND version <= ?",
            *(*_plain(key), held.version - MAX_VERSIONS),
        )

    def _forget_old(self, key: ToolKey) -> None:
        of_tool = _plain(key)[:2]
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


def _plain(key: ToolKey) -> tuple[str, ...]:
    """Returns a key as it stands in a row: a server's word for a tool may have what is no text in PostgreSQL."""
    return tuple(part.replace("\0", "\\x00") for part in key)


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

_MAX_KINDS: Final = 12
_NUMBERS: Final[dict[str, Number]] = {"i": "integer", "n": "number"}


class StoredShape(msgspec.Struct, omit_defaults=True):
    """Is a shape in a row: anything, null, boolean, the kind of numbers, formats of strings, items, objects."""

    a: int = 0
    z: int = 0
    b: int = 0
    n: str = ""
    s: list[str] | None = None
    i: StoredShape | None = None
    o: _Objects | None = None


class _Objects(msgspec.Struct):
    # Older ones kept objects of several kinds, by a tag.
    v: dict[str, _Fields]
    t: str | None = None


class _Fields(msgspec.Struct, omit_defaults=True):
    p: dict[str, tuple[StoredShape, int]]
    x: StoredShape | None = None
    m: int = 0
    b: str = ""
    w: dict[str, str] = {}


class _Forms(msgspec.Struct, omit_defaults=True):
    value: StoredShape = msgspec.field(default_factory=StoredShape)
    json: StoredShape = msgspec.field(default_factory=StoredShape)
    texts: bool = False
    results: bool = False


class _Fading(msgspec.Struct):
    recent: int | _Forms = msgspec.field(default_factory=_Forms)
    count: int = 0
    window: int = WINDOW


class _Body(_Forms):
    skipped: int = 0
    disagreements: int = 0
    disagreement: str = ""
    by: str = ""
    given: tuple[str, int, int, str] | None = None
    sample: str | None = None
    fading: _Fading | None = None


def encoded(seen: Observation) -> str:
    """Writes the whole of an observation as JSON, but for the columns of the store."""
    given, fading = seen.given, seen.fading
    # Most often what is known.
    recent = 1 if fading.recent == seen.shape else _Forms(*_stored(fading.recent))
    body = _Body(
        *_stored(seen),
        seen.skipped,
        seen.disagreements,
        seen.disagreement,
        seen.by,
        (given.of, given.checked, given.misfits, given.newest) if given.of else None,
        seen.sample,
        _Fading(recent, fading.count, fading.window) if fading != NOT_FADING else None,
    )
    return json.dumps(msgspec.to_builtins(body), separators=(",", ":"))


def decoded(body: str) -> Observation:
    """Reads the observation, without what is in the columns of the store.

    Raises:
        ValueError: It is no such data: the store was changed by something else.
    """
    data = msgspec.convert(json.loads(body), _Body)
    forms = _formed(data)
    return Observation(
        value=forms.value,
        document=forms.document,
        texts=forms.texts,
        results=forms.results,
        skipped=data.skipped,
        disagreements=data.disagreements,
        disagreement=data.disagreement,
        by=data.by,
        sample=data.sample,
        given=NOT_GIVEN if data.given is None else GivenCheck(*data.given),
        fading=_fading(data.fading, forms),
    )


def _stored(forms: Forms) -> tuple[StoredShape, StoredShape, bool, bool]:
    return encode_shape(forms.value), encode_shape(forms.document), forms.texts, forms.results


def _formed(data: _Forms) -> Forms:
    return Forms(decode_shape(data.value), decode_shape(data.json), data.texts, data.results)


def _fading(data: _Fading | None, known: Forms) -> Fading:
    if data is None:
        return NOT_FADING
    recent = known if isinstance(data.recent, int) else _formed(data.recent)
    return Fading(recent, min(max(data.count, 0), MAX_WINDOW), min(max(data.window, WINDOW), MAX_WINDOW))


def encode_shape(shape: Shape) -> StoredShape:
    """Gives the shape as it stands in a row."""
    if shape.anything:
        return StoredShape(a=1)
    return StoredShape(
        z=int(shape.null),
        b=int(shape.boolean),
        n=shape.number[:1],
        s=None if shape.formats is None else sorted(shape.formats),
        i=None if shape.items is None else encode_shape(shape.items),
        o=None if shape.objects is None else _Objects({"": _encode_fields(shape.objects)}),
    )


def _encode_fields(fields: Fields) -> _Fields:
    return _Fields(
        {name: (encode_shape(held.shape), int(held.required)) for name, held in fields.properties.items()},
        None if fields.other == NOTHING else encode_shape(fields.other),
        int(fields.is_map),
        fields.by,
        # Most often whose all is.
        {name: held.by for name, held in fields.properties.items() if held.by != fields.by},
    )


def decode_shape(stored: StoredShape, depth: int = 0) -> Shape:
    """Gives the shape that stands in a row.

    Raises:
        ValueError: It cannot be: the store was changed by something else.
    """
    kinds = [] if stored.o is None else [*stored.o.v.values()]
    if depth > MAX_DEPTH + 1 or len(kinds) > _MAX_KINDS or (stored.o is not None and not kinds):
        raise ValueError("nested too deeply, or no kinds of objects")
    if stored.a:
        return ANYTHING
    return Shape(
        null=bool(stored.z),
        boolean=bool(stored.b),
        number=_NUMBERS.get(stored.n, ""),
        formats=None if stored.s is None else frozenset(stored.s),
        items=None if stored.i is None else decode_shape(stored.i, depth + 1),
        objects=reduce(join_fields, [_decode_fields(one, depth) for one in kinds]) if kinds else None,
    )


def _decode_fields(stored: _Fields, depth: int) -> Fields:
    # Names go into generated text: what reads the store checks them again.
    if len(stored.p) > MAX_NAMES or not all(map(NAME.match, stored.p)):
        raise ValueError("properties that cannot be")
    properties = {
        name: Property(decode_shape(shape, depth + 1), bool(required), stored.w.get(name, stored.b))
        for name, (shape, required) in stored.p.items()
    }
    rest = NOTHING if stored.x is None else decode_shape(stored.x, depth + 1)
    return Fields(properties, rest, bool(stored.m), stored.b)
