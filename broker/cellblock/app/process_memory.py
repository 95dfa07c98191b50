"""What a broker does about the memory of its process.

What start-up makes stays, and Python's collector goes through all of it once when enough has been added: some 50 to
100 ms in which no run goes on. That is done in an idle moment after the start. In a process of the broker's own,
later collections leave it out, and large blocks of memory go back to the system as soon as they are free.

Large bodies come and go, in several threads, and glibc keeps most of what they leave between what stays: a third of the
resident memory under load. It is given back when the resident memory has grown.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar, Final

from cellblock.base.threads import DaemonThread


def resident_bytes() -> int:
    """Returns the resident memory of the process in bytes; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def give_back_free_memory() -> None:
    """Has glibc give memory back to the system that nobody uses; does nothing with another C library."""
    import ctypes  # 2 ms, and the broker is to greet its client

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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

RESIDENT_SECONDS: Final = 0.5
"""Sets the pause between two looks at the resident memory."""

GROWN_BYTES: Final = 16 * 1024 * 1024
"""Sets by how much the resident memory has grown when free memory is given back, which takes a thread up to 30 ms."""

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
            self._timer = self._loop.call_later(RESIDENT_SECONDS, self._look)

    def stop(self) -> None:
        """Ends the looks at the broker's memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._thread.end()

    def _look(self) -> None:
        self._timer = self._loop.call_later(RESIDENT_SECONDS, self._look)
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
