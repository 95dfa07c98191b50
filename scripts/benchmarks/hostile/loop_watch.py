"""The `cellblock` command with a watch in its event loop: how late the loop ran what was due, and what it computed.

    python -m hostile.loop_watch FILE ARGUMENT...

runs `cellblock ARGUMENT...` and appends a line to FILE for each lateness over `LEAST_SECONDS`: when it was over (by the
monotonic clock), how long it was, and the CPU time that the loop's thread had meanwhile, in seconds.
"""

from __future__ import annotations

import asyncio
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


class LoopWatch:
    """Looks whether its loop runs in time, for as long as that loop does."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._due = 0.0
        self._cpu = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to look."""
        self._next(loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due, self._cpu = time.monotonic() + EVERY_SECONDS, time.thread_time()
        loop.call_later(EVERY_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        if (late := now - self._due) > LEAST_SECONDS:
            self._file.write(f"{now:.6f} {late:.6f} {time.thread_time() - self._cpu:.6f}\n")
        self._next(loop)


def stalls(file: Path, begin: float, end: float) -> list[Stall]:
    """What a watch has written of stalls that ended after `begin` and began before `end`."""
    text = file.read_text("ascii") if file.exists() else ""
    found = [Stall(*map(float, line.split())) for line in text.splitlines() if line.count(" ") == 2]
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
    from cellblock.cli.main import main as cellblock

    sys.argv[1:] = sys.argv[2:]
    return cellblock()


if __name__ == "__main__":
    sys.exit(main())
