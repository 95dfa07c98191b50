"""Keeps files open that workers boot from, so that no worker can keep others from opening them.

Who owns a file, as a worker's user does, may take a lease on it (fcntl(2), F_SETLEASE), and whoever opens the file then
waits for up to 45 s. The kernel grants a lease that stops readers only while nobody else has the file open. One that
stops writers may be had: nobody writes to these files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MAX_FILES: Final = 256
"""Caps the files held; Deno, its libraries and the bundle are about fifteen."""


class HeldFiles:
    """Owns descriptors of files until `close`."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def hold(self, paths: Iterable[Path]) -> None:
        """Opens files, and those in folders; what cannot be opened is left out. Raises OSError at `MAX_FILES`."""
        for path in paths:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                if len(self._fds) >= MAX_FILES:
                    raise OSError(f"more than {MAX_FILES} files to boot from: {path}")
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    self._fds.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
