"""The `cellblock` command with a watch in its event loop: how late the loop ran what was due, and why.

    python -m hostile.loop_watch FILE ARGUMENT...

runs `cellblock ARGUMENT...` and appends a line to FILE for each lateness over `LEAST_SECONDS`: when it was over (by the
monotonic clock), how long it was, and how much of it the loop's thread computed, and waited for a core, in seconds. The
rest is waiting for Python's lock, or for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

EVERY_SECONDS: Final = 0.005
"""Between two looks; a stall shorter than this is not one."""

LEAST_SECONDS: Final = 0.005


class Stall(NamedTuple):
    """One lateness of the loop."""

    until: float
    seconds: float
    cpu_seconds: float
    """What the loop's thread computed meanwhile: the part of it that is Cellblock's own doing."""

    coreless_seconds: float = 0.0
    """How long that thread could have run, and had no core."""


class LoopWatch:
    """Looks whether its loop runs in time, for as long as that loop does."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._due = 0.0
        self._cpu = 0.0
        self._coreless = 0.0
        self._statistics: int | None = None
        with contextlib.suppress(OSError):
            self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to look."""
        self._next(loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due, self._cpu = time.monotonic() + EVERY_SECONDS, time.thread_time()
        self._coreless = self._coreless_seconds()
        loop.call_later(EVERY_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        if (late := now - self._due) > LEAST_SECONDS:
            coreless = self._coreless_seconds() - self._coreless
            self._file.write(f"{now:.6f} {late:.6f} {time.thread_time() - self._cpu:.6f} {coreless:.6f}\n")
        self._next(loop)

    def _coreless_seconds(self) -> float:
        """Returns how long this thread has waited for a core so far; 0 where the system does not say."""
        if self._statistics is None:
            return 0.0
        return int(os.pread(self._statistics, 100, 0).split()[1]) / 1e9


def stalls(file: Path, begin: float, end: float) -> list[Stall]:
    """What a watch has written of stalls that ended after `begin` and began before `end`."""
    text = file.read_text("ascii") if file.exists() else ""
    found = [Stall(*map(float, line.split())) for line in text.splitlines() if line.count(" ") == 3]
    return [stall for stall in found if begin < stall.until and stall.until - stall.seconds < end]


def main() -> int:
    """Runs the command; the first loop that runs is the broker's."""
    file = Path(sys.argv[1]).open("a", encoding="ascii", buffering=1)  # noqa: SIM115 - as long as the process
    run_forever = asyncio.BaseEventLoop.run_forever

    def watched(self: asyncio.BaseEventLoop) -> Any:
        asyncio.BaseEventLoop.run_forever = run_forever
        LoopWatch(file).begin(self)
        return run_forever(self)

    asyncio.BaseEventLoop.run_forever = watched
    from cellblock.app.cli.main import main as cellblock

    sys.argv[1:] = sys.argv[2:]
    return cellblock()


if __name__ == "__main__":
    sys.exit(main())
