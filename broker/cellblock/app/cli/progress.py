"""Progress shows `cellblock run` at work: one line on stderr, when that is a terminal; wiped at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Generator
from typing import IO, Final

from cellblock.base.tasks import beside
from cellblock.base.terminal import CLEAR_TO_END_OF_LINE, Painter, milliseconds, plain
from cellblock.run.events import RunFacts, Watcher
from cellblock.run.response import LogEntry

REDRAW_SECONDS: Final = 0.1

FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress(Watcher):
    """Draws one run on a line of a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._paint = Painter(stream)
        self._run: RunFacts | None = None
        self._log = ""
        self._frame = 0
        self._held = False
        self._since = time.monotonic()

    def run_accepted(self, run: RunFacts) -> None:
        """Takes the run that is shown."""
        self._run, self._since = run, run.accepted

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        self._log = entry.message

    def line(self, width: int) -> str:
        """Returns what is shown now, in at most `width` columns, without colours."""
        state = "connecting" if self._run is None else self._run.state
        parts = [f"{state} {milliseconds((time.monotonic() - self._since) * 1000)}"]
        if self._run is not None and self._run.calls:
            waiting = [call for call in self._run.calls if not call.over]
            parts.append(f"{len(self._run.calls) - len(waiting)} of {len(self._run.calls)} calls done")
            parts += [f"in {call.server}.{call.tool}" for call in waiting[-1:]]
        if self._log:
            parts.append(self._log.rstrip().rpartition("\n")[2])
        return plain(" · ".join(parts), width)

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Takes the progress line away while the block runs: others may write."""
        self.wipe()
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def draw(self) -> None:
        if self._held:
            return
        self._frame += 1
        width = shutil.get_terminal_size().columns - 3
        spinner = self._paint(FRAMES[self._frame % len(FRAMES)], "cyan")
        self._write(f"\r{spinner} {self.line(width)}{CLEAR_TO_END_OF_LINE}")

    def wipe(self) -> None:
        self._write(f"\r{CLEAR_TO_END_OF_LINE}")

    def _write(self, text: str) -> None:
        # A terminal that has gone away, or has no such characters, must not end the run.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


@contextlib.asynccontextmanager
async def progress_on(stream: IO[str] = sys.stderr) -> AsyncGenerator[Progress | None]:
    """Draws the progress of a run while the block runs; gives None, and writes nothing, where the stream is no
    terminal."""
    if not stream.isatty():
        yield None
        return
    progress = Progress(stream)

    async def redraw() -> None:
        while True:
            progress.draw()
            await asyncio.sleep(REDRAW_SECONDS)

    try:
        async with beside(redraw()):
            yield progress
    finally:
        progress.wipe()
