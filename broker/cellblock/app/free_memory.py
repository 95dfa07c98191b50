"""FreeMemory has the C library give back to the system what a broker uses no more.

Large bodies come and go, in several threads, and glibc keeps most of what they leave between what stays: a third of the
resident memory under load.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Final

from cellblock.base.memory import give_back_free_memory, resident_bytes
from cellblock.base.threads import DaemonThread

LOOK_SECONDS: Final = 0.5
"""Sets the pause between two looks at the resident memory."""

GROWN_BYTES: Final = 16 * 1024 * 1024
"""Sets by how much the resident memory has grown when free memory is given back, which takes a thread up to 30 ms."""


class FreeMemory:
    """Looks at the resident memory of the process, and gives back what is free of it when it has grown. Belongs to the
    running event loop; does nothing where the system does not tell how much that is.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = DaemonThread("free memory")
        self._giving_back: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._least = resident_bytes()
        if self._least:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Ends the looks at the broker's memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._thread.end()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if self._giving_back is not None and not self._giving_back.done():
            return
        resident = resident_bytes()
        if resident >= self._least + GROWN_BYTES:
            self._giving_back = self._thread.submit(self._give_back)
        else:
            self._least = min(self._least, resident)

    def _give_back(self) -> None:
        give_back_free_memory()
        self._least = resident_bytes()
