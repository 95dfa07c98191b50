"""Logs writes the daemon's log: text or JSON lines, on stderr or in a file, without the configuration's secrets.

Everything goes through the standard library's `logging`, so what a library says is in it too; that is bounded, also in
an embedder's process. Clients and servers decide what libraries log, how much of it, and in which words. So they are
heard from warnings on, some lines at a time, without tracebacks and without ids of sessions, which let their holder in.
Who wants more sets the level of a library's own logger (`logging.getLogger("mcp").setLevel(logging.DEBUG)`); the
commands do that with the configured level.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cellblock.base.bucket import Bucket
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import LogSettings, ServerConfig
from cellblock.base.visible import visible
from cellblock.observe.files import MAX_FILE_BYTES, LineWriter, PrivateFile, StderrSink
from cellblock.run.events import RunFacts, Watcher

LEVEL_VARIABLE: Final = "CELLBLOCK_LOG"

KEEP: Final = 3
"""Caps the files that are put aside."""

TEXT_FORMAT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"

MAX_MESSAGE_CHARS: Final = 16 * 1024
"""Bounds one log entry: libraries quote what they were sent."""

LIBRARIES: Final = ("mcp", "httpx2", "httpcore2", "sse_starlette", "uvicorn")

FURTHER: Final = {"uvicorn.error": "uvicorn", "uvicorn.asgi": "uvicorn", "client": "mcp", "server": "mcp"}
"""Names the loggers that are not named like a module of their library; `client` may be an embedder's own, too."""

BURST: Final = 20
"""Bounds the lines of one logger at once: a start that goes wrong, as a whole."""

LINE_SECONDS: Final = 5.0
"""Passes, after a burst, between two lines of one logger, which then say how many are missing."""

MAX_LIBRARY_CHARS: Final = 1_000
"""Bounds the characters of one line of a library."""

_SESSION: Final = re.compile(
    r"\b(session(?: ID)?:? )(?!(?:terminat|manager|already|crash|idle|has |is |not |with )\w*)[!-~]+",
    re.IGNORECASE,
)

runs = logging.getLogger("cellblock.run")


class _Safe(logging.Formatter):
    """Formats entries as text without secrets, one line an entry (a traceback aside)."""

    def __init__(self, redactors: Iterable[Redactor]) -> None:
        super().__init__(TEXT_FORMAT)
        self._redactors = tuple(redactors)

    def safe(self, text: str) -> str:
        """Takes secrets out of a text, and cuts it."""
        for redactor in self._redactors:
            text = redactor.text(text)
        return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + " [cut]"

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Formats the entry's own line, in which a line break of somebody's text cannot feign another entry."""
        record.message = visible(record.message, instead=None)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return self.safe(super().format(record))


class JsonLines(_Safe):
    """Formats each entry as one JSON object: time, level, logger, message, and what the entry says of itself."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.safe(record.getMessage()),
        }
        facts: dict[str, Any] = getattr(record, "facts", {})
        entry |= {key: self.safe(value) if isinstance(value, str) else value for key, value in facts.items()}
        if record.exc_info:
            entry["exception"] = self.safe(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class LogHandler(logging.Handler):
    """Hands entries to a writer, which formats them in its thread."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # What the arguments are now is what was meant; they may change before the thread looks.
            record.msg, record.args = record.getMessage(), None
        except Exception:  # noqa: BLE001 - as the library does: a wrong log call must not break its caller
            self.handleError(record)
            return
        self._writer.put(lambda: self.format(record))

    def close(self) -> None:
        """Writes the entries that wait, within the handler's bound. Blocks."""
        self._writer.close()
        super().close()


def iso_time(seconds: float) -> str:
    """Writes Unix time, in seconds, as RFC 3339 in UTC, with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def level_of(settings: LogSettings) -> int:
    """Returns the level in force: the environment's, else the configuration's."""
    wanted = os.environ.get(LEVEL_VARIABLE, "").upper()
    known = logging.getLevelNamesMapping()
    return known.get(wanted) or known[settings.level.upper()]


@contextlib.contextmanager
def logging_as_configured(settings: LogSettings, servers: Iterable[ServerConfig]) -> Generator[None]:
    """Takes over this process's root logger while the block runs; for a command, not for a library.

    The end writes what waits, and blocks for that, within its bound.

    Args:
        settings: The section with what to write where.
        servers: Servers whose configured secrets must not be in it.

    Raises:
        ConfigError: The file cannot be written.
    """
    redactors = [Redactor(server) for server in servers]
    # The exporter of traces reads it.
    sent = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
    if hidden := {f"TOKEN_{number}": one.partition("=")[2] for number, one in enumerate(sent) if one}:
        redactors.append(Redactor(ServerConfig(command="-", env=hidden)))
    sink: StderrSink | PrivateFile = StderrSink()
    if settings.file is not None:
        sink = PrivateFile(Path(settings.file).expanduser(), max_bytes=MAX_FILE_BYTES, keep=KEEP)
    handler = LogHandler(LineWriter(sink, "the log"))
    handler.setFormatter((JsonLines if settings.format == "json" else _Safe)(redactors))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level_of(settings))
    try:
        with heard_from(root.level):
            yield
    finally:
        root.handlers.remove(handler)
        handler.close()
        root.handlers[:0] = handlers
        root.setLevel(level)


class RunLog(Watcher):
    """Writes one line for each run, at its end; level info, since a script that fails is no fault of the daemon."""

    def run_ended(self, run: RunFacts) -> None:
        facts = summary(run)
        line = " ".join(f"{key}={value}" for key, value in facts.items())
        runs.info("run ended: %s", line, extra={"facts": facts})


def summary(run: RunFacts) -> dict[str, Any]:
    """Sums up a run that has ended, in one flat object; no text of the script or of a tool is in it."""
    usage = run.response.usage if run.response is not None else None
    elapsed = (run.ended or time.monotonic()) - run.accepted
    return {
        "run": run.id,
        "client": run.client,
        "outcome": run.outcome,
        "elapsed_ms": round(elapsed * 1000, 1),
        "queue_ms": round((run.leased - run.queued) * 1000, 1) if run.leased and run.queued else 0,
        "wall_ms": usage.wall_ms if usage else 0,
        "cpu_ms": usage.cpu_ms if usage else 0,
        "peak_memory_bytes": usage.peak_memory_bytes if usage else 0,
        "tool_calls": len(run.calls),
        "failed_calls": sum(1 for call in run.calls if not call.ok),
        "worker_end": run.worker_end,
    }


class Tamed(logging.Filter):
    """A tamed logger of a library has its records changed, and those dropped that are too many."""

    def __init__(self, library: str, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._library = logging.getLogger(library)
        self._folder = folder
        self._bucket = Bucket(BURST, 1 / LINE_SECONDS, clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the library's records, and drops those that are too many."""
        if not record.pathname.startswith(self._folder):
            return True
        if record.levelno < (self._library.level or logging.WARNING):
            return False
        if record.levelno >= logging.INFO and not self._bucket.has_room():
            return False
        text = _SESSION.sub(r"\1[redacted]", _message(record))
        if record.exc_info and record.exc_info[0] is not None:
            text += f" ({record.exc_info[0].__name__})"
        if len(text) > MAX_LIBRARY_CHARS:
            text = text[:MAX_LIBRARY_CHARS] + " [cut]"
        if self._bucket.refused:
            text += f" ({self._bucket.refused} more were left out)"
            self._bucket.refused = 0
        record.msg, record.args = text, ()
        record.exc_info = record.exc_text = record.stack_info = None
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
