"""Log messages of servers: bounded, on one line, without the server's secrets."""

from __future__ import annotations

import logging
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.secrets.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.server_log import BURST, MAX_CHARS, ServerLog, wanted_level

NAME = "cellblock.tools.upstream.messages"


def message(
    data: Any, level: Any = "warning", logger: str | None = None
) -> types.LoggingMessageNotificationParams:
    return types.LoggingMessageNotificationParams(level=level, data=data, logger=logger)


def log() -> ServerLog:
    return ServerLog("wiki", Redactor(ServerConfig(command="x", env={"API_KEY": "canary-9a21"})))


async def test_levels_text_and_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, NAME)
    write = log()
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await write(message("m", level))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG", "INFO", "INFO", "WARNING", "ERROR", "CRITICAL", "CRITICAL", "CRITICAL"]
    caplog.clear()
    await write(message({"key": "canary-9a21"}, logger="canary-9a21"))
    await write(message("two\nlines\x1b[2J"))
    await write(message("x" * 100_000))
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == 'wiki[[redacted]]: {"key": "[redacted]"}'
    assert said[1] == "wiki: two lines [2J"
    assert len(said[2]) == MAX_CHARS + len("wiki: ")


async def test_a_flood_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    write = log()
    for _ in range(int(BURST) * 3):
        await write(message("m"))
    written = len(caplog.records)
    assert BURST <= written < BURST * 2
    write._room = 1.0
    await write(message("m"))
    assert "messages were dropped" in caplog.records[written].getMessage()


@pytest.mark.parametrize(("level", "wanted"), [(10, "debug"), (20, "info"), (30, "warning"), (40, "error")])
def test_servers_are_asked_for_what_is_written(level: int, wanted: str) -> None:
    logger = logging.getLogger(NAME)
    before = logger.level
    logger.setLevel(level)
    try:
        assert wanted_level() == wanted
    finally:
        logger.setLevel(before)
