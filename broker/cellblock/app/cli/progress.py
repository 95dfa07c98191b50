"""What `run` shows, and asks about calls, on its terminal: one line of progress on stderr, wiped at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from typing import IO, Final

from cellblock.app.cli.streams import above
from cellblock.base.terminal import CLEAR_TO_END_OF_LINE, Painter, draw, milliseconds, plain
from cellblock.run.events import RunFacts, Watcher
from cellblock.run.policy.asking import Approver, Question, Verdict
from cellblock.run.response import LogEntry

REDRAW_SECONDS: Final = 0.1

MAX_CHARS: Final = 500
"""Bounds a line, of which a terminal shows what it has room for."""

FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class RunProgress(Watcher):
    """Follows one run, and words how far it is."""

    def __init__(self) -> None:
        self._run: RunFacts | None = None
        self._log = ""
        self._since = time.monotonic()

    def run_accepted(self, run: RunFacts) -> None:
        """Takes the run that is followed."""
        self._run, self._since = run, run.accepted

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        self._log = entry.message

    def line(self) -> str:
        """Returns how far the run is."""
        state = "connecting" if self._run is None else self._run.state
        parts = [f"{state} {milliseconds((time.monotonic() - self._since) * 1000)}"]
        if self._run is not None and self._run.calls:
            waiting = [call for call in self._run.calls if not call.over]
            parts.append(f"{len(self._run.calls) - len(waiting)} of {len(self._run.calls)} calls done")
            parts += [f"in {call.server}.{call.tool}" for call in waiting[-1:]]
        if self._log:
            parts.append(self._log.rstrip().rpartition("\n")[2])
        return plain(" · ".join(parts), MAX_CHARS)

    async def shown_by(self, show: Callable[[str], object]) -> None:
        """Gives the line to `show`, again and again."""
        while True:
            show(self.line())
            await asyncio.sleep(REDRAW_SECONDS)


class Progress:
    """Draws a line on a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._paint = Painter(stream)
        self._frame = 0
        self._held = False

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Takes the progress line away while the block runs: others may write."""
        self.wipe()
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def show(self, text: str) -> None:
        """Draws the line with this text."""
        if self._held:
            return
        self._frame += 1
        width = shutil.get_terminal_size().columns - 3
        spinner = self._paint(FRAMES[self._frame % len(FRAMES)], "cyan")
        self._write(f"\r{spinner} {plain(text, width)}{CLEAR_TO_END_OF_LINE}")

    def wipe(self) -> None:
        self._write(f"\r{CLEAR_TO_END_OF_LINE}")

    def _write(self, text: str) -> None:
        # A terminal that has gone away, or has no such characters, must not end the run.
        with contextlib.suppress(OSError, ValueError):
            draw(self._stream, text)
            self._stream.flush()


@contextlib.contextmanager
def progress_on(stream: IO[str] = sys.stderr) -> Generator[Progress | None]:
    """Lets the block draw a line of progress, which is wiped at its end; gives None where the stream is no terminal."""
    if not stream.isatty():
        yield None
        return
    progress = Progress(stream)
    progress.show("connecting")
    try:
        yield progress
    finally:
        progress.wipe()


PROMPT: Final = "Allow it? [y/N] "

MAX_LINE_BYTES: Final = 4096
"""Bounds a line that is typed: a terminal gives no longer one."""

ANSWERS: Final = {
    "y": Verdict.ACCEPTED,
    "yes": Verdict.ACCEPTED,
    "always": Verdict.ALWAYS,
    "n": Verdict.DECLINED,
    "no": Verdict.DECLINED,
}
"""Maps what is typed to verdicts. Nothing typed is no; anything else is asked again."""


def approver_of(ask: Callable[[str], Awaitable[Verdict]] | None) -> Approver | None:
    """Makes an approver of what asks a question that is worded already."""
    if ask is None:
        return None

    async def approve(question: Question) -> Verdict:
        from cellblock.serve.mcp.approvals import question_text

        text = question_text(question)
        return await ask(text if question.flow is None else f"{text}\nFor that, type: always")

    return approve


def asker_on_terminal(progress: Progress | None) -> Callable[[str], Awaitable[Verdict]] | None:
    """Makes what asks at the terminal of this process, and holds `progress` meanwhile; None where nobody sits."""
    stdin, stderr = sys.stdin, sys.stderr
    try:
        if not (stdin.isatty() and stderr.isatty()):
            return None
        descriptor = stdin.fileno()
    except (OSError, ValueError):
        return None

    async def ask(question: str) -> Verdict:
        with progress.held() if progress is not None else contextlib.nullcontext():
            _forget_typed(descriptor)
            above(stderr)  # what it counts until now is about something else
            stderr.write(question + "\n")
            prompt = above(stderr) + PROMPT
            line = b""
            try:
                while True:
                    stderr.write(prompt)
                    stderr.flush()
                    line = await _line(descriptor)
                    typed = line.decode("utf-8", "replace").strip().lower() or "n"
                    verdict = ANSWERS.get(typed) if line else Verdict.CANCELLED
                    if verdict is not None:
                        return verdict
            finally:
                if not line.endswith(b"\n"):
                    stderr.write("\n")

    return ask


async def _line(descriptor: int) -> bytes:
    """Returns the next line that is typed; empty at the end of the input."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, MAX_LINE_BYTES)
    except OSError:
        # The terminal has gone.
        return b""


def _forget_typed(descriptor: int) -> None:
    """Drops what was typed before the question was there: that is no answer to it."""
    import termios

    with contextlib.suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)
