"""Shared_outputs keep outputs where brokers share them: whichever a client comes to reads its pages to it.

Pages are sealed, each for its place and its owner. They are kept until they expire, whatever becomes of the broker that
wrote them.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from cellblock.base.callbacks import Listeners
from cellblock.base.database import Away, StoreError
from cellblock.base.postgresql import PostgresDatabase
from cellblock.base.shared_state import SharedState
from cellblock.base.threads import DaemonThread
from cellblock.config.sections import OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept import ID_BYTES, MAX_KEPT, PAGE_BYTES, Kept, NotKept, Output, cut_at
from cellblock.journal.run_rows import plain

KIND: Final = "outputs"

MIGRATIONS: Final[Sequence[str]] = (
    """
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
    ALTER TABLE output_pages ALTER body SET STORAGE EXTERNAL;
    """,
)

TIDY_SECONDS: Final = 60.0
"""Passes between two removals of expired outputs; nobody can read an expired one before."""

ASK_SECONDS: Final = 20.0
"""Bounds the time to write or read one output; 16 MiB take a tenth of a second."""

CLOSE_SECONDS: Final = 5.0
"""Bounds the wait for the outputs that are still being written at the end."""

_SHOWN: Final = "id, part, mime_type, size, pages, extract(epoch FROM made)"


class SharedOutputs:
    """Keeps the outputs of one front-end in a PostgreSQL; an `OutputPlace`. Owns its thread.

    Args:
        settings: The caps; `total_bytes` is what all brokers keep together.
        shared: What this broker has of the PostgreSQL.
    """

    def __init__(self, settings: OutputSettings, shared: SharedState) -> None:
        self.settings = settings
        self._shared = shared
        self._thread = DaemonThread("cellblock-outputs")
        self._own: dict[str, Kept] = {}
        self._changed = Listeners()
        self._timer = asyncio.get_running_loop().call_later(TIDY_SECONDS, self._tidy)

    def watch(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called when an output has come or gone here. See `OutputPlace`."""
        return self._changed.add(listener)

    async def keep(self, owner: Owner, outputs: Sequence[Output]) -> list[Kept]:
        """Writes outputs. See `OutputPlace`."""
        expires_at = asyncio.get_running_loop().time() + self.settings.expire_ms / 1000
        made = [
            Kept(
                output_id=secrets.token_urlsafe(ID_BYTES),
                owner=owner,
                part=output.part,
                mime_type=output.mime_type,
                size=len(output.data),
                pages=max(1, -(-len(output.data) // PAGE_BYTES)),
                made_at=time.time(),
                expires_at=expires_at,
            )
            for output in outputs
        ]
        if (size := sum(kept.on_disk for kept in made)) > self.settings.client_bytes:
            raise OSError(
                f"{size} bytes are over a quarter of outputs.total_bytes = {self.settings.total_bytes}"
            )
        await self._asked(self._write, made, [output.data for output in outputs])
        self._own |= {kept.output_id: kept for kept in made}
        self._changed.tell()
        return made

    async def read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str]:
        """Returns one page of a kept output. See `OutputPlace`."""
        kept, body = await self._asked(self._read, owner, output_id, page)
        if body is None:
            raise IndexError(kept.pages)
        return kept, body

    async def listed(self, owner: Owner) -> list[Kept]:
        """Returns what any broker has kept for a client; while PostgreSQL is away, what this one has."""
        try:
            return await self._asked(self._list, owner)
        except OSError:
            return self.list_for(owner)

    def list_for(self, owner: Owner) -> list[Kept]:
        """Returns the outputs that this broker has kept for a client. See `OutputPlace`."""
        self._forget()
        return [kept for kept in reversed(self._own.values()) if kept.owner == owner]

    async def close(self) -> None:
        """Ends the thread; what is kept stays until it expires."""
        self._timer.cancel()
        await self._thread.close(lambda: None, CLOSE_SECONDS)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _asked(self, work: Callable[..., Any], *args: object) -> Any:
        presence = self._shared.presence
        try:
            if presence is not None and presence.trouble is not None:
                raise Away(presence.trouble)
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
        self._thread.submit(self._expire)
        self._forget()
        if len(self._own) < before:
            self._changed.tell()

    # ---- inside: the thread ------------------------------------------------------------------------------

    def _database(self) -> PostgresDatabase:
        self._shared.hold()
        return PostgresDatabase(self._shared.server, KIND, MIGRATIONS)

    def _write(self, made: Sequence[Kept], bodies: Sequence[bytes]) -> None:
        sealed = [self._sealed(kept, data) for kept, data in zip(made, bodies, strict=True)]
        database, size = self._database(), sum(kept.on_disk for kept in made)
        principal = plain(made[0].owner.principal)
        # One writer at a time: what all have kept stays under the caps.
        with database.transaction(KIND):
            database.execute("DELETE FROM outputs WHERE expires <= now()")
            self._make_room(database, principal, self.settings.client_bytes - size, MAX_KEPT - len(made))
            self._make_room(database, None, self.settings.total_bytes - size, None)
            for kept in made:
                database.execute(
                    "INSERT INTO outputs (id, principal, client, part, mime_type, size, pages, kept, expires) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, now() + make_interval(secs => ?))",
                    *(kept.output_id, principal, plain(kept.owner.client), kept.part, kept.mime_type),
                    *(kept.size, kept.pages, kept.on_disk, self.settings.expire_ms / 1000),
                )
            for pages in sealed:
                database.execute_many("INSERT INTO output_pages VALUES (?, ?, ?)", pages)

    def _make_room(
        self, database: PostgresDatabase, principal: str | None, left: int, most: int | None
    ) -> None:
        """Removes the oldest outputs, of a principal or of all, until the others take `left` bytes and are `most`."""
        database.execute(
            "DELETE FROM outputs WHERE id IN (SELECT id FROM (SELECT id, sum(kept) OVER newer AS used, "
            "count(*) OVER newer AS number FROM outputs WHERE CAST(? AS TEXT) IS NULL OR principal = ? "
            "WINDOW newer AS (ORDER BY made DESC, id)) AS counted WHERE used > ? OR number > ?)",
            *(principal, principal, left, 1 << 62 if most is None else most),
        )

    def _sealed(self, kept: Kept, data: bytes) -> list[tuple[str, int, bytes]]:
        size = PAGE_BYTES
        cuts = [cut_at(data, number * size) for number in range(kept.pages)] + [len(data)]
        return [
            (
                kept.output_id,
                page,
                self._shared.keys.sealed(_place(kept.owner, kept.output_id, page), data[start:end]),
            )
            for page, (start, end) in enumerate(itertools.pairwise(cuts), 1)
        ]

    def _read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str | None]:
        rows = self._database().rows(
            f"SELECT {_SHOWN}, body FROM outputs LEFT JOIN output_pages ON output = id AND page = ? "
            "WHERE id = ? AND principal = ? AND client = ? AND expires > now()",
            *(page, plain(output_id), plain(owner.principal), plain(owner.client)),
        )
        if not rows:
            raise NotKept
        *shown, body = rows[0]
        if body is None:
            return _kept(owner, shown), None
        opened = self._shared.keys.opened(_place(owner, output_id, page), bytes(body))
        return _kept(owner, shown), opened.decode()

    def _list(self, owner: Owner) -> list[Kept]:
        rows = self._database().rows(
            f"SELECT {_SHOWN} FROM outputs WHERE principal = ? AND client = ? AND expires > now() "
            "ORDER BY made DESC, id",
            *(plain(owner.principal), plain(owner.client)),
        )
        return [_kept(owner, row) for row in rows]

    def _expire(self) -> None:
        try:
            database = self._database()
            with database.transaction(KIND):
                database.execute("DELETE FROM outputs WHERE expires <= now()")
        except StoreError:
            pass  # at the next turn


def _place(owner: Owner, output_id: str, page: int) -> tuple[str, ...]:
    return KIND, owner.principal, owner.client, output_id, str(page)


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
