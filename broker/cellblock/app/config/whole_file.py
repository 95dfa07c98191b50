"""Whole_file reads a text file at once, with a bound, and without waiting for what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bounds a configuration file of a client: that of Claude Code also keeps histories."""


class NotRead(Exception):
    """Tells that a file is there and cannot be read; the message says why, and `hint` what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint: Final = hint


def text_of(path: Path) -> str | None:
    """Returns the text of a file with its line ends as they are, or None where there is no file.

    Raises:
        NotRead: It cannot be read, is no regular file, too long, or no UTF-8 text.
    """
    try:
        # Not to wait for a pipe that has the name.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            what = "it is a directory" if stat.S_ISDIR(mode) else "it is no file"
            raise NotRead(what, "Move it away, or name another one.")
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NotRead(error.strerror or str(error), "See whose file it is.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise NotRead(f"it is over {MAX_FILE_BYTES} bytes", "Edit it by hand.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise NotRead("it is no UTF-8 text", "Edit it by hand.") from None
