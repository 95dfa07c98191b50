"""CPU time and private memory of a daemon's whole process tree."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from cellblock_worker.worker.usage import read_usage


def busy_seconds() -> float:
    """CPU seconds that the whole machine has been busy; the difference of two is what a load cost, and the noise."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def private_bytes(pid: int) -> int:
    """Memory of one process that nothing else shares; 0 when it is gone or cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_full_info().uss)
        return 0
    lines = (line.split() for line in text.splitlines()[1:])
    return sum(int(words[1]) * 1024 for words in lines if words[0].startswith("Private_"))


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
    """CPU time of one live process, without its children; 0.0 when it is gone."""
    try:
        return read_usage(pid).cpu_seconds
    except OSError:
        return 0.0
