"""What processes take: CPU time and memory of one, of a tree, and of the whole machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def busy_seconds() -> float:
    """CPU seconds that the whole machine has been busy; the difference of two is what a load cost, and the noise."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def tree(pid: int | None = None) -> Iterable[psutil.Process]:
    """A process and all that it started, one way or another."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid or os.getpid())
        yield root
        yield from root.children(recursive=True)


def workers(pid: int | None = None) -> list[int]:
    """The process ids of the Deno workers in a tree."""
    found: list[int] = []
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):
            if process.name() == "deno":
                found.append(process.pid)
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of one live process, all threads of it and none of its children; 0.0 when it is gone."""
    try:
        # The clock that clock_getcpuclockid(3) gives: psutil's figures have steps of 10 ms.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def private_bytes(pid: int) -> int:
    """Memory of one process that nothing else shares; 0 when it is gone or cannot be read."""
    return _smaps(pid, "Private_")


def pss_bytes(pid: int) -> int:
    """Memory of one process, of what it shares its part."""
    return _smaps(pid, "Pss:")


def _smaps(pid: int, what: str) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_full_info().uss)
        return 0
    lines = (line.split() for line in text.splitlines()[1:])
    return sum(int(words[1]) * 1024 for words in lines if words[0].startswith(what))
