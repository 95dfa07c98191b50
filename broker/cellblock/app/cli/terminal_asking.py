"""Terminal_asking asks the person at the terminal of `cellblock run` whether a call may be made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final

from cellblock.run.policy.asking import Approver, Question, Verdict

if TYPE_CHECKING:
    from cellblock.app.cli.progress import Progress

PROMPT: Final = "Allow it? [y/N] "

MAX_LINE_BYTES: Final = 4096
"""Bounds a line that is typed: a terminal gives no longer one."""

ANSWERS: Final = {
    "y": Verdict.ACCEPTED,
    "yes": Verdict.ACCEPTED,
    "n": Verdict.DECLINED,
    "no": Verdict.DECLINED,
}
"""Maps what is typed to verdicts. Nothing typed is no; anything else is asked again."""


def asker_on_terminal(progress: Progress | None) -> Approver | None:
    """Makes what asks at the terminal of this process, and holds `progress` meanwhile; None where nobody sits."""
    stdin, stderr = sys.stdin, sys.stderr
    try:
        if not (stdin.isatty() and stderr.isatty()):
            return None
        descriptor = stdin.fileno()
    except (OSError, ValueError):
        return None

    async def ask(question: Question) -> Verdict:
        from cellblock.serve.mcp.approvals import question_text

        with progress.held() if progress is not None else contextlib.nullcontext():
            _forget_typed(descriptor)
            stderr.write(question_text(question) + "\n")
            line = b""
            try:
                while True:
                    stderr.write(PROMPT)
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
