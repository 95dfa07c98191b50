"""Libraries bounds what the libraries below us write into this process's log, which may be an embedder's.

Clients and servers decide what they log, how much of it, and in which words. So they are heard from warnings on, some
lines at a time, without tracebacks and without ids of sessions, which let their holder in.

Who wants more sets the level of a library's own logger (`logging.getLogger("mcp").setLevel(logging.DEBUG)`); the
commands do that with the configured level.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LIBRARIES: Final = ("mcp", "httpx2", "httpcore2", "sse_starlette", "uvicorn")

FURTHER: Final = {"uvicorn.error": "uvicorn", "uvicorn.asgi": "uvicorn", "client": "mcp", "server": "mcp"}
"""Names the loggers that are not named like a module of their library; `client` may be an embedder's own, too."""

BURST: Final = 20
"""Bounds the lines of one logger at once: a start that goes wrong, as a whole."""

LINE_SECONDS: Final = 5.0
"""Passes, after a burst, between two lines of one logger, which then say how many are missing."""

MAX_CHARS: Final = 1_000
"""Bounds the characters of one line of a library."""

_SESSION: Final = re.compile(
    r"\b(session(?: ID)?:? )(?!(?:terminat|manager|already|crash|idle|has |is |not |with )\w*)[!-~]+",
    re.IGNORECASE,
)


class Tamed(logging.Filter):
    """A tamed logger of a library has its records changed, and those dropped that are too many."""

    def __init__(self, library: str, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._library = logging.getLogger(library)
        self._folder = folder
        self._clock = clock
        self._lines = float(BURST)
        self._since = clock()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the library's records, and drops those that are too many."""
        if not record.pathname.startswith(self._folder):
            return True
        if record.levelno < (self._library.level or logging.WARNING):
            return False
        if record.levelno >= logging.INFO and not self._has_room():
            self._left_out += 1
            return False
        text = _SESSION.sub(r"\1[redacted]", _message(record))
        if record.exc_info and record.exc_info[0] is not None:
            text += f" ({record.exc_info[0].__name__})"
        if len(text) > MAX_CHARS:
            text = text[:MAX_CHARS] + " [cut]"
        if self._left_out:
            text += f" ({self._left_out} more were left out)"
            self._left_out = 0
        record.msg, record.args = text, ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True

    def _has_room(self) -> bool:
        now = self._clock()
        self._lines = min(BURST, self._lines + (now - self._since) / LINE_SECONDS)
        self._since = now
        if self._lines < 1:
            return False
        self._lines -= 1
        return True


def tame_libraries() -> None:
    """Puts filters on the loggers of all libraries below us, also on those of modules that are imported later; once is
    enough, more often does no harm."""
    if any(isinstance(known, Tamed) for known in logging.getLogger(LIBRARIES[0]).filters):
        return
    for library in LIBRARIES:
        spec = find_spec(library)
        for place in (spec.submodule_search_locations if spec else None) or ():
            folder = Path(place)
            names = [name for name, known in FURTHER.items() if known == library]
            for module in folder.rglob("*.py"):
                parts = module.relative_to(folder.parent).with_suffix("").parts
                names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            for name in names:
                logging.getLogger(name).addFilter(Tamed(library, str(folder)))


@contextlib.contextmanager
def heard_from(level: int) -> Generator[None]:
    """Has all libraries heard from a level on while the block runs."""
    before = [(logger, logger.level) for logger in map(logging.getLogger, LIBRARIES)]
    for logger, _ in before:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, known in before:
            logger.setLevel(known)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return str(record.msg)
