"""The daemon's log: what a line looks like, and what is never in one."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.config.settings import LogSettings, ServerConfig
from cellblock.telemetry.logs import LogHandler, level_of, start_logging, stop_logging

SERVER = ServerConfig(command="x", env={"API_KEY": "hunter2-hunter2"})


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)


def written(file: Path, handler: LogHandler) -> str:
    stop_logging(handler)
    return file.read_text()


def start(file: Path, **settings: Any) -> LogHandler:
    return start_logging(LogSettings(file=file, level="info", **settings), [SERVER], ["exporter-key-1"])


def test_secrets_are_taken_out_wherever_they_stand(root: logging.Logger, tmp_path: Path) -> None:
    for kind in ("text", "json"):
        handler = start(tmp_path / kind, format=kind)
        log = logging.getLogger("somebody")
        log.info(
            "key %s and %s", "hunter2-hunter2", "exporter-key-1", extra={"facts": {"a": "hunter2-hunter2"}}
        )
        try:
            raise ValueError("hunter2-hunter2")
        except ValueError:
            log.exception("failed")
        text = written(tmp_path / kind, handler)
        assert "hunter2" not in text and "exporter-key" not in text
        assert text.count("[redacted]") >= 3
        assert "ValueError" in text


def test_json_lines(root: logging.Logger, tmp_path: Path) -> None:
    handler = start(tmp_path / "log", format="json")
    logging.getLogger("a.b").warning("two\nlines %d", 7, extra={"facts": {"run": "r1", "n": 3}})
    (line,) = written(tmp_path / "log", handler).splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"level": "warning", "logger": "a.b", "message": "two\nlines 7", "run": "r1", "n": 3}


def test_a_text_cannot_feign_another_entry(root: logging.Logger, tmp_path: Path) -> None:
    handler = start(tmp_path / "log")
    logging.getLogger("a").error("name %s", "x\n2026-01-01 root ERROR all is well\x1b[2K")
    (line,) = written(tmp_path / "log", handler).splitlines()
    assert "x\\n2026" in line and "\x1b" not in line


def test_a_wrong_log_call_breaks_nobody(
    root: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = start(tmp_path / "log")
    logging.getLogger("a").error("%d", "no number")
    logging.getLogger("a").error("next")
    assert "next" in written(tmp_path / "log", handler)


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELLBLOCK_LOG", raising=False)
    assert level_of(LogSettings()) == logging.ERROR
    monkeypatch.setenv("CELLBLOCK_LOG", "debug")
    assert level_of(LogSettings(level="warning")) == logging.DEBUG
    monkeypatch.setenv("CELLBLOCK_LOG", "nonsense")
    assert level_of(LogSettings(level="warning")) == logging.WARNING


def test_stderr_is_the_default(root: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "err").open("w+") as file:
        monkeypatch.setattr(sys, "stderr", file)
        handler = start_logging(LogSettings(), [])
        logging.getLogger("a").error("here")
        stop_logging(handler)
        root.handlers.clear()
    assert "a ERROR here" in (tmp_path / "err").read_text()
