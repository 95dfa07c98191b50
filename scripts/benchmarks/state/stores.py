"""Stores are what one broker has of a shared PostgreSQL, made of the same classes as a daemon makes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final, TypeVar

from cellblock.base import count_rows
from cellblock.base.shared_state import SharedState
from cellblock.base.threads import DaemonThread
from cellblock.config.journal import JournalSettings
from cellblock.config.sections import OutputSettings
from cellblock.daemon.assembly import counts_of
from cellblock.frontend.outputs import shared_outputs
from cellblock.frontend.outputs import shared_outputs
from cellblock.frontend.outputs.shared_outputs import SharedOutputs
from cellblock.journal import place, tables
from cellblock.journal.journals import Journals
from cellblock.journal.place import SharedPlace
from cellblock.learning import store
from cellblock.learning.memory import Memory
from cellblock.policy.named_tokens import NamedTokens
from cellblock.upstream.auth.shared_logins import SharedLogin
from cellblock.upstream.pins.pin_store import PinStore

KEY: Final = b"\1" * 32
URL: Final = "https://notes.example/mcp"
PAGE_BYTES: Final = 1024
CLOSE_SECONDS: Final = 5.0

TABLES: Final = {
    count_rows.KIND: count_rows.MIGRATIONS,
    place.KIND: tables.POSTGRES_MIGRATIONS,
    store.KIND: store.MIGRATIONS,
    shared_outputs.KIND: shared_outputs.MIGRATIONS,
}

T = TypeVar("T")


class Stores:
    """Holds a broker's stores.

    Args:
        shared: What it has of the PostgreSQL.
        name: The broker's own, in the journals.
    """

    def __init__(self, shared: SharedState, name: str) -> None:
        self.shared, self.name = shared, name
        self.journals = Journals(SharedPlace(shared), JournalSettings(mode="all"))
        # Small outputs have pages, too.
        setattr(shared_outputs, "PAGE_BYTES", PAGE_BYTES)  # noqa: B010
        self.outputs = SharedOutputs(OutputSettings(), shared)
        self.pins = PinStore(shared.rows)
        self.tokens = NamedTokens(shared.rows)
        self.counts = counts_of(Path(), shared)
        # What a learner has below it; the learner itself writes once a second.
        self.memory = Memory(shared.server, lambda key: None)
        self._learning = DaemonThread("bench-learning")
        self._logins: dict[str, SharedLogin] = {}

    def login(self, server: str) -> SharedLogin:
        """Returns the login of a server, as a daemon has it."""
        return self._logins.setdefault(server, SharedLogin(self.shared.rows, server, URL, patient=True))

    async def learning(self, work: Callable[..., T], *args: object) -> T:
        """Does a piece of work in the thread that has the memory."""
        return await asyncio.wrap_future(self._learning.submit(work, *args))

    async def close(self) -> None:
        """Closes what a daemon closes at its end."""
        await self._learning.close(self.memory.close, CLOSE_SECONDS)
        await self.counts.close()
        await self.outputs.close()
        await self.journals.close()


@contextlib.asynccontextmanager
async def opened(url: str, *, lives: bool = False) -> AsyncGenerator[Stores]:
    """Gives the stores of one more broker, which knows what the others have written.

    Args:
        url: The PostgreSQL's.
        lives: Whether it says to others that it lives, and follows them; else it only looks once, as commands do.
    """
    shared = SharedState(url, (KEY,))
    try:
        name = shared.start(TABLES).name if lives else ""
        shared.hold()
        shared.rows.read()
        stores = Stores(shared, name)
        stores.counts.start()
        await stores.learning(stores.memory.open)
        try:
            yield stores
        finally:
            await stores.close()
    finally:
        shared.close()
