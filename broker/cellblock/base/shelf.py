"""A shelf holds small named things that several brokers see: private files of a state directory, or sealed rows of a
PostgreSQL.

Whoever reads waits for nobody. Writes of a shared shelf block: its `is_shared` says so.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import Stamp as FileStamp
from cellblock_worker.base.private_files import read_private, stamp_of, write_private

Stamp = FileStamp | int
"""Tells one version of a thing from another."""

_SUFFIX: Final = ".json"


class NotShared(OSError):
    """Tells that shared state cannot be used; `strerror` says why, `is_away` that it can be when PostgreSQL is back."""

    def __init__(self, why: object, *, is_away: bool) -> None:
        super().__init__(errno.EIO, str(why))
        self.is_away = is_away


class Shelf(Protocol):
    """Holds things of one kind by their names; `FileShelf` and `fleet`'s do."""

    @property
    def is_shared(self) -> bool:
        """Says whether writes block for longer than a disk, and what is there is not known at once."""
        ...

    @property
    def is_closed(self) -> bool:
        """Says whether the broker that it belongs to has ended."""
        ...

    def refresh(self) -> None:
        """Takes over what others have written; blocks. Raises NotShared."""
        ...

    def wait(self) -> None:
        """Waits, within a bound, until the things of the shelf are known; blocks."""
        ...

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
        ...


class FileShelf:
    """Holds each thing in a file of one folder, which is made when the first is written.

    Args:
        folder: The folder.
        max_bytes: The most that one may hold.
        secret: Whether a file that others may use is refused.
        stem: Makes a file's name of a thing's; None: it is one.
    """

    is_shared = False
    is_closed = False

    def __init__(
        self, folder: Path, max_bytes: int, *, secret: bool = True, stem: Callable[[str], str] | None = None
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._secret = secret
        self._stem = stem

    def wait(self) -> None:
        """Waits for nobody: files need no first look."""

    def refresh(self) -> None:
        """Does nothing: each look is at the file itself."""

    @property
    def place(self) -> str:
        """Returns the folder's path."""
        return str(self._folder)

    def path(self, name: str) -> Path:
        return self._folder / f"{self._stem(name) if self._stem else name}{_SUFFIX}"

    def where(self, name: str) -> str:
        return str(self.path(name))

    def names(self) -> list[str]:
        """Returns the names of all things; without the folder there are none. See `Shelf`."""
        try:
            with Folder.inside(self._folder) as folder:
                return [name.removesuffix(_SUFFIX) for name in folder.names() if name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []

    def stamp(self, name: str) -> FileStamp | None:
        """Returns the stamp of a thing's file. See `Shelf`."""
        return stamp_of(self.path(name))

    def read(self, name: str) -> bytes:
        """Reads a thing's file. See `Shelf`, and `read_private`."""
        with Folder.inside(self._folder) as folder:
            return read_private(folder, self.path(name).name, self._max_bytes, secret=self._secret)

    def write(self, name: str, data: bytes, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes a thing's file. See `Shelf`, and `write_private`."""
        assert not isinstance(only, int)
        with Folder.inside(self._folder, make=True) as folder:
            return write_private(folder, self.path(name).name, data, replace=replace, only=only)

    def remove(self, name: str) -> None:
        """Removes a thing's file. See `Shelf`."""
        with Folder.inside(self._folder) as folder:
            if not folder.remove(self.path(name).name):
                raise FileNotFoundError
