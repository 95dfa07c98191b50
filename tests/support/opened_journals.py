"""Looks into journals as no product code does."""

from collections.abc import Callable, Sequence
from pathlib import Path

from cellblock.base.database import SqliteDatabase
from cellblock.base.settings.state import JournalSettings
from cellblock.record.journals import Journals
from cellblock.record.rows import Head, Piece
from cellblock.record.store import JOURNAL_TABLES, JournalStore


def opened_journals(
    path: Path, keys: Callable[[], Sequence[bytes]], settings: JournalSettings
) -> JournalStore:
    """Opens one file of journals; made with mode 0600 when absent."""
    return JournalStore(SqliteDatabase(path, JOURNAL_TABLES), keys, settings)


async def heads_of(journals: Journals, principal: str | None = None) -> list[Head]:
    """Returns the runs that are kept."""
    return await journals.asked(lambda store: store.heads(principal), [])


async def read_of(
    journals: Journals, run_id: str, principal: str | None = None
) -> tuple[Head, list[Piece]] | None:
    """Returns a run that is kept."""
    return await journals.asked(lambda store: store.read(run_id, principal), None)


async def delete_of(journals: Journals, run_id: str) -> bool:
    """Deletes a run that is kept."""
    return await journals.asked(lambda store: store.delete(run_id), default=False)
