"""Owner names a broker in the rows of its runs, so that others see whether the broker of a run lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cellblock.base.own_folders import OwnFolder, is_living
from cellblock.base.state_dir import RUN


class RunOwner(Protocol):
    """Names a broker, and sees whether others live; `Owner` and `Presence` do."""

    @property
    def name(self) -> str:
        """Returns the name of this broker. Raises OSError: There can be none."""
        ...

    def is_own(self, name: str) -> bool:
        """Says whether a name is this broker's."""
        ...

    def lives(self, name: str) -> bool:
        """Says whether the broker of a name runs; blocks. Raises StoreError."""
        ...

    def on_change(self, kind: str, listener: Callable[[], object]) -> None:
        """Has `listener` called, in any thread, when another process announces that it has written something of a
        kind."""
        ...

    def close(self) -> None:
        """Gives the broker's name up: runs that go on are anybody's then."""
        ...


class Owner:
    """Holds a lock in the state directory from when it is needed first. Owns it.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._parent = state_dir / RUN
        self._folder: OwnFolder | None = None

    @property
    def name(self) -> str:
        """Returns the name of this broker. Raises OSError: The lock cannot be made."""
        if self._folder is None:
            self._folder = OwnFolder(self._parent, {})
        return self._folder.path.name

    def is_own(self, name: str) -> bool:
        """Says whether a name is this broker's."""
        return self._folder is not None and self._folder.path.name == name

    def lives(self, name: str) -> bool:
        """Says whether the broker of a name runs; one that cannot be looked at does."""
        try:
            return self.is_own(name) or is_living(self._parent, name)
        except OSError:
            return True

    def on_change(self, kind: str, listener: Callable[[], object]) -> None:
        """Does nothing: processes that share files look at their versions."""

    def close(self) -> None:
        """Gives the lock up: runs that go on are anybody's then."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None
