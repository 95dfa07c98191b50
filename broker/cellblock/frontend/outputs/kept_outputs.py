"""Keeps outputs for a while, in the database of a store, each for the client that made it.

Where brokers share the store, whichever a client comes to reads its pages to it; pages are sealed there, each for its
place and its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from cellblock.base.callbacks import Listeners
from cellblock.base.database import Away, Database, StoreError
from cellblock.base.own_folders import remove_stale
from cellblock.base.state_dir import OUTPUT_DATABASE, OUTPUT_FILES, OUTPUTS
from cellblock.base.store import LocalStore, Store, Tables, as_text
from cellblock.base.threads import DaemonThread
from cellblock.config.sections import OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept import ID_BYTES, MAX_KEPT, Kept, NotKept, Output, cut_at

logger = logging.getLogger("cellblock.frontend")

_TABLES: Final = """
    CREATE TABLE outputs (
        id TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        client TEXT NOT NULL,
        part TEXT NOT NULL,
        mime_type TEXT NOT NULL,
        size BIGINT NOT NULL,
        pages INTEGER NOT NULL,
        kept BIGINT NOT NULL,
        made TIMESTAMPTZ NOT NULL DEFAULT now(),
        expires TIMESTAMPTZ NOT NULL
    );
    CREATE INDEX outputs_made ON outputs (principal, made);
    CREATE TABLE output_pages (
        output TEXT NOT NULL REFERENCES outputs (id) ON DELETE CASCADE,
        page INTEGER NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (output, page)
    );
    """

TABLES: Final = Tables(
    kind="outputs",
    file=OUTPUT_DATABASE,
    what="large outputs",
    logger=logger,
    sqlite=(
        _TABLES.replace("TIMESTAMPTZ NOT NULL DEFAULT now()", "BIGINT NOT NULL")
        .replace("TIMESTAMPTZ", "BIGINT")
        .replace("BYTEA", "BLOB"),
    ),
    postgresql=(_TABLES + "ALTER TABLE output_pages ALTER body SET STORAGE EXTERNAL;",),
    setup=("PRAGMA auto_vacuum = FULL", "PRAGMA foreign_keys = ON", "PRAGMA secure_delete = ON"),
)

TIDY_SECONDS: Final = 60.0
"""Passes between two removals of expired outputs; nobody can read an expired one before."""

ASK_SECONDS: Final = 20.0
"""Bounds the time to write or read one output; 16 MiB take a tenth of a second."""

CLOSE_SECONDS: Final = 5.0
"""Bounds the wait at the end for the outputs that are still being written, and for the removal of what is in files."""


class KeptOutputs:
    """Keeps the outputs of one front-end. Owns its thread, and in it the database.

    Args:
        settings: The caps; `total_bytes` is what all front-ends of the store keep together.
        store: Where they are.
    """

    def __init__(self, settings: OutputSettings, store: Store) -> None:
        self.settings = settings
        self._store = store
        self._database: Database | None = None
        self._thread = DaemonThread("cellblock-outputs")
        self._own: dict[str, Kept] = {}
        self._changed = Listeners()
        self._timer = asyncio.get_running_loop().call_later(TIDY_SECONDS, self._tidy)
        if not store.is_shared and store.exists(TABLES):
            self._thread.submit(self._remove, [])

    def watch(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called whenever an output of this front-end has come or gone; the function that is returned
        ends that."""
        return self._changed.add(listener)

    async def keep(self, owner: Owner, outputs: Sequence[Output]) -> list[Kept]:
        """Writes outputs; older ones of the client, then of all, go where that is over a cap.

        Raises:
            OSError: They cannot be written, or are larger than all that the client may keep. Then none is kept.
        """
        expires_at = asyncio.get_running_loop().time() + self.settings.expire_ms / 1000
        made = [
            Kept(
                output_id=secrets.token_urlsafe(ID_BYTES),
                owner=owner,
                part=output.part,
                mime_type=output.mime_type,
                size=len(output.data),
                pages=max(1, -(-len(output.data) // self.settings.page_bytes)),
                made_at=time.time(),
                expires_at=expires_at,
            )
            for output in outputs
        ]
        if (size := sum(kept.on_disk for kept in made)) > self.settings.client_bytes:
            raise OSError(f"{size} bytes are over client_bytes = {self.settings.client_bytes}")
        try:
            await self._asked(self._write, made, [output.data for output in outputs])
        except BaseException:
            # It may be written all the same.
            with contextlib.suppress(RuntimeError):
                self._thread.submit(self._remove, [kept.output_id for kept in made])
            raise
        self._own |= {kept.output_id: kept for kept in made}
        self._changed.tell()
        return made

    async def read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str]:
        """Returns one page, from 1, as text; the pages of an output one after the other are the whole.

        Raises:
            NotKept: There is no such output, it is another client's, or it has gone.
            IndexError: It has fewer pages.
            OSError: It cannot be read.
        """
        if not self._is_known(output_id):
            raise NotKept
        kept, body = await self._asked(self._read, owner, output_id, page)
        if body is None:
            raise IndexError(kept.pages)
        return kept, body

    async def listed(self, owner: Owner) -> list[Kept]:
        """Returns what is kept for a client, newest first; while PostgreSQL is away, what this front-end has."""
        try:
            return [one for one in await self._asked(self._list, owner) if self._is_known(one.output_id)]
        except OSError:
            return self.list_for(owner)

    def list_for(self, owner: Owner) -> list[Kept]:
        """Returns what this front-end itself has kept for a client, newest first."""
        self._forget()
        return [kept for kept in reversed(self._own.values()) if kept.owner == owner]

    async def close(self) -> None:
        """Ends the thread, and removes what is in files; what brokers share stays until it expires."""
        self._timer.cancel()
        own = [] if self._store.is_shared else list(self._own)
        if not await self._thread.close(lambda: self._hang_up(own), CLOSE_SECONDS):
            logger.warning("the kept outputs are not removed: the disk is too slow")

    # ---- inside ------------------------------------------------------------------------------------------

    def _is_known(self, output_id: str) -> bool:
        """Says whether an output may be this front-end's: the clients of two that share files may be called alike."""
        return self._store.is_shared or output_id in self._own

    async def _asked(self, work: Callable[..., Any], *args: object) -> Any:
        try:
            if (trouble := self._store.trouble) is not None:
                raise Away(trouble)
            async with asyncio.timeout(ASK_SECONDS):
                return await asyncio.wrap_future(self._thread.submit(work, *args))
        except StoreError as error:
            raise OSError(0, str(error)) from None
        except RuntimeError:
            raise OSError("the front-end is stopping") from None

    def _forget(self) -> None:
        now = asyncio.get_running_loop().time()
        for kept in list(self._own.values()):
            if kept.expires_at > now:
                return
            del self._own[kept.output_id]

    def _tidy(self) -> None:
        loop, before = asyncio.get_running_loop(), len(self._own)
        self._timer = loop.call_later(TIDY_SECONDS, self._tidy)
        self._thread.submit(self._remove, [])
        self._forget()
        if len(self._own) < before:
            self._changed.tell()

    # ---- inside: the thread ------------------------------------------------------------------------------

    def _opened(self) -> Database:
        if self._database is None:
            self._database = self._store.database(TABLES)
        return self._database

    def _write(self, made: Sequence[Kept], bodies: Sequence[bytes]) -> None:
        sealed = [self._sealed(kept, data) for kept, data in zip(made, bodies, strict=True)]
        database, size = self._opened(), sum(kept.on_disk for kept in made)
        principal = as_text(made[0].owner.principal)
        # One writer at a time: what all have kept stays under the caps.
        with database.transaction(TABLES.kind):
            database.execute(f"DELETE FROM outputs WHERE expires <= {database.now}")
            self._make_room(database, principal, self.settings.client_bytes - size, MAX_KEPT - len(made))
            self._make_room(database, None, self.settings.total_bytes - size, None)
            for kept in made:
                database.execute(
                    "INSERT INTO outputs (id, principal, client, part, mime_type, size, pages, kept, made, expires) "
                    f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, {database.now}, {database.after_seconds})",
                    *(kept.output_id, principal, as_text(kept.owner.client), kept.part, kept.mime_type),
                    *(kept.size, kept.pages, kept.on_disk, self.settings.expire_ms / 1000),
                )
            for pages in sealed:
                database.execute_many("INSERT INTO output_pages VALUES (?, ?, ?)", pages)

    def _make_room(self, database: Database, principal: str | None, left: int, most: int | None) -> None:
        """Removes the oldest outputs, of a principal or of all, until the others take `left` bytes and are `most`."""
        database.execute(
            "DELETE FROM outputs WHERE id IN (SELECT id FROM (SELECT id, sum(kept) OVER newer AS used, "
            "count(*) OVER newer AS number FROM outputs WHERE CAST(? AS TEXT) IS NULL OR principal = ? "
            "WINDOW newer AS (ORDER BY made DESC, id)) AS counted WHERE used > ? OR number > ?)",
            *(principal, principal, left, 1 << 62 if most is None else most),
        )

    def _sealed(self, kept: Kept, data: bytes) -> list[tuple[str, int, bytes]]:
        size = self.settings.page_bytes
        cuts = [cut_at(data, number * size) for number in range(kept.pages)] + [len(data)]
        return [
            (
                kept.output_id,
                page,
                self._store.sealed(_place(kept.owner, kept.output_id, page), data[start:end]),
            )
            for page, (start, end) in enumerate(itertools.pairwise(cuts), 1)
        ]

    def _read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str | None]:
        database = self._opened()
        rows = database.rows(
            f"SELECT {_shown(database)}, body FROM outputs LEFT JOIN output_pages ON output = id AND page = ? "
            f"WHERE id = ? AND principal = ? AND client = ? AND expires > {database.now}",
            *(page, as_text(output_id), as_text(owner.principal), as_text(owner.client)),
        )
        if not rows:
            raise NotKept
        *shown, body = rows[0]
        if body is None:
            return _kept(owner, shown), None
        opened = self._store.opened(_place(owner, output_id, page), bytes(body))
        return _kept(owner, shown), opened.decode()

    def _list(self, owner: Owner) -> list[Kept]:
        database = self._opened()
        rows = database.rows(
            f"SELECT {_shown(database)} FROM outputs WHERE principal = ? AND client = ? "
            f"AND expires > {database.now} ORDER BY made DESC, id",
            *(as_text(owner.principal), as_text(owner.client)),
        )
        return [_kept(owner, row) for row in rows]

    def _remove(self, output_ids: Sequence[str]) -> None:
        """Removes these outputs, and what has expired; what cannot be removed now goes when it has expired."""
        with contextlib.suppress(StoreError):
            database = self._opened()
            with database.transaction(TABLES.kind):
                database.execute(f"DELETE FROM outputs WHERE expires <= {database.now}")
                for output_id in output_ids:
                    database.execute("DELETE FROM outputs WHERE id = ?", output_id)

    def _hang_up(self, own: Sequence[str]) -> None:
        if self._database is not None:
            self._remove(own)
            self._database.close()


@contextlib.asynccontextmanager
async def keeping(settings: OutputSettings, store: Store) -> AsyncGenerator[KeptOutputs | None]:
    """Keeps the outputs of a front-end while it serves; None when none are to be kept."""
    if isinstance(store, LocalStore):
        # What a killed daemon of an earlier version has left in files.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_stale, store.state_dir / OUTPUTS, OUTPUT_FILES)
    is_off = settings.inline_bytes is None
    # What a killed daemon has left expires also when the setting has been taken away since.
    if is_off and (store.is_shared or not store.exists(TABLES)):
        yield None
        return
    kept = KeptOutputs(settings, store)
    try:
        yield None if is_off else kept
    finally:
        await kept.close()


def _shown(database: Database) -> str:
    return f"id, part, mime_type, size, pages, {database.epoch('made')}"


def _place(owner: Owner, output_id: str, page: int) -> tuple[str, ...]:
    return TABLES.kind, owner.principal, owner.client, output_id, str(page)


def _kept(owner: Owner, row: Sequence[Any]) -> Kept:
    output_id, part, mime_type, size, pages, made = row
    return Kept(
        output_id=output_id,
        owner=owner,
        part=part,
        mime_type=mime_type,
        size=size,
        pages=pages,
        made_at=float(made),
        expires_at=0.0,
    )
