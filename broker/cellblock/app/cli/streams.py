"""Streams sees to a command's standard streams: closed ones, failing ones, and the encoding of what is written.

A command whose output is lost says so by its exit code: 1 means what `help` says of it, and nothing else.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_UNAVAILABLE
from cellblock.base.terminal import for_screen, harmless, json_text, spelled_out

EXIT_PIPE: Final = 128 + signal.SIGPIPE
"""Says that whoever reads standard output has gone: what a program gives that SIGPIPE ends."""


class _Output(io.FileIO):
    """Writes standard output, and remembers why it could not be written, also where somebody caught that."""

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.lost = error
            raise


class _Errors(io.FileIO):
    """Writes standard error; what nobody can be told is no reason to fail."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _Screen(io.TextIOWrapper):
    """A terminal: whatever a command writes, and whoever wrote that, only lines and colours do something there."""

    rows = 0
    """Counts what was written since the last question."""

    def write(self, text: str, /) -> int:
        shown = for_screen(text)
        width = shutil.get_terminal_size().columns
        self.rows += sum(len(line) // width + 1 for line in shown.split("\n")) - 1
        super().write(shown)
        return len(text)

    def draw(self, text: str) -> None:
        super().write(text)


def with_streams(work: Callable[[], int]) -> int:
    """Does the work of a command with streams that are all there, and sees that its output got out.

    Returns:
        Its exit code, or that of an output that cannot be written.
    """
    output = _open()
    try:
        try:
            code = work()
        finally:
            # Here, and not at the interpreter's end, which has exit codes of its own.
            if not sys.stdout.closed:
                sys.stdout.flush()
    except (OSError, SystemExit):
        if output is None or output.lost is None:
            raise
    else:
        if output is None or output.lost is None:
            return code
    # What is still buffered would fail once more at the interpreter's end.
    _open_null(1, os.O_WRONLY)
    if isinstance(output.lost, BrokenPipeError):
        return EXIT_PIPE
    sys.stderr.write(f"cellblock: Standard output cannot be written: {output.lost.strerror}.\n")
    return EXIT_UNAVAILABLE


def write_data(text: str) -> None:
    """Writes JSON, TypeScript or a file's content to standard output: in UTF-8, whatever the locale says."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]
    output.write(text)


def write_json(value: object) -> None:
    """Writes JSON for machines to standard output."""
    write_data(json_text(value) + "\n")


def answer(parsed: argparse.Namespace, data: object, text: str) -> None:
    """Writes JSON where `--json` asks for it, else a text for people."""
    if parsed.json:
        write_json(data)
    else:
        sys.stdout.write(text)


def say(text: str) -> None:
    """Writes what people are told, after the program's name, to standard error."""
    sys.stderr.write(harmless(f"cellblock: {text}\n"))
    sys.stderr.flush()


def warn(*sentences: str | None) -> None:
    for sentence in sentences:
        if sentence is not None:
            say(f"warning: {sentence}")


# ---- inside ------------------------------------------------------------------------------------------


def _open() -> _Output | None:
    """Puts our own streams in place; None where somebody has done so before, such as a test."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Else the next file that is opened is taken for it. What is written to a closed output is to fail.
            _open_null(number, os.O_WRONLY if number == 2 else os.O_RDONLY)
    # None when it was closed.
    stdin, stdout, stderr = (getattr(sys, name) for name in ("stdin", "stdout", "stderr"))
    if stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process
    if stderr is None or stderr is sys.__stderr__:
        sys.stderr = _text(_Errors(2, "w", closefd=False), stderr, line_buffering=True)
    if stdout is not None and stdout is not sys.__stdout__:
        return None
    output = _Output(1, "w", closefd=False)
    sys.stdout = _text(output, stdout, line_buffering=output.isatty())
    return output


def _text(raw: io.FileIO, before: Any, *, line_buffering: bool) -> io.TextIOWrapper:
    """Makes a stream as the interpreter does, but what the encoding lacks is escaped."""
    return (_Screen if raw.isatty() else io.TextIOWrapper)(
        io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=line_buffering,
        # PYTHONUNBUFFERED
        write_through=getattr(before, "write_through", False),
    )


def _open_null(number: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(opened, number)
        os.close(opened)


def asks() -> bool:
    """Says whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def above(stream: object) -> str:
    """Says that what a question is about does not fit the terminal; empty where it does."""
    if not isinstance(stream, _Screen):
        return ""
    rows, stream.rows = stream.rows, 0
    is_cut = rows >= shutil.get_terminal_size().lines
    return f"({rows} lines: the first are above this screen) " if is_cut else ""


def confirmed(question: str, otherwise: str) -> bool:
    """Asks a person. Raises UsageError: Nobody can be asked, who is told what to do otherwise."""
    if not asks():
        raise UsageError(f"nobody can be asked here; use a terminal, or {otherwise}")
    return agreed(question)


def agreed(question: str) -> bool:
    try:
        asked = f"{above(sys.stdout)}{spelled_out(question)} [y/N] "
        return input(asked).strip().lower() in ("y", "yes")
    except EOFError:
        return False
