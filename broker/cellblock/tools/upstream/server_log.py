"""Keeps what servers say beside their answers, without the configuration's secrets, and bounded: their log messages go
into Cellblock's own log, and the stderr of a started server into a file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Final, TextIO

import mcp_types as types

from cellblock.base.bucket import Bucket
from cellblock.base.errors import shorten
from cellblock.base.redaction import Redactor
from cellblock.base.visible import visible
from cellblock.tools.upstream.definitions import file_stem, shown
from cellblock_worker.base.folders import Folder, InTheWay

_messages = logging.getLogger("cellblock.tools.upstream.messages")

MAX_CHARS: Final = 2_000
"""Bounds the characters of one message that a server logs."""

PER_SECOND: Final = 50.0
BURST: Final = 200.0
"""Bounds the messages of one server that are written; the rest are counted."""

LOOKED_AT_CHARS: Final = 64 * 1024
"""Bounds what is looked at of one message, before secrets are taken out: enough that none is cut within what is
shown."""

_LEVELS: Final[dict[types.LoggingLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


def wanted_level() -> types.LoggingLevel:
    """Returns the level from which on messages are of use here; servers of MCP 2026-07-28 send none unasked."""
    levels: tuple[types.LoggingLevel, ...] = ("debug", "info", "warning", "error")
    return next(one for one in levels if one == "error" or _messages.isEnabledFor(_LEVELS[one]))


class ServerLog:
    """Writes one server's messages; a callback of the SDK's client.

    Args:
        server: Its name in the configuration.
        redactor: Keeps its secrets out.
    """

    def __init__(self, server: str, redactor: Redactor) -> None:
        self._server = server
        self._redactor = redactor
        self._bucket = Bucket(BURST, PER_SECOND)

    async def __call__(self, params: types.LoggingMessageNotificationParams) -> None:
        """Writes one message as `SERVER[LOGGER]: TEXT`; the record has them as `server` and `server_logger`, too."""
        level = _LEVELS[params.level]
        if not _messages.isEnabledFor(level) or not self._bucket.has_room():
            return
        name = shown(self._redactor.text(params.logger)) if params.logger else None
        said = params.data if isinstance(params.data, str) else json.dumps(params.data, ensure_ascii=False)
        text = visible(shorten(self._redactor.text(said[:LOOKED_AT_CHARS]), MAX_CHARS), instead=" ")
        if dropped := self._bucket.refused:
            _messages.warning("%s: %d messages were dropped, too many at once", self._server, dropped)
            self._bucket.refused = 0
        where = f"{self._server}[{name}]" if name else self._server
        _messages.log(level, "%s: %s", where, text, extra={"server": self._server, "server_logger": name})


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
_PROBED: Final = re.compile(r"Failed to validate request:|server/discover")
"""Matches how a server tells of the request by which its protocol is found out, which older ones do not know; the
former begins some 80 lines of the SDK of Python."""
_OF_PROBE: Final = re.compile(r"\s{2,}+(?!DEBUG|INFO|WARNING|ERROR|CRITICAL)|\w++(?>(?:\.\w++)+)$")
"""Matches what follows there: a line that is indented, and is not the next message, or the name of a field."""
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
        self._tells_of_probe = False

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
        lines = self._redactor.text(data.decode("utf-8", "replace")).splitlines(keepends=True)
        text = "".join(line for line in lines if not self._is_of_probe(line))
        # An error and what follows it come in one piece or in several.
        self._last = (self._last + text)[-LAST_CHARS:]
        if (last := last_said(self._last)) is not None:
            self._on_said(last)
        if self._file is not None:
            _append(self._file, text)

    def _is_of_probe(self, line: str) -> bool:
        """Says whether a line tells of our own request alone: no error of the server, nor worth keeping."""
        follows = self._tells_of_probe and _OF_PROBE.match(line) is not None
        self._tells_of_probe = follows or _PROBED.search(line) is not None
        return self._tells_of_probe


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


@asynccontextmanager
async def stderr_log(
    path: Path, redactor: Redactor, on_said: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[tuple[TextIO, int]]:
    """Yields where a child process writes, and the descriptor that this is read from; what it writes is appended to the
    file, and `on_said` is told its last line of an error.

    Raises:
        OSError: The file cannot be opened, or there are no descriptors left.
    """
    with _opened(path) as file:
        reading, writing = os.pipe()
        pump = _Pump(file, redactor, on_said)
        with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(writing, "w") as sink:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pump, source)
            try:
                yield sink, reading
            finally:
                # What the process said last is in the pipe; its end has been waited for by now.
                with suppress(OSError):
                    while data := os.read(reading, MAX_LINE_BYTES):
                        pump.data_received(data)
                pump.finish()
                transport.close()
