"""The memory of the process, as the system and its C library see it."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path


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
