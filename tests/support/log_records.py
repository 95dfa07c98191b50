"""What this process writes into its log, whoever writes it and at whichever level."""

import logging
from collections.abc import Generator

import pytest


@pytest.fixture(scope="module")
def records() -> Generator[list[str]]:
    """Every log record of this process in a file of tests, formatted."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(f"{record.levelname} {record.name} {self.format(record)}")

    handler, root = Keep(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield kept
    root.setLevel(level)
    root.removeHandler(handler)
