"""What this process writes into its log, whoever writes it and at whichever level."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

import pytest


@contextmanager
def log_records() -> Generator[list[str]]:
    """Every log record of this process, formatted, until the block ends."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(f"{record.levelname} {record.name} {self.format(record)}")

    handler, root = Keep(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield kept
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@pytest.fixture(scope="module")
def records() -> Generator[list[str]]:
    """What is written into the log by a file of tests."""
    with log_records() as kept:
        yield kept
