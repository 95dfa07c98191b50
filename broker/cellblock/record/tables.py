"""Tables are what the file of journals is made of, and which columns a run's row has."""

from __future__ import annotations

import logging
from typing import Final

from cellblock.base.state_dir import JOURNALS
from cellblock.base.store import Tables

WAL_BYTES: Final = 4 * 1024 * 1024
"""Bounds what the write-ahead log keeps of the disk between writes."""

_TABLES: Final = """
    CREATE TABLE runs (
        id TEXT NOT NULL PRIMARY KEY,
        principal TEXT NOT NULL,
        began DOUBLE PRECISION NOT NULL,
        ended DOUBLE PRECISION,
        outcome TEXT,
        calls INTEGER NOT NULL,
        bytes BIGINT NOT NULL,
        key TEXT NOT NULL,
        state TEXT NOT NULL,
        turn INTEGER NOT NULL,
        expires DOUBLE PRECISION,
        is_answered INTEGER NOT NULL,
        owner TEXT,
        cpu_ms BIGINT NOT NULL DEFAULT 0,
        resumed INTEGER NOT NULL DEFAULT 0,
        adopted INTEGER NOT NULL DEFAULT 0,
        changed DOUBLE PRECISION
    );
    CREATE INDEX runs_began ON runs (began, principal, bytes);
    CREATE INDEX runs_state ON runs (state, expires);
    CREATE TABLE pieces (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, number)
    );
    """

JOURNAL_TABLES: Final = Tables(
    kind="journals",
    file=JOURNALS,
    what="kept runs",
    logger=logging.getLogger("cellblock.journal"),
    # The first version never was released.
    sqlite=("", _TABLES),
    # What is encrypted is not compressed.
    postgresql=(_TABLES.replace("BLOB", "BYTEA") + "ALTER TABLE pieces ALTER body SET STORAGE EXTERNAL",),
    setup=(
        "PRAGMA auto_vacuum = INCREMENTAL",
        "PRAGMA foreign_keys = ON",
        # What is deleted is not to be found in the file.
        "PRAGMA secure_delete = ON",
        f"PRAGMA journal_size_limit = {WAL_BYTES}",
    ),
)

SHOWN: Final = (
    "id, principal, began, ended, outcome, calls, bytes, "
    "state, turn, expires, is_answered, cpu_ms, resumed, changed, owner, adopted"
)

CHANGING: Final = (
    "ended",
    "outcome",
    "calls",
    "state",
    "expires",
    "is_answered",
    "owner",
    "changed",
    "key",
)
"""Names what changes in the row of a run that is written again, beside its turn and its size."""

OF_PRINCIPAL: Final = "(CAST(? AS TEXT) IS NULL OR principal = ?)"
"""Selects the runs of a principal, given twice; of None: of everybody."""

BY_SHARE: Final = "sum(bytes) OVER (PARTITION BY principal) DESC, began"
"""Orders the selected runs by what their principal has of them, most first; the oldest of each first."""

IS_OVER: Final = "state = 'ended' OR (state = 'running' AND owner IS NULL AND began < ?)"
"""Selects runs that may be removed; its value is when a run began that has no end and is taken for lost. One with an
owner goes on, or may when that one has died, however long ago it began."""
