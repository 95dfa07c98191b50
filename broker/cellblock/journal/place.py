"""A place is where brokers keep their journals: a file of the state directory, or a PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from cellblock.base.postgresql import PostgresDatabase
from cellblock.base.shared_state import SharedState
from cellblock.base.sqlite import SqliteDatabase
from cellblock.base.state_dir import JOURNALS
from cellblock.config.auth import AuthSettings
from cellblock.config.journal import JournalSettings
from cellblock.journal.key import load_key
from cellblock.journal.store import JournalStore, logger
from cellblock.journal.tables import MIGRATIONS, POSTGRES_MIGRATIONS, SETUP

KIND: Final = "journals"


class Place(Protocol):
    """Opens the journals, and has their key; `FilePlace` and `SharedPlace` do. All but `trouble` blocks."""

    def exists(self) -> bool:
        """Says whether journals may be kept there; a look makes nothing."""
        ...

    def opened(
        self, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Opens the journals, as `JournalStore` takes it. Raises StoreError."""
        ...

    def keys(self, *, make: bool = True) -> Sequence[bytes]:
        """Returns the keys of the journals, as `Cipher` takes them. Raises StoreError: There is none, and none is
        made."""
        ...

    @property
    def trouble(self) -> str | None:
        """Says why the journals cannot be asked now; None: they can."""
        ...


class FilePlace:
    """Keeps journals in a file of a state directory.

    Args:
        state_dir: The state directory.
        auth: Whether the key is in the keyring, and how long that is waited for.
        keys: The configuration's, in the place of one that is made.
    """

    def __init__(self, state_dir: Path, auth: AuthSettings, keys: Sequence[bytes] = ()) -> None:
        self._state_dir = state_dir
        self._auth = auth
        self._keys = keys

    def exists(self) -> bool:
        """Says whether the file of journals is there."""
        return journals_in(self._state_dir).exists()

    def opened(
        self, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Opens the file of journals, or makes it. See `Place`."""
        return opened_file(journals_in(self._state_dir), keys, settings, checked=checked)

    def keys(self, *, make: bool = True) -> Sequence[bytes]:
        """Returns the keys of the file of journals. See `Place`."""
        return self._keys or (load_key(self._state_dir, self._auth, make=make),)

    @property
    def trouble(self) -> None:
        """Says that nothing is wrong: a file can always be asked."""


class SharedPlace:
    """Keeps journals in a PostgreSQL.

    Args:
        shared: What this process has of it.
    """

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    def exists(self) -> bool:
        """Says that journals may be there: other brokers may have kept them in the PostgreSQL."""
        return True

    def opened(
        self, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Brings the tables to this version, when others can see that this broker lives. See `Place`."""
        self._shared.hold()
        return JournalStore(PostgresDatabase(self._shared.server, KIND, POSTGRES_MIGRATIONS), keys, settings)

    def keys(self, *, make: bool = True) -> Sequence[bytes]:
        """Returns the keys that the brokers share. See `Place`."""
        return self._shared.keys.keys

    @property
    def trouble(self) -> str | None:
        """Says why PostgreSQL cannot be asked now."""
        presence = self._shared.presence
        return None if presence is None else presence.trouble


def place_of(state_dir: Path, keys: Sequence[bytes], auth: AuthSettings, shared: SharedState | None) -> Place:
    """Returns where journals are: in the PostgreSQL that this process shares, else in a file of the state directory,
    under keys that are given or, where there are none, one that `auth` says where to keep."""
    return FilePlace(state_dir, auth, keys) if shared is None else SharedPlace(shared)


def opened_file(
    path: Path, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
) -> JournalStore:
    """Opens one file of journals; made with mode 0600 when absent. The arguments are as for `SqliteDatabase` and
    `JournalStore`. Raises StoreError."""
    database = SqliteDatabase(path, MIGRATIONS, "kept runs", logger, checked=checked, setup=SETUP)
    return JournalStore(database, keys, settings)


def journals_in(state_dir: Path) -> Path:
    """Returns the file of a state directory's journals."""
    return state_dir / JOURNALS
