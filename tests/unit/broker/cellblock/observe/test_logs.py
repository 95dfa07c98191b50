"""The daemon's log: what a line looks like, and what is never in one."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.settings.settings import LogSettings, ServerConfig
from cellblock.observe.logs import level_of, logging_as_configured

SERVER = ServerConfig(command="x", env={"API_KEY": "hunter2-hunter2"})


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)


def started(file: Path, **settings: Any) -> AbstractContextManager[None]:
    settings = {"level": "info", **settings}
    return logging_as_configured(LogSettings(file=file, **settings), [SERVER], ["exporter-key-1"])


def test_secrets_are_taken_out_wherever_they_stand(root: logging.Logger, tmp_path: Path) -> None:
    for kind in ("text", "json"):
        with started(tmp_path / kind, format=kind):
            log = logging.getLogger("somebody")
            log.info(
                "key %s and %s",
                "hunter2-hunter2",
                "exporter-key-1",
                extra={"facts": {"a": "hunter2-hunter2"}},
            )
            try:
                raise ValueError("hunter2-hunter2")
            except ValueError:
                log.exception("failed")
        text = (tmp_path / kind).read_text()
        assert "hunter2" not in text and "exporter-key" not in text
        assert text.count("[redacted]") >= 3
        assert "ValueError" in text


def test_json_lines(root: logging.Logger, tmp_path: Path) -> None:
    with started(tmp_path / "log", format="json"):
        logging.getLogger("a.b").warning("two\nlines %d", 7, extra={"facts": {"run": "r1", "n": 3}})
    (line,) = (tmp_path / "log").read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"level": "warning", "logger": "a.b", "message": "two\nlines 7", "run": "r1", "n": 3}


def test_a_text_cannot_feign_another_entry(root: logging.Logger, tmp_path: Path) -> None:
    with started(tmp_path / "log"):
        logging.getLogger("a").error("name %s", "x\n2026-01-01 root ERROR all is well\x1b[2K")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "x\\n2026" in line and "\x1b" not in line


def test_a_wrong_log_call_breaks_nobody(
    root: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path / "log"):
        logging.getLogger("a").error("%d", "no number")
        logging.getLogger("a").error("next")
    assert "next" in (tmp_path / "log").read_text()


def test_the_root_logger_is_put_back(root: logging.Logger, tmp_path: Path) -> None:
    known = logging.NullHandler()
    root.handlers[:] = [known]
    root.setLevel(logging.CRITICAL)
    level = logging.getLogger("mcp").level
    with pytest.raises(KeyError), started(tmp_path / "log", level="debug"):
        assert known not in root.handlers and root.level == logging.getLogger("mcp").level == logging.DEBUG
        raise KeyError
    assert (root.handlers, root.level, logging.getLogger("mcp").level) == ([known], logging.CRITICAL, level)


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
        with logging_as_configured(LogSettings(), []):
            logging.getLogger("a").error("here")
    assert "a ERROR here" in (tmp_path / "err").read_text()
