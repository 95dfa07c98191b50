"""A broker's sockets have a private folder."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from cellblock.base.errors import ConfigError
from cellblock.base.own_folders import SHORTAGES, OwnFolder, remove_stale
from cellblock.base.state_dir import RUN, SOCKET_NAME, SOCKETS, in_the_way
from cellblock_worker.base.folders import Folder, InTheWay

SOCKET_PATH_CAP: Final = 100
"""Bounds the path of a broker's socket: `sockaddr_un` holds 108 bytes on Linux and 104 on macOS, including the file's
name."""

LONGEST_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
"""Bounds the path of a socket, as the system does."""

NAMES_BYTES: Final = 40
"""Leaves room for what stands behind the parent folder: the folder's own name and the socket's."""


class SocketDir:
    """Owns a fresh folder with mode 0700 under `state_dir`, or in the temporary directory where its path would be too
    long.

    Raises:
        ConfigError: It cannot be made there.
        OSError: The machine has no space or no descriptor left for it.
    """

    def __init__(self, state_dir: Path) -> None:
        parent = state_dir / RUN
        try:
            if len(str(parent)) + NAMES_BYTES > SOCKET_PATH_CAP:
                parent = _shared_parent()
            remove_stale(parent, SOCKETS)
            self._own = OwnFolder(parent, SOCKETS)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            if isinstance(error, InTheWay):
                raise in_the_way(error) from None
            raise ConfigError(
                f"No folder for sockets can be made in {parent}: {error}.", hint="Use another --state-dir."
            ) from None

    @property
    def path(self) -> Path:
        return self._own.path

    def restore(self) -> None:
        """Makes and locks the folder anew where someone has removed it, or its lock.

        Raises:
            InTheWay: Something else is where the folder or the socket was.
            OSError: It cannot be made.
        """
        self._own.restore()
        seen = self._own.folder.look(SOCKET_NAME)
        if seen is not None and not stat.S_ISSOCK(seen.st_mode):
            raise InTheWay(self.path / SOCKET_NAME, "not the socket that Cellblock has made there")

    def close(self) -> None:
        """Removes the folder, then gives up its lock."""
        self._own.close()


def _shared_parent() -> Path:
    """Returns one folder of this user's brokers in the temporary directory, so that leftovers in it are found."""
    parent = Path(tempfile.gettempdir()) / f"cellblock-{os.getuid()}"
    if len(os.fsencode(parent)) + len(f"/broker-12345678/{SOCKET_NAME}") > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"The path of a socket in {parent} would be over {LONGEST_SOCKET_PATH} bytes.",
            hint="Set TMPDIR or --state-dir to a folder with a shorter path.",
        )
    with Folder.inside(parent, make=True) as folder:
        if folder.stat().st_mode & 0o077:
            raise InTheWay(parent, "not a private folder of this user")
    return parent
