"""What a broker does about the memory of its process.

What start-up makes stays, and Python's collector goes through all of it once when enough has been added: some 50 to
120 ms in which no run goes on. In a program that embeds a broker that is done in an idle moment after the start. In a
process of the broker's own the collector never sees it (`cli.main`), and large blocks of memory go back to the system
as soon as they are free.

Large bodies come and go, in several threads, and glibc keeps most of what they leave between what stays: a third of the
resident memory under load. It is given back when the resident memory has grown.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final


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
"""Delays what is done for memory after the start: a command that ends sooner need not do it at all."""

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

SWITCH_SECONDS: Final = 0.001
"""Bounds how long a thread that computes keeps Python from the event loop, which asks for it anew after each read and
write: with Python's own 5 ms, a run beside a large result of a Python tool takes 0.1 s."""

_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1


is_own = False
"""Says whether the process is a broker's alone."""


def own_process() -> None:
    """Sets Python up for a process that is the broker's alone."""
    global is_own
    is_own = True
    sys.setswitchinterval(SWITCH_SECONDS)


async def collect_when_idle(busy: Callable[[], bool]) -> None:
    """Waits until `busy` says no, and collects once. In a process of the broker's own the C library is told what it may
    keep instead."""
    if is_own:
        _keep_no_large_blocks()
        return
    before, loop = _full_collections(), asyncio.get_running_loop()
    latest = loop.time() + LONGEST_SECONDS
    await asyncio.sleep(AFTER_SECONDS)
    # Nothing tells when the last run has ended.
    while busy() and loop.time() < latest:  # noqa: ASYNC110
        await asyncio.sleep(AGAIN_SECONDS)
    if _full_collections() == before:
        gc.collect()


async def give_back_when_grown() -> None:
    """Gives back what is free of the process's memory after the start, and whenever that has grown, where the system
    tells how much it is."""
    await asyncio.sleep(AFTER_SECONDS)
    # Loading leaves 5 MiB between what stays.
    await asyncio.to_thread(give_back_free_memory)
    least = resident_bytes()
    while least:
        await asyncio.sleep(RESIDENT_SECONDS)
        resident = resident_bytes()
        if resident >= least + GROWN_BYTES:
            await asyncio.to_thread(give_back_free_memory)
            resident = least = resident_bytes()
        least = min(least, resident)


def _keep_no_large_blocks() -> None:
    import ctypes  # 2 ms, and this file is imported before a client is greeted

    with contextlib.suppress(AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


def _full_collections() -> int:
    return gc.get_stats()[2]["collections"]
