"""Room bounds what the journals of a process hold together: each has its own bound, and there may be many runs."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

TOTAL_BYTES: Final = 256 * 1024 * 1024
"""Bounds all journals of a process that are recorded: four as large as one may be, or thousands as they mostly are."""


class JournalRoom:
    """Counts what journals hold.

    Args:
        most_bytes: What they may hold together.
    """

    def __init__(self, most_bytes: int = TOTAL_BYTES) -> None:
        self.most_bytes = most_bytes
        self._held = 0
        self._returned: deque[int] = deque()
        self._taking = threading.Lock()

    def take(self, size: int) -> bool:
        """Counts more bytes, or fewer; gives whether they fit. Those that do not are to be given back."""
        with self._taking:
            while self._returned:
                self._held -= self._returned.popleft()
            self._held += size
            return self._held <= self.most_bytes

    def give_back(self, size: int) -> None:
        """Counts bytes no more. A collector may call it anywhere, also within `take`: so it takes no lock."""
        self._returned.append(size)


ROOM: Final = JournalRoom()
"""Is that of this process."""
