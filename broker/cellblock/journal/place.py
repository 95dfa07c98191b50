"""A place is where brokers keep their journals: a file of the state directory, or a PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from cellblock.base.postgresql import PostgresDatabase, PostgresServer
from cellblock.base.presence import Presence
from cellblock.base.sqlite import SqliteDatabase
from cellblock.base.state_dir import JOURNALS
from cellblock.config.auth import AuthSettings
from cellblock.config.journal import JournalSettings
from cellblock.config.settings import Settings
from cellblock.journal.key import load_key
from cellblock.journal.store import JournalStore, logger
from cellblock.journal.tables import MIGRATIONS, POSTGRES_MIGRATIONS, SETUP

KIND: Final = "journals"


class Place(Protocol):
    """Opens the journals, and has their key; `FilePlace` and `SharedPlace` do. All but `trouble` blocks."""

    def exists(self) -> bool:
        """Says whether something may be kept there; a look makes nothing."""
        ...

    def opened(
        self, key: Callable[[], bytes], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Opens the journals, as `JournalStore` takes it. Raises StoreError."""
        ...

    def key(self, *, make: bool = True) -> bytes:
        """Returns the key. Raises StoreError: There is none, and none is made."""
        ...

    @property
    def trouble(self) -> str | None:
        """Says why nobody need ask now; None: one may."""
        ...


class FilePlace:
    """Keeps journals in a file of a state directory.

    Args:
        state_dir: The state directory.
        auth: Whether the key is in the keyring, and how long that is waited for.
        key: The configuration's, in the place of one that is made.
    """

    def __init__(self, state_dir: Path, auth: AuthSettings, key: bytes | None = None) -> None:
        self._state_dir = state_dir
        self._auth = auth
        self._key = key

    def exists(self) -> bool:
        """Says whether there is the file."""
        return journals_in(self._state_dir).exists()

    def opened(
        self, key: Callable[[], bytes], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Opens the file, or makes it. See `Place`."""
        return opened_file(journals_in(self._state_dir), key, settings, checked=checked)

    def key(self, *, make: bool = True) -> bytes:
        """Returns the key. See `Place`."""
        return self._key or load_key(self._state_dir, self._auth, make=make)

    @property
    def trouble(self) -> None:
        """Says nothing: a file is looked at."""


class SharedPlace:
    """Keeps journals in a PostgreSQL.

    Args:
        server: It.
        key: The key that its brokers share.
        presence: Knows whether it is there; None: it is asked.
    """

    def __init__(self, server: PostgresServer, key: bytes, presence: Presence | None = None) -> None:
        self._server = server
        self._key = key
        self._presence = presence

    def exists(self) -> bool:
        """Says yes: others may have kept something."""
        return True

    def opened(
        self, key: Callable[[], bytes], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Brings the tables to this version, when others can see that this broker lives. See `Place`."""
        if self._presence is not None:
            self._presence.hold()
        return JournalStore(PostgresDatabase(self._server, KIND, POSTGRES_MIGRATIONS), key, settings)

    def key(self, *, make: bool = True) -> bytes:
        """Returns the key. See `Place`."""
        return self._key

    @property
    def trouble(self) -> str | None:
        """Says why PostgreSQL cannot be asked now."""
        return None if self._presence is None else self._presence.trouble


def place_of(settings: Settings, server: PostgresServer | None, presence: Presence | None = None) -> Place:
    """Returns where the journals of a configuration are.

    Args:
        settings: The configuration.
        server: Its PostgreSQL, where it names one.
        presence: As for `SharedPlace`.
    """
    key = settings.cellblock.state.key_bytes
    if server is not None and key is not None:
        return SharedPlace(server, key, presence)
    return FilePlace(settings.state_dir, settings.cellblock.auth, key)


def opened_file(
    path: Path, key: Callable[[], bytes], settings: JournalSettings, *, checked: bool = True
) -> JournalStore:
    """Opens one file of journals; made with mode 0600 when absent. The arguments are as for `SqliteDatabase` and
    `JournalStore`. Raises StoreError."""
    database = SqliteDatabase(path, MIGRATIONS, "kept runs", logger, checked=checked, setup=SETUP)
    return JournalStore(database, key, settings)


def journals_in(state_dir: Path) -> Path:
    """Returns the file of a state directory's journals."""
    return state_dir / JOURNALS
