"""Fixtures of tests of journals at rest."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import JOURNALS
from cellblock.fleet.postgresql import PostgresDatabase, PostgresServer
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from support.opened_journals import opened_journals
from support.shared_rows import KEY


@pytest.fixture
def open_store(kept_in: Path | PostgresServer) -> Iterator[Callable[..., JournalStore]]:
    """Opens the journals once more, with keys and settings; they are closed in the end."""
    with contextlib.ExitStack() as stack:

        def opened(*keys: bytes, **settings: Any) -> JournalStore:
            made = JournalSettings(**settings)
            if isinstance(kept_in, Path):
                store = opened_journals(kept_in / JOURNALS, lambda: keys or (KEY,), made)
            else:
                database = PostgresDatabase(kept_in, JOURNAL_TABLES.kind, JOURNAL_TABLES.postgresql)
                store = JournalStore(database, lambda: keys or (KEY,), made)
            stack.callback(store.close)
            return store

        yield opened


@pytest.fixture
def store(open_store: Callable[..., JournalStore]) -> JournalStore:
    """The journals, opened with the defaults."""
    return open_store()
