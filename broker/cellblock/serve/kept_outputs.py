"""Keeps outputs for a while, each for the client that made it: in a file of the state directory, which all
processes that serve with it share, or where brokers share them, so that whichever a client comes to reads its pages to
it.

In a file they are of the process that wrote them, and go with it. Where brokers share them, pages are sealed, each for
its place and its owner, and kept until they expire, whatever becomes of the broker that wrote them.

Clients read them as MCP resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import mcp_types as types
from mcp.shared.exceptions import MCPError

from cellblock.base.callbacks import Listeners
from cellblock.base.database import Away, Database, StoreError, Tables
from cellblock.base.errors import ConfigError
from cellblock.base.own_folders import remove_stale
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.state_dir import OUTPUT_FILES, OUTPUTS, OUTPUTS_FOLDER
from cellblock.base.store import LocalStore, Store, as_text
from cellblock.base.tasks import DaemonThread
from cellblock.serve.service import Owner

logger = logging.getLogger("cellblock.serve")

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
    file=OUTPUTS,
    what="outputs",
    logger=logger,
    # Times in a file are seconds since 1970.
    sqlite=(
        _TABLES.replace("TIMESTAMPTZ NOT NULL DEFAULT now()", "REAL NOT NULL")
        .replace("TIMESTAMPTZ", "REAL")
        .replace("BYTEA", "BLOB"),
    ),
    postgresql=(_TABLES + "ALTER TABLE output_pages ALTER body SET STORAGE EXTERNAL;\n    ",),
    setup=(
        "PRAGMA auto_vacuum = INCREMENTAL",
        "PRAGMA foreign_keys = ON",
        "PRAGMA secure_delete = ON",
        "PRAGMA journal_size_limit = 0",
    ),
)

PAGE_BYTES: Final = 32 * 1024
"""Caps the content of one `resources/read`: about 8,000 tokens."""

MAX_KEPT: Final = 256
"""Bounds the outputs of one client: a list of them is read whole."""

ID_BYTES: Final = 24
"""Sets the randomness in an output's id."""

TIDY_SECONDS: Final = 60.0
"""Passes at most between two removals of expired outputs; nobody can read an expired one before."""

ASK_SECONDS: Final = 20.0
"""Bounds the time to write or read one output; 16 MiB take a tenth of a second."""

CLOSE_SECONDS: Final = 5.0
"""Bounds the wait for what is still being written or removed at the end."""


BLOCK_BYTES: Final = 4096
"""Sets what an output takes at least: a page of the database."""

Part = Literal["result", "logs"]


@dataclass(frozen=True, slots=True)
class Output:
    """Holds one output that is to be kept: UTF-8 text."""

    part: Part
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """Holds one output that is kept. Size in bytes, `made_at` in seconds since 1970."""

    output_id: str
    owner: Owner
    part: Part
    mime_type: str
    size: int
    pages: int
    made_at: float

    @property
    def on_disk(self) -> int:
        """Returns what the output counts for, in bytes."""
        return max(1, -(-self.size // BLOCK_BYTES)) * BLOCK_BYTES


class NotKept(Exception):
    """Tells that the client has no output of this id (any more)."""


def cut_at(data: bytes, at: int) -> int:
    """Finds where the next character begins: pages are cut there."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))


class KeptOutputs:
    """Keeps the outputs of one front-end. Owns its thread, and in it the file.

    Args:
        settings: The caps; `total_bytes` is what all front-ends keep together.
        store: Where they are kept.
    """

    def __init__(self, settings: OutputSettings, store: Store) -> None:
        self.settings: Final = settings
        self._store = store
        # In a file, outputs are of this front-end alone: those of another one may be another person's.
        self._front = "" if store.is_shared else f"{secrets.token_hex(8)} "
        self._file: Database | None = None
        self._thread = DaemonThread("cellblock-outputs")
        self._own: dict[str, tuple[KeptOutput, float]] = {}
        """Holds what was kept here, with its end on the loop's clock, oldest first."""
        self._changed = Listeners()
        self._timer: asyncio.TimerHandle | None = None
        self._schedule()

    def watch(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called whenever an output of this front-end has come or gone; the function that is returned
        ends that."""
        return self._changed.add(listener)

    async def keep(self, owner: Owner, outputs: Sequence[Output]) -> list[KeptOutput]:
        """Writes outputs; others go where that is over a cap, as in `_make_room`.

        Raises:
            OSError: They cannot be written, or are larger than all that the client may keep. Then none is kept.
        """
        expires_at = asyncio.get_running_loop().time() + self.settings.expire_ms / 1000
        made = [
            KeptOutput(
                output_id=secrets.token_urlsafe(ID_BYTES),
                owner=owner,
                part=output.part,
                mime_type=output.mime_type,
                size=len(output.data),
                pages=max(1, -(-len(output.data) // PAGE_BYTES)),
                made_at=time.time(),
            )
            for output in outputs
        ]
        if (size := sum(kept.on_disk for kept in made)) > self.settings.client_bytes:
            raise OSError(f"{size} bytes are over the {self.settings.client_bytes} that a client may keep")
        try:
            gone: list[str] = await self._asked(self._write, made, [output.data for output in outputs])
        except BaseException:
            # It may be written all the same.
            with contextlib.suppress(RuntimeError):
                self._thread.submit(self._remove, [kept.output_id for kept in made])
            raise
        self._own = {key: own for key, own in self._own.items() if key not in gone}
        self._own |= {kept.output_id: (kept, expires_at) for kept in made}
        self._changed.tell()
        return made

    async def read(self, owner: Owner, output_id: str, page: int) -> tuple[KeptOutput, str]:
        """Returns one page, from 1, as text; the pages of an output one after the other are the whole.

        Raises:
            NotKept: There is no such output, it is another client's, or it has gone.
            IndexError: It has fewer pages.
            OSError: It cannot be read.
        """
        kept, body = await self._asked(self._read, owner, output_id, page)
        if body is None:
            raise IndexError(kept.pages)
        return kept, body

    async def listed(self, owner: Owner) -> list[KeptOutput]:
        """Returns what is kept for a client, newest first; while PostgreSQL is away, what this front-end has kept."""
        try:
            return await self._asked(self._list, owner)
        except OSError:
            return self.list_for(owner)

    def list_for(self, owner: Owner) -> list[KeptOutput]:
        """Returns what this front-end itself has kept for a client, newest first."""
        self._forget()
        return [kept for kept, _ in reversed(self._own.values()) if kept.owner == owner]

    async def open(self) -> None:
        """Opens the file. Raises OSError."""
        await self._asked(self._database)

    async def close(self) -> None:
        """Ends the thread, within `CLOSE_SECONDS`. What is in a file goes; what brokers share stays until it
        expires."""
        if self._timer is not None:
            self._timer.cancel()
        if not await self._thread.close(self._leave, CLOSE_SECONDS) and not self._store.is_shared:
            logger.warning("the kept outputs are not removed: the disk is too slow")

    # ---- inside ------------------------------------------------------------------------------------------

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

    def _schedule(self) -> None:
        seconds = min(TIDY_SECONDS, self.settings.expire_ms / 1000)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tidy)

    def _tidy(self) -> None:
        self._schedule()
        self._thread.submit(self._remove)
        before = len(self._own)
        self._forget()
        if len(self._own) < before:
            self._changed.tell()

    def _forget(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, (_, expires_at) in list(self._own.items()):
            if expires_at > now:
                return
            del self._own[key]

    # ---- inside: the thread ------------------------------------------------------------------------------

    @property
    def _has_any(self) -> bool:
        """Says whether there may be outputs: the file is made when the first one is kept."""
        return self._store.is_shared or self._file is not None

    def _database(self) -> Database:
        if self._store.is_shared:
            return self._store.database(TABLES)
        if self._file is None:
            self._file = self._store.database(TABLES)
        return self._file

    def _write(self, made: Sequence[KeptOutput], bodies: Sequence[bytes]) -> list[str]:
        """Writes outputs, and returns the ids of those that have gone for them."""
        pages = [self._paged(kept, data) for kept, data in zip(made, bodies, strict=True)]
        database, size = self._database(), sum(kept.on_disk for kept in made)
        principal = as_text(made[0].owner.principal)
        # One writer at a time: what all have kept stays under the caps.
        with database.transaction(TABLES.kind):
            database.execute("DELETE FROM outputs WHERE expires <= now()")
            client_left, total_left = self.settings.client_bytes - size, self.settings.total_bytes - size
            gone = self._make_room(database, principal, client_left, MAX_KEPT - len(made))
            gone += self._make_room(database, None, total_left, None)
            for kept in made:
                database.execute(
                    "INSERT INTO outputs (id, principal, client, part, mime_type, size, pages, kept, made, expires) "
                    f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, now(), {database.after_seconds})",
                    *(kept.output_id, principal, self._client(kept.owner), kept.part, kept.mime_type),
                    *(kept.size, kept.pages, kept.on_disk, self.settings.expire_ms / 1000),
                )
            for of_one in pages:
                database.execute_many("INSERT INTO output_pages VALUES (?, ?, ?)", of_one)
        return gone

    def _make_room(self, database: Database, principal: str | None, left: int, most: int | None) -> list[str]:
        """Removes outputs of a principal, or of all, until the others take `left` bytes and are `most`: those of
        whoever keeps most first, and of one the oldest."""
        rows = database.rows(
            "DELETE FROM outputs WHERE id IN (SELECT id FROM (SELECT id, sum(kept) OVER less AS used, "
            "count(*) OVER less AS number FROM (SELECT id, kept, made, sum(kept) OVER "
            "(PARTITION BY principal ORDER BY made DESC, id) AS own FROM outputs "
            "WHERE CAST(? AS TEXT) IS NULL OR principal = ?) AS mine "
            "WINDOW less AS (ORDER BY own, made DESC, id)) AS counted WHERE used > ? OR number > ?) RETURNING id",
            *(principal, principal, left, 1 << 62 if most is None else most),
        )
        return [output_id for (output_id,) in rows]

    def _paged(self, kept: KeptOutput, data: bytes) -> list[tuple[str, int, bytes]]:
        size = PAGE_BYTES
        cuts = [cut_at(data, number * size) for number in range(kept.pages)] + [len(data)]
        pages = enumerate((data[start:end] for start, end in itertools.pairwise(cuts)), 1)
        return [
            (
                kept.output_id,
                page,
                self._store.sealed(_place(kept.owner, kept.output_id, page), body),
            )
            for page, body in pages
        ]

    def _read(self, owner: Owner, output_id: str, page: int) -> tuple[KeptOutput, str | None]:
        if not self._has_any:
            raise NotKept
        database = self._database()
        rows = database.rows(
            f"SELECT id, part, mime_type, size, pages, {database.epoch('made')}, body FROM outputs "
            "LEFT JOIN output_pages ON output = id AND page = ? "
            "WHERE id = ? AND principal = ? AND client = ? AND expires > now()",
            *(page, as_text(output_id), as_text(owner.principal), self._client(owner)),
        )
        if not rows:
            raise NotKept
        *shown, body = rows[0]
        if body is None:
            return _kept(owner, shown), None
        opened = self._store.opened(_place(owner, output_id, page), bytes(body))
        return _kept(owner, shown), opened.decode()

    def _list(self, owner: Owner) -> list[KeptOutput]:
        if not self._has_any:
            return []
        database = self._database()
        rows = database.rows(
            f"SELECT id, part, mime_type, size, pages, {database.epoch('made')} FROM outputs "
            "WHERE principal = ? AND client = ? AND expires > now() ORDER BY made DESC, id",
            *(as_text(owner.principal), self._client(owner)),
        )
        return [_kept(owner, row) for row in rows]

    def _client(self, owner: Owner) -> str:
        return self._front + as_text(owner.client)

    def _remove(self, output_ids: Sequence[str] = ()) -> None:
        """Removes these outputs, and those that have expired."""
        if not self._has_any:
            return
        # What fails is done at the next turn.
        with contextlib.suppress(StoreError):
            database = self._database()
            with database.transaction(TABLES.kind):
                database.execute("DELETE FROM outputs WHERE expires <= now()")
                database.execute_many("DELETE FROM outputs WHERE id = ?", [(one,) for one in output_ids])
            database.give_back(0)

    def _leave(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(StoreError):
            with self._file.transaction():
                self._file.execute("DELETE FROM outputs WHERE client LIKE ?", f"{self._front}%")
            self._file.give_back(0)
        self._file.close()


@contextlib.asynccontextmanager
async def keeping(settings: OutputSettings, store: Store) -> AsyncGenerator[KeptOutputs]:
    """Keeps the outputs of a front-end while it serves.

    Raises:
        ConfigError: The file for them cannot be made.
    """
    if isinstance(store, LocalStore):
        # What a killed daemon of an earlier version has left.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_stale, store.state_dir / OUTPUTS_FOLDER, OUTPUT_FILES)
    kept = KeptOutputs(settings, store)
    try:
        # What an earlier process has left expires.
        if not store.is_shared and (settings.inline_bytes is not None or store.exists(TABLES)):
            try:
                await kept.open()
            except OSError as error:
                why = error.strerror or error
                hint = "Move it away, or use another --state-dir."
                raise ConfigError(f"Outputs cannot be kept: {why}.", hint=hint) from None
        yield kept
    finally:
        await kept.close()


def forget(database: Database, principal: str) -> int:
    """Removes what is kept for a principal, and says how many outputs there were; blocks. Raises StoreError."""
    with database.transaction(TABLES.kind):
        return database.execute("DELETE FROM outputs WHERE principal = ?", as_text(principal))


def _place(owner: Owner, output_id: str, page: int) -> tuple[str, ...]:
    return TABLES.kind, owner.principal, owner.client, output_id, str(page)


def _kept(owner: Owner, row: Sequence[Any]) -> KeptOutput:
    output_id, part, mime_type, size, pages, made = row
    return KeptOutput(output_id, owner, part, mime_type, size, pages, float(made))


PREFIX: Final = "cellblock://outputs/"

_URI: Final = re.compile(r"cellblock://outputs/([A-Za-z0-9_-]{1,64})(?:\?page=([1-9][0-9]{0,8}))?", re.ASCII)

TEMPLATE: Final = types.ResourceTemplate(
    uri_template=PREFIX + "{id}{?page}",
    name="output",
    title="A large result, or the logs, of a script",
    description="Pages are counted from 1; one after the other they are the whole.",
)

_NAMES: Final = {"result": "result.json", "logs": "logs.jsonl"}


def output_uri(kept: KeptOutput) -> str:
    """Returns the URI of an output, which reads its first page; `?page=N` behind it reads the others."""
    return PREFIX + kept.output_id


def resource_link(kept: KeptOutput) -> types.ResourceLink:
    """Returns an output as a block of a tool's result."""
    return types.ResourceLink(**_described(kept))


async def resources_of(kept: KeptOutputs, owner: Owner) -> list[types.Resource]:
    """Returns a client's own outputs as resources, newest first."""
    return [types.Resource(**_described(one)) for one in await kept.listed(owner)]


async def read_resource(kept: KeptOutputs, owner: Owner, uri: str) -> types.ReadResourceResult:
    """Returns one page of an output.

    Raises:
        MCPError: The URI is none of the client's outputs, or the output has gone, or has no such page.
    """
    matched = _URI.fullmatch(uri)
    if matched is None:
        raise MCPError(types.INVALID_PARAMS, f"This is no URI of an output; they are {PREFIX}ID?page=N.")
    page = int(matched[2] or 1)
    try:
        one, text = await kept.read(owner, matched[1], page)
    except NotKept:
        raise MCPError(
            types.INVALID_PARAMS,
            f"{uri} is not kept for this connection (any more). Outputs are kept for "
            f"{kept.settings.expire_ms / 1000:g} s, for the connection that ran the script, and the oldest go first "
            "when there is no room. List the resources to see which are there, or run the script again and return "
            "less.",
        ) from None
    except IndexError as error:
        pages = error.args[0]
        raise MCPError(
            types.INVALID_PARAMS, f"{uri}: there is no page {page}. Read ?page=1 to ?page={pages}."
        ) from None
    except OSError as error:
        raise MCPError(
            types.INTERNAL_ERROR,
            f"{uri} cannot be read at the moment ({error.strerror or 'the disk is slow'}).",
        ) from None
    meta: dict[str, Any] = {"page": page, "pages": one.pages}
    if page < one.pages:
        meta["next"] = f"{output_uri(one)}?page={page + 1}"
    contents = types.TextResourceContents(
        uri=uri,
        # A piece of JSON is no JSON.
        mime_type=one.mime_type if one.pages == 1 else "text/plain",
        text=text,
        _meta={"cellblock/page": meta},
    )
    return types.ReadResourceResult(contents=[contents])


def _described(kept: KeptOutput) -> dict[str, Any]:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(kept.made_at))
    pages = "one page" if kept.pages == 1 else f"{kept.pages} pages: ?page=1 to ?page={kept.pages}"
    whole = "JSON" if kept.part == "result" else "one JSON object a line"
    return {
        "uri": output_uri(kept),
        "name": _NAMES[kept.part],
        "title": f"{'Result' if kept.part == 'result' else 'Logs'} of the script of {made} UTC",
        "description": f"{kept.size:,} bytes ({whole}), {pages}",
        "mime_type": kept.mime_type,
        "size": kept.size,
    }
