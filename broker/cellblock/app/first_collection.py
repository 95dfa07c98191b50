"""Python's first full garbage collection is done in an idle moment after the start instead of in the middle of a run.

What start-up makes stays, and the collector goes through all of it once when enough has been added: some 50 to 100 ms
in which no run goes on. In a process of the broker's own, later ones leave it out, and large blocks of memory go back
to the system as soon as they are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import ClassVar, Final

AFTER_SECONDS: Final = 1.0
"""Delays the first look for an idle moment after the start: a command that ends sooner need not collect at all."""

AGAIN_SECONDS: Final = 0.1
"""Sets the pause between two looks for an idle moment."""

LONGEST_SECONDS: Final = 30.0
"""Bounds the wait for an idle moment: a broker that was busy at every look so far collects then."""

MAPPED_BYTES: Final = 512 * 1024
"""Sets the size from which glibc has a block mapped on its own. By itself it raises that to the largest block that was
freed, up to 32 MiB: after a few large bodies the process kept 60 MiB that nobody used."""

TRIM_BYTES: Final = 8 * 1024 * 1024
"""Sets how much free memory glibc keeps at the end of its heap, which setting the other one would make small."""

_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1


class FirstCollection:
    """Waits until `busy` says no, collects once, and is done. Belongs to the running event loop.

    Attributes:
        freezes: Whether what is left then is in no later collection, and the C library is told what it may keep: where
            the process lives no longer than its broker.
    """

    freezes: ClassVar[bool] = False

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._loop = asyncio.get_running_loop()
        self._before = _full_collections()
        self._latest = self._loop.time() + LONGEST_SECONDS
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(AFTER_SECONDS, self._look)

    @property
    def done(self) -> bool:
        """Says whether the collection is done, or was given up."""
        return self._timer is None

    def give_up(self) -> None:
        """Gives the first full collection up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._busy() and self._loop.time() < self._latest:
            self._timer = self._loop.call_later(AGAIN_SECONDS, self._look)
            return
        self._timer = None
        if _full_collections() == self._before:
            gc.collect()
        if self.freezes:
            gc.freeze()
            _keep_no_large_blocks()


def _keep_no_large_blocks() -> None:
    import ctypes  # 2 ms, and this file is imported before a client is greeted

    with contextlib.suppress(AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


def _full_collections() -> int:
    return gc.get_stats()[2]["collections"]
