"""What is written down of runs, for those who judge them at the end."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

from cellblock.base.questions import ParkedQuestion
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.record.journals import open_store
from cellblock.record.rows import WAITING, Head, RunState, parked_questions
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from cellblock.record.views import response_in
from support.fleet.fleet import Fleet


@contextlib.contextmanager
def store_of(fleet: Fleet) -> Generator[JournalStore]:
    """Opens what the brokers of a fleet share, or what one that is alone has."""
    if fleet.alone:
        own = LocalStore(fleet.brokers[0].state)
        with contextlib.closing(open_store(own, AuthSettings(keyring="off"), JournalSettings())) as store:
            yield store
        return
    shared = SharedState(PostgresServer(fleet.database.url), (fleet.state_key,))
    try:
        yield JournalStore(shared.database(JOURNAL_TABLES), lambda: (fleet.state_key,), JournalSettings())
    finally:
        shared.close()


def heads_in(store: JournalStore, state: RunState | None = None) -> list[Head]:
    """Returns all runs that are written down."""
    return store.heads(state=state, limit=1_000_000)


def questions_of(store: JournalStore, run_id: str) -> tuple[ParkedQuestion, ...]:
    """Returns what a run waits for."""
    read = store.read(run_id, kinds=WAITING)
    return () if read is None or read[0].state != "parked" else parked_questions(*read)


def response_to(store: JournalStore, run_id: str) -> Any:
    """Returns the response of a run that has ended; None where none is written down."""
    read = store.read(run_id)
    found = None if read is None else response_in(read[1])
    return None if found is None else found.decoded().as_json()


async def drained(heads: Callable[[], list[Head]], bound: float) -> list[str]:
    """Waits until every run has ended; returns what is left after `bound` seconds."""
    stop = time.monotonic() + bound
    while left := [head for head in await asyncio.to_thread(heads) if head.ended is None]:
        if time.monotonic() > stop:
            return [f"run {head.id} is left: {head}" for head in left]
        await asyncio.sleep(0.5)
    return []
