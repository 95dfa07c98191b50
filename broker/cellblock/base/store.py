"""Where a broker keeps what outlives it: files of its state directory, or a PostgreSQL that several brokers share.

Who keeps something asks a `Store` for a database or a shelf, and knows nothing of which of the two it is. A shelf holds
small named things: private files, or sealed rows. Whoever reads one waits for nobody. Writes of a shared shelf block:
its `is_shared` says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Final, Protocol

from cellblock.base.database import Database, SqliteDatabase, StoreError, Tables
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import Stamp as FileStamp, read_private, stamp_of, write_private

Stamp = FileStamp | int
"""Tells one version of a thing from another."""

_SUFFIX: Final = ".json"


class NotShared(OSError):
    """Tells that shared state cannot be used; `strerror` says why, `is_away` that it can be when PostgreSQL is back."""

    def __init__(self, why: object, *, is_away: bool) -> None:
        super().__init__(errno.EIO, str(why))
        self.is_away = is_away


class Shelf(Protocol):
    """Holds things of one kind by their names; `FileShelf` and `fleet`'s do. Where others share it, `is_shared`,
    writes block for longer than a disk, and what is there is not known at once."""

    is_shared = False

    @property
    def is_closed(self) -> bool:
        """Says whether the broker that it belongs to has ended; of files that does not matter."""
        return False

    def refresh(self) -> None:
        """Takes over what others have written, where not each look is at the thing itself; blocks. Raises
        NotShared."""

    def wait(self) -> None:
        """Waits, within a bound, until the things of the shelf are known, where they are not at once; blocks."""

    @property
    def place(self) -> str:
        """Says where the shelf is, for people."""
        ...

    def where(self, name: str) -> str:
        """Says where a thing is, for people."""
        ...

    def names(self) -> list[str]:
        """Returns the names of all things, in order. Raises OSError."""
        ...

    def stamp(self, name: str) -> Stamp | None:
        """Returns the stamp of a thing; None without one."""
        ...

    def read(self, name: str) -> bytes:
        """Returns the bytes of a thing. Raises OSError: It cannot be read; FileNotFoundError when there is none."""
        ...

    def write(self, name: str, data: bytes, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes a thing in one step.

        Args:
            name: Its name.
            data: All that it is to hold.
            replace: Whether it may take the place of another one.
            only: The version that it may replace; None: any.

        Returns:
            False where nothing is written: there is one, and `replace` is false, or it is another version.

        Raises:
            OSError: It cannot be written.
        """
        ...

    def remove(self, name: str) -> None:
        """Removes a thing. Raises OSError: It cannot be removed; FileNotFoundError when there is none."""


class FileShelf(Shelf):
    """Holds each thing in a file of one folder, which is made when the first is written.

    Args:
        folder: The folder.
        max_bytes: The most that one may hold.
        secret: Whether a file that others may use is refused.
        stem: Makes a file's name of a thing's; None: it is one.
    """

    def __init__(
        self, folder: Path, max_bytes: int, *, secret: bool = True, stem: Callable[[str], str] | None = None
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._secret = secret
        self._stem = stem

    @property
    def place(self) -> str:
        """Returns the folder's path."""
        return str(self._folder)

    def _file(self, name: str) -> str:
        return f"{self._stem(name) if self._stem else name}{_SUFFIX}"

    def where(self, name: str) -> str:
        return str(self._folder / self._file(name))

    def names(self) -> list[str]:
        """Returns the names of all things; without the folder there are none. See `Shelf`."""
        try:
            with Folder.inside(self._folder) as folder:
                return [name.removesuffix(_SUFFIX) for name in folder.names() if name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []

    def stamp(self, name: str) -> FileStamp | None:
        """Returns the stamp of a thing's file. See `Shelf`."""
        # Looked at with each run: a `Path` takes longer than the look.
        return stamp_of(os.path.join(self._folder, self._file(name)))  # noqa: PTH118

    def read(self, name: str) -> bytes:
        """Reads a thing's file. See `Shelf`, and `read_private`."""
        with Folder.inside(self._folder) as folder:
            return read_private(folder, self._file(name), self._max_bytes, secret=self._secret)

    def write(self, name: str, data: bytes, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes a thing's file. See `Shelf`, and `write_private`."""
        assert not isinstance(only, int)
        with Folder.inside(self._folder, make=True) as folder:
            return write_private(folder, self._file(name), data, replace=replace, only=only)

    def remove(self, name: str) -> None:
        """Removes a thing's file. See `Shelf`."""
        with Folder.inside(self._folder) as folder:
            if not folder.remove(self._file(name)):
                raise FileNotFoundError


LOCKS: Final = "locks"
"""Names the folder of locks in the state directory."""

LOCK_PAUSE_SECONDS: Final = 0.05
"""Separates two tries to get a lock that another process has; the kernel tells nobody when it is free."""


class Store(Protocol):
    """Keeps what outlives a broker; `LocalStore` and `fleet`'s do. Everything but properties blocks.

    Attributes:
        is_shared: Whether brokers on several machines share it.
        keys: The keys that are given: the one that seals, and those that open, too. Empty where none is given.
    """

    is_shared = False
    keys: Sequence[bytes]

    @property
    def trouble(self) -> str | None:
        """Why it cannot be asked now; None: it can, as files always can."""
        return None

    def exists(self, tables: Tables) -> bool:
        """Says whether these tables may be there; a look makes nothing."""
        ...

    def database(self, tables: Tables, *, checked: bool = True) -> Database:
        """Opens tables, for one thread; they are made where there are none. Raises StoreError.

        Args:
            tables: Which.
            checked: Whether a damaged file is set aside; False for a mere look.
        """
        ...

    def shelf(
        self,
        kind: str,
        max_bytes: int,
        *,
        folder: str = "",
        secret: bool = True,
        stem: Callable[[str], str] | None = None,
    ) -> Shelf:
        """Returns the shelf of one kind of small things.

        Args:
            kind: Names it.
            folder: Names the folder of their files; empty: as the kind.
            max_bytes: The most that one thing may hold.
            secret: Whether a file that others may use is refused.
            stem: Makes a file's or a row's name of a thing's; None: it is one.
        """
        ...

    def lock(self, name: str, bound: float) -> contextlib.AbstractContextManager[None]:
        """Holds the lock of a name, which ends with the process at the latest. Raises StoreError: Somebody else has
        held it for `bound` seconds, or it cannot be had."""
        ...

    def sealed(self, place: Sequence[str], body: bytes) -> bytes:
        """Returns bytes as they are kept at a place, which any texts name: sealed where others could read them."""
        return body

    def opened(self, place: Sequence[str], sealed: bytes) -> bytes:
        """Returns the bytes that were sealed for a place. Raises StoreError."""
        return sealed


class LocalStore(Store):
    """Keeps things in the files of a state directory, private to their user.

    Args:
        state_dir: The state directory, which need not be there.
        keys: As `Store.keys`.
    """

    def __init__(self, state_dir: Path, keys: Sequence[bytes] = ()) -> None:
        self.state_dir: Final = state_dir
        self.keys = tuple(keys)

    def exists(self, tables: Tables) -> bool:
        """Says whether the file is there."""
        return (self.state_dir / tables.file).exists()

    def database(self, tables: Tables, *, checked: bool = True) -> SqliteDatabase:
        """Opens a file, or makes it with mode 0600. See `Store`."""
        return SqliteDatabase(self.state_dir / tables.file, tables, checked=checked)

    def shelf(
        self,
        kind: str,
        max_bytes: int,
        *,
        folder: str = "",
        secret: bool = True,
        stem: Callable[[str], str] | None = None,
    ) -> FileShelf:
        """Returns the shelf whose things are the files of a folder. See `Store`."""
        return FileShelf(self.state_dir / (folder or kind), max_bytes, secret=secret, stem=stem)

    @contextlib.contextmanager
    def lock(self, name: str, bound: float) -> Generator[None]:
        """Holds the lock of a file in the folder of locks. See `Store`."""
        file = self.state_dir / LOCKS / f"{name}.lock"
        try:
            with Folder.inside(file.parent, make=True) as folder:
                descriptor = folder.open(file.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"the lock {file} cannot be made: {error.strerror or error}") from None
        try:
            deadline = time.monotonic() + bound
            while not _is_locked(descriptor):
                if time.monotonic() >= deadline:
                    raise StoreError(f"another process has held {file} for {bound:g} s")
                time.sleep(LOCK_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)


def as_text(word: str) -> str:
    """Returns a word of a client or a server as it stands in a row: it may have what is no text in a database."""
    return word.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
