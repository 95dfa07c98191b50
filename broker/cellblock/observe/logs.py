"""Logs writes the daemon's log: text or JSON lines, on stderr or in a file, without the configuration's secrets.

Everything goes through the standard library's `logging`, so what a library says is in it too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import LogSettings, ServerConfig
from cellblock.base.visible import visible
from cellblock.observe.files import MAX_FILE_BYTES, LineWriter, PrivateFile, StderrSink
from cellblock.observe.libraries import heard_from
from cellblock.run.events import RunFacts, Watcher

LEVEL_VARIABLE: Final = "CELLBLOCK_LOG"

KEEP: Final = 3
"""Caps the files that are put aside."""

TEXT_FORMAT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"

MAX_MESSAGE_CHARS: Final = 16 * 1024
"""Bounds one log entry: libraries quote what they were sent."""

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
        path = Path(settings.file).expanduser()
        sink = PrivateFile(path, max_bytes=MAX_FILE_BYTES, keep=KEEP)
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
