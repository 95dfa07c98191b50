"""Room bounds what the journals of a process hold, of one client and together: each has its own bound, and there may be
many runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.offload.budget import ALL_BYTES, CLIENT_BYTES, ByteBudget


class NoRoom(StoreError):
    """Tells that a run does not go on for now: what it holds has no place beside what others hold."""


class JournalRoom:
    """Counts the bytes that journals hold in memory. Every thread may use it.

    Args:
        each: What those of one client may hold together.
        whole: What all may hold together.
    """

    def __init__(self, each: int = CLIENT_BYTES, whole: int = ALL_BYTES) -> None:
        self._each = each
        self._budget = ByteBudget(each, whole, "its client", "journals")
        self._returned: deque[tuple[str, int]] = deque()
        self._taking = threading.Lock()

    def take(self, client: str, size: int) -> None:
        """Counts more bytes of a client, or fewer. Raises OverBudget: they do not fit, and are not counted."""
        with self._taking:
            while self._returned:
                self._budget.give_back(*self._returned.popleft())
            self._budget.take(client, size)

    def give_back(self, client: str, size: int) -> None:
        """Takes bytes off the count. A collector may call it anywhere, also within `take`: so it takes no lock."""
        self._returned.append((client, size))

    @contextmanager
    def holding(self, client: str, size: int) -> Generator[None]:
        """Counts the bytes that a run has on disk while it is read. More than a client's share counts as that: an
        earlier release may have written it. Raises OverBudget as `take`."""
        size = min(size, self._each)
        self.take(client, size)
        try:
            yield
        finally:
            self.give_back(client, size)


ROOM: Final = JournalRoom()
"""Counts the bytes that the journals of this process hold in memory."""
