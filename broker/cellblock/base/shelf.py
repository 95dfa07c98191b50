"""A shelf holds small named things that several brokers see: private files of a state directory, or sealed rows of a
PostgreSQL.

Whoever reads waits for nobody. Writes of a shared shelf block: its `is_shared` says so.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, Protocol

from cellblock.base.database import StoreError
from cellblock.base.shared_rows import SharedRows
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import Stamp as FileStamp
from cellblock_worker.base.private_files import TooLarge, read_private, stamp_of, write_private

Stamp = FileStamp | int
"""Tells one version of a thing from another."""

_SUFFIX: Final = ".json"


class NotShared(OSError):
    """Tells that shared state cannot be used now; `strerror` says why."""

    def __init__(self, why: object) -> None:
        super().__init__(errno.EIO, str(why))


class Shelf(Protocol):
    """Holds things of one kind by their names; `FileShelf` and `SharedShelf` do."""

    @property
    def is_shared(self) -> bool:
        """Says whether writes block for longer than a disk, and what is there is not known at once."""
        ...

    def wait(self) -> None:
        """Waits, within a bound, until the things of the shelf are known; blocks."""
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

    def __init__(
        self, folder: Path, max_bytes: int, *, secret: bool = True, stem: Callable[[str], str] | None = None
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._secret = secret
        self._stem = stem

    def wait(self) -> None:
        """Waits for nobody: files need no first look."""

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
            if folder.look(self.path(name).name) is None:
                raise FileNotFoundError
            folder.remove(self.path(name).name)


class SharedShelf:
    """Holds things in the rows that brokers share.

    Args:
        rows: The rows.
        kind: Of which kind they are.
        max_bytes: The most that one may hold.
        stem: Makes a row's name of a thing's; None: it is one.
    """

    is_shared = True

    def __init__(
        self, rows: SharedRows, kind: str, max_bytes: int, *, stem: Callable[[str], str] | None = None
    ) -> None:
        self._rows, self._kind, self._max_bytes = rows, kind, max_bytes
        self._stem = stem or str

    def wait(self) -> None:
        """Waits for the first look; where there was none, whoever reads is told so."""
        with contextlib.suppress(StoreError):
            self._rows.wait()

    def where(self, name: str) -> str:
        return f"{self._stem(name)} among the {self._kind} in PostgreSQL"

    def names(self) -> list[str]:
        """Returns the names of the shelf's things, as the rows are known here. See `Shelf`."""
        self._know()
        return self._rows.names(self._kind)

    def stamp(self, name: str) -> int | None:
        """Returns the version of a thing's row, as it is known here. See `Shelf`."""
        return self._rows.version(self._kind, self._stem(name))

    def read(self, name: str) -> bytes:
        """Opens the sealed row of a thing, as it is known here. See `Shelf`."""
        self._know()
        with _worded():
            found = self._rows.body(self._kind, self._stem(name))
        if found is None:
            raise FileNotFoundError
        return found

    def write(self, name: str, data: bytes, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes the row; blocks. See `Shelf`."""
        assert not isinstance(only, tuple)
        if len(data) > self._max_bytes:
            raise TooLarge(Path(self.where(name)), self._max_bytes)
        with _worded():
            return self._rows.put(self._kind, self._stem(name), data, replace=replace, only=only)

    def remove(self, name: str) -> None:
        """Removes the row; blocks. See `Shelf`."""
        with _worded():
            if not self._rows.remove(self._kind, self._stem(name)):
                raise FileNotFoundError

    def _know(self) -> None:
        if not self._rows.is_known:
            raise NotShared("PostgreSQL was not reached yet")


@contextlib.contextmanager
def _worded() -> Generator[None]:
    try:
        yield
    except StoreError as error:
        raise NotShared(error) from None


def shelf_in(
    where: Path | SharedRows,
    kind: str,
    max_bytes: int,
    *,
    secret: bool = True,
    stem: Callable[[str], str] | None = None,
) -> Shelf:
    """Returns the shelf for one kind of thing: a folder of its own, or rows. The rest is as for those two."""
    if isinstance(where, Path):
        return FileShelf(where, max_bytes, secret=secret, stem=stem)
    return SharedShelf(where, kind, max_bytes, stem=stem)
