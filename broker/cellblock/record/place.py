"""Where the journals of brokers are: in the database of a store, under keys that are given or made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cellblock.base.settings.auth import AuthSettings
from cellblock.base.settings.journal import JournalSettings
from cellblock.base.store import LocalStore, Store, opened_file
from cellblock.record.key import load_key
from cellblock.record.store import JournalStore
from cellblock.record.tables import JOURNAL_TABLES


class Place:
    """Opens the journals of a store, and has their key. All but `trouble` blocks.

    Args:
        store: The store.
        auth: Whether a key that is made is in the keyring, and how long that is waited for.
    """

    def __init__(self, store: Store, auth: AuthSettings) -> None:
        self._store = store
        self._auth = auth

    def exists(self) -> bool:
        """Says whether journals may be kept there; a look makes nothing."""
        return self._store.exists(JOURNAL_TABLES)

    def opened(
        self, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
    ) -> JournalStore:
        """Opens the journals, as `JournalStore` takes them. Raises StoreError."""
        return JournalStore(self._store.database(JOURNAL_TABLES, checked=checked), keys, settings)

    def keys(self, *, make: bool = True) -> Sequence[bytes]:
        """Returns the keys of the journals, as `Cipher` takes them. Raises StoreError: There is none, and none is
        made."""
        if self._store.keys or not isinstance(self._store, LocalStore):
            return self._store.keys
        return (load_key(self._store.state_dir, self._auth, make=make),)

    @property
    def trouble(self) -> str | None:
        """Says why the journals cannot be asked now; None: they can."""
        return self._store.trouble


def opened_journals(
    path: Path, keys: Callable[[], Sequence[bytes]], settings: JournalSettings, *, checked: bool = True
) -> JournalStore:
    """Opens one file of journals; made with mode 0600 when absent. Raises StoreError."""
    return JournalStore(opened_file(path, JOURNAL_TABLES, checked=checked), keys, settings)
