"""Logs of our own processes are bounded files: one that is full is started anew."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from typing import Final

LOG_BYTES: Final = 1024 * 1024
"""Bounds a log file."""


def bound_log(descriptor: int) -> None:
    """Starts a log file anew that is over `LOG_BYTES`; what is no file, or cannot be cut, is left as it is."""
    # A log is what can be done without.
    with suppress(OSError):
        seen = os.fstat(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_size > LOG_BYTES:
            os.ftruncate(descriptor, 0)


class BoundedStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler writes to stderr, and keeps a file that stderr is within its bound."""

    def emit(self, record: logging.LogRecord) -> None:
        bound_log(2)
        super().emit(record)
