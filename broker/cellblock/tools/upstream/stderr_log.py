"""Brings the stderr of a started server into a log file: without the configuration's secrets, and capped."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Final, NamedTuple, TextIO

from cellblock.base.errors import shorten
from cellblock.base.redaction import Redactor
from cellblock.tools.upstream.definitions import file_stem
from cellblock_worker.base.folders import Folder, InTheWay

logger = logging.getLogger("cellblock.tools.upstream")

CAP_BYTES: Final = 1024 * 1024
"""Bounds a log file; past it, the file is started anew."""

MAX_LINE_BYTES: Final = 64 * 1024
"""Bounds what is redacted and written at a time of a line without end."""

LAST_CHARS: Final = 4096
"""Bounds the text in which the last error is looked for: a stack and a version may stand behind it."""

PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
"""Matches the names that are in the name of a log file as they are."""

HASH_CHARS: Final = 8
"""Tells servers apart of whose names the same is plain, as `a.b` and `a b`."""


_TELLS: Final = re.compile(
    r"^(?!For further information).*(?:error|is not provided by package)", re.IGNORECASE
)
_NPM: Final = re.compile(r"npm (?:error|ERR!)")
_NPM_SAYS: Final = re.compile(
    r"npm (?:error|ERR!) (?!(?:code|errno|syscall|path|dest|A complete log)\b)(?:\d+ )?\w"
)
_NAME_ALONE: Final = re.compile(r"[\w.]++:?")
_CLASS_WORDS: Final = ("Error", "Exception", "Exit", "Interrupt")
_CAUSE: Final = re.compile(r"(?:cause|Caused by):")
_COUNT: Final = re.compile(r"(?<!\d)\d++ validation errors? for ")


def _is_class_alone(line: str) -> bool:
    return _NAME_ALONE.fullmatch(line) is not None and any(word in line for word in _CLASS_WORDS)


def upstream_log(log_dir: Path, name: str) -> Path:
    """Says where the stderr of a server goes, by its name in the configuration; one that is not plain has a hash."""
    stem = name if PLAIN.fullmatch(name) else file_stem(name, name, HASH_CHARS)
    return log_dir / f"upstream-{stem}.log"


def last_said(text: str) -> str | None:
    """Returns the last line that tells of an error, else the last one; None where there is none. A class name alone
    stands for the line behind it, a count of errors (Pydantic's) has the first of them with it, an error of uv its
    cause, and npm tells its error first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    # Behind its error, Node has the stack and its version.
    told = [at for at, line in enumerate(lines) if _TELLS.search(line)] or [len(lines) - 1]
    at = told[-1]
    if _NPM.match(lines[at]):
        at = next((index for index, line in enumerate(lines) if _NPM_SAYS.match(line)), at)
    while at + 1 < len(lines) and _is_class_alone(lines[at]):
        at += 1
    causes = takewhile(_CAUSE.match, lines[at + 1 :])
    return shorten(" ".join(lines[at : at + 3] if _COUNT.search(lines[at]) else [lines[at], *causes]))


class _Pump(asyncio.Protocol):
    def __init__(self, file: IO[bytes] | None, redactor: Redactor, on_said: Callable[[str], None]) -> None:
        self._file = file
        self._on_said = on_said
        self._redactor = redactor
        self._rest = b""
        self._last = ""

    def data_received(self, data: bytes) -> None:
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        self._write(lines + newline)
        if len(self._rest) > MAX_LINE_BYTES:
            self._write(self._rest)
            self._rest = b""

    def finish(self) -> None:
        """Writes what came without a line's end."""
        self._write(self._rest)
        self._rest = b""

    def _write(self, data: bytes) -> None:
        text = self._redactor.text(data.decode("utf-8", "replace"))
        # An error and what follows it come in one piece or in several.
        self._last = (self._last + text)[-LAST_CHARS:]
        if (last := last_said(self._last)) is not None:
            self._on_said(last)
        if self._file is not None:
            _append(self._file, text)


def log_line(path: Path, text: str) -> None:
    """Adds a line of our own to a server's log."""
    with suppress(OSError), _opened(path) as file:
        if file is not None:
            _append(file, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def _append(file: IO[bytes], text: str) -> None:
    safe = text.encode("utf-8", "replace")
    # A full disk must not end the session: the log is what can be done without.
    with suppress(OSError):
        if file.tell() + len(safe) > CAP_BYTES:
            file.truncate(0)
        file.write(safe[-CAP_BYTES:])


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes] | None]:
    """Opens the log file; None where something else has its name: the server can do without a log."""
    try:
        with Folder.inside(path.parent) as folder:
            descriptor = folder.open(path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, alone=True)
    except InTheWay as error:
        logger.warning("what a server writes to its stderr is not kept: %s", error)
        yield None
        return
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        yield file


class StderrPipe(NamedTuple):
    """Holds where a process writes, and the descriptor that it is read from."""

    sink: TextIO
    reading: int


@asynccontextmanager
async def stderr_log(
    path: Path, redactor: Redactor, on_said: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[StderrPipe, None]:
    """Yields a pipe for a child process to write to; what it writes is appended to the file, and `on_said` is told its
    last line of an error.

    Raises:
        OSError: The file cannot be opened, or there are no descriptors left.
    """
    with _opened(path) as file:
        reading, writing = os.pipe()
        pump = _Pump(file, redactor, on_said)
        with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(writing, "w") as sink:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pump, source)
            try:
                yield StderrPipe(sink, reading)
            finally:
                # What the process said last is in the pipe; its end has been waited for by now.
                with suppress(OSError):
                    while data := os.read(reading, MAX_LINE_BYTES):
                        pump.data_received(data)
                pump.finish()
                transport.close()
