"""What the SDK and the web server may write into the log of a process that they do not own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import mcp
import pytest

from cellblock.observe.libraries import BURST, LIBRARIES, LINE_SECONDS, Tamed, heard_from, tame_libraries

FOLDER = str(mcp.__file__).rpartition("/")[0]


class Written(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Iterator[Written]:
    """An embedder's log, at its most curious."""
    root = logging.getLogger()
    level, handler = root.level, Written()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    # What other tests have logged counts no more.
    for name in [*logging.Logger.manager.loggerDict]:
        logger = logging.getLogger(name)
        logger.filters[:] = [known for known in logger.filters if not isinstance(known, Tamed)]
    tame_libraries()
    with heard_from(logging.NOTSET):
        yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def say(name: str, level: int, text: str, *, of: str = FOLDER, error: Exception | None = None) -> None:
    """A record as a module of the SDK makes it."""
    logger = logging.getLogger(name)
    info = (type(error), error, None) if error else None
    logger.handle(logger.makeRecord(name, level, f"{of}/client/x.py", 1, text, (), info))


@pytest.mark.parametrize(
    "name", ["mcp.client.streamable_http", "mcp.server.streamable_http_manager", "client"]
)
def test_they_are_heard_from_warnings_on_unless_somebody_asks(log: Written, name: str) -> None:
    say(name, logging.INFO, "Received session ID: s3cret")
    say(name, logging.DEBUG, "anything")
    assert log.lines == []
    say(name, logging.WARNING, "careful")
    logging.getLogger("mcp").setLevel(logging.INFO)
    say(name, logging.INFO, "Received session ID: s3cret")
    assert log.lines == ["careful", "Received session ID: [redacted]"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Session 5f3a crashed", "Session [redacted] crashed"),
        ("Session 5f3a idle timeout", "Session [redacted] idle timeout"),
        ("Terminating session: a/b=c", "Terminating session: [redacted]"),
        (
            "Rejecting request for session x: credential does",
            "Rejecting request for session [redacted] credential does",
        ),
        ("Created new transport with session ID: abc", "Created new transport with session ID: [redacted]"),
        ("Session termination failed: 500", "Session termination failed: 500"),
        ("StreamableHTTP session manager started", "StreamableHTTP session manager started"),
        ("Session already exists, handling", "Session already exists, handling"),
    ],
)
def test_no_id_of_a_session_is_written(log: Written, text: str, shown: str) -> None:
    say("mcp.server.streamable_http_manager", logging.ERROR, text)
    assert log.lines == [shown]


def test_a_flood_is_some_lines_and_a_number(log: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    tamed = Tamed("mcp", FOLDER, lambda: now[0])
    monkeypatch.setattr(logging.getLogger("mcp.client.streamable_http"), "filters", [tamed])
    for number in range(1000):
        say(
            "mcp.client.streamable_http",
            logging.ERROR,
            f"Error {number}" + "x" * 5000,
            error=ValueError("a\n" * 999),
        )
    assert len(log.lines) == BURST
    assert sum(map(len, log.lines)) < BURST * 1100
    assert log.lines[0].endswith("[cut]") and "Traceback" not in log.lines[0]
    now[0] = LINE_SECONDS
    say("mcp.client.streamable_http", logging.ERROR, "Error", error=ValueError("quoted"))
    assert log.lines[BURST:] == [f"Error (ValueError) ({1000 - BURST} more were left out)"]


def test_an_embedders_own_logger_of_that_name_is_its_own(log: Written) -> None:
    for number in range(100):
        say("client", logging.DEBUG, f"session {number}", of="/home/me/app")
    assert len(log.lines) == 100


def test_every_logger_of_a_library_is_tamed_once(log: Written) -> None:
    tame_libraries()
    names = [name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] in LIBRARIES]
    assert {"mcp.client.stdio", "mcp.server.sse", "uvicorn.error", "httpx2"} <= set(names)
    for name in names:
        logger = logging.getLogger(name)
        assert sum(isinstance(known, Tamed) for known in logger.filters) <= 1
