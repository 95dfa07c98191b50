"""A shelf whose things are sealed rows that brokers share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path

from cellblock.base.database import Away, StoreError
from cellblock.base.shelf import NotShared, Stamp
from cellblock.fleet.shared_rows import SharedRows
from cellblock_worker.base.private_files import TooLarge


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

    @property
    def is_closed(self) -> bool:
        """Says whether the broker has ended."""
        return self._rows.is_closed

    def refresh(self) -> None:
        """Looks at the rows. See `Shelf`."""
        with _worded():
            self._rows.read()

    def wait(self) -> None:
        """Waits for the first look; where there was none, whoever reads is told so."""
        with contextlib.suppress(StoreError):
            self._rows.wait()

    @property
    def place(self) -> str:
        """Names PostgreSQL, for people."""
        return "What brokers share in PostgreSQL"

    def where(self, name: str) -> str:
        """Names the row of a thing, for people."""
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
            raise NotShared("PostgreSQL was not reached yet", is_away=True)


@contextlib.contextmanager
def _worded() -> Generator[None]:
    try:
        yield
    except StoreError as error:
        raise NotShared(error, is_away=isinstance(error, Away)) from None
