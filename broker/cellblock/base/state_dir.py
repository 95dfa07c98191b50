"""The state directory is checked here: whose it must be, what Cellblock puts into it, and what is done when it is used
first.

It may be any folder of the user's, with files of the user's own in it. A mark says that Cellblock has been here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

import platformdirs

from cellblock.base.errors import ConfigError
from cellblock.base.orphans import WATCHER
from cellblock.base.own_folders import SHORTAGES, OwnFolder, remove_stale
from cellblock_worker.base.folders import FILE, SOCKET, Contents, Folder, InTheWay

logger = logging.getLogger("cellblock")

MARK_NAME: Final = ".cellblock"
"""Names the mark of a state directory."""

RUN: Final = "run"
"""Names the folder in which each broker has a folder of its own, for its sockets."""

SOCKET_NAME: Final = "hosts.sock"

_OF_DENO: Final[Contents] = {
    r"[a-z0-9_]+_cache_v[0-9]+(-wal|-shm|-journal)?": FILE,
    "npm|gen|remote|deps|registries": {},
    "node_compat_bin": {"node": stat.S_IFLNK},
}
"""Tells what Deno made in folders that a host of an earlier version has left."""

SOCKETS: Final[Contents] = {
    re.escape(SOCKET_NAME): SOCKET,
    "deno-dir": {"filled|shown": _OF_DENO},
}
"""Tells what may be in the folder of one broker's sockets."""

SOCKET_PATH_CAP: Final = 100
"""Bounds the path of a broker's socket: `sockaddr_un` holds 108 bytes on Linux and 104 on macOS, including the file's
name."""

LONGEST_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
"""Bounds the path of a socket, as the system does."""

NAMES_BYTES: Final = 40
"""Leaves room for what stands behind the parent folder: the folder's own name and the socket's."""

OUTPUTS_FOLDER: Final = "outputs"
"""Names the folder in which each front-end of an earlier version had a folder of its own, for large outputs."""

OUTPUT_FILES: Final[Contents] = {"[A-Za-z0-9_-]{32}": FILE}

LOGS: Final = "logs"
"""Names the folder of what the worker host and started servers write to their stderr."""

HOST_LOG: Final = "host.log"

RAY_LOG: Final = "ray.log"

DAEMON_LOG: Final = "daemon.log"
"""Names what a daemon says that `connect` has started."""

DATABASE: Final = "schemas.sqlite3"

JOURNALS: Final = "journals.sqlite3"
"""Names the file of kept runs."""

COUNTS: Final = "counts.sqlite3"
"""Names the file of what clients have used of their quotas."""

OUTPUTS: Final = "outputs.sqlite3"
"""Names the file of large outputs."""

DATABASE_ENDINGS: Final = ("-wal", "-shm", "-journal")
"""Ends the names of the files that SQLite has beside its own for a while."""

_LOG_FILE: Final = re.compile(r"host\.log|upstream-.*\.log")

_SQLITE: Final = b"SQLite format 3\0"

_USED: Final = (
    b"Cellblock keeps its state in this folder, and removes nothing from it that it has not made.\n"
)
"""Says to people what the mark is; that it is there is all that counts."""


def default_state_dir() -> Path:
    return Path(platformdirs.user_state_dir("cellblock"))


def check_state_dir(path: Path) -> str | None:
    """Looks at whose a state directory is. Gives a warning, or None; one that is not there is fine.

    Raises:
        ConfigError: It is another user's, all users may write to it, or it cannot be opened.
    """
    try:
        with Folder.named(path) as folder:
            return _check(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from None


def prepare_state_dir(path: Path) -> None:
    """Makes a state directory, or takes over what is there, with a folder for logs; warns when its group may write.

    Raises:
        ConfigError: It cannot be used, or something of others is at a name that Cellblock needs.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Folder.named(path) as folder:
            warning = _check(folder)
            if warning:
                logger.warning("%s", warning)
            if not _is_used(folder):
                _begin(folder)
            folder.below(LOGS, make=True).close()
    except OSError as error:
        raise _unusable(path, error) from None


def in_the_way(error: InTheWay) -> ConfigError:
    return ConfigError(f"{error}.", hint="Move it away, or use another --state-dir.")


def _check(folder: Folder) -> str | None:
    seen, path = folder.stat(), folder.path
    if seen.st_uid != os.geteuid():
        raise ConfigError(
            f"The state directory {path} belongs to another user (uid {seen.st_uid}), who could change what is in it.",
            hint=f"Make it yours (chown {os.geteuid()} {path}), or use another --state-dir.",
        )
    if seen.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"All users may write to the state directory {path} (mode {stat.S_IMODE(seen.st_mode):04o}).",
            hint=f"Close it (chmod 700 {path}), or use another --state-dir.",
        )
    if seen.st_mode & stat.S_IWGRP:
        return f"The group of the state directory {path} may write to it. Close it: chmod g-w {path}."
    return None


def _unusable(path: Path, error: OSError) -> ConfigError:
    if isinstance(error, InTheWay):
        return in_the_way(error)
    why = error.strerror or error
    return ConfigError(f"The state directory {path} cannot be used: {why}.", hint="Use another --state-dir.")


# ---- the first time ----------------------------------------------------------------------------------------


def _begin(folder: Folder) -> None:
    """Sees that nobody else's files would be written to, and leaves the mark.

    Once only: later, the names of files are Cellblock's.
    """
    if not _begins_as_database(folder):
        _refuse_taken(folder)
    try:
        mark = folder.open(MARK_NAME, os.O_WRONLY | os.O_CREAT)
        with os.fdopen(mark, "wb") as file:
            file.write(_USED)
    except OSError as error:
        # It serves on a full disk, too, and looks again the next time.
        if error.errno not in SHORTAGES:
            raise


def _is_used(folder: Folder) -> bool:
    try:
        said = folder.beginning(MARK_NAME, len(_USED))
    except FileNotFoundError:
        return False
    if said and not said.startswith(b"Cellblock "):
        raise InTheWay(folder.path / MARK_NAME, "not a mark that Cellblock has made")
    return bool(said)


def _refuse_taken(folder: Folder) -> None:
    """Raises InTheWay for a file that would be appended to, or taken for a damaged one."""
    files = DATABASE, JOURNALS, COUNTS, OUTPUTS
    for name in (file + ending for file in files for ending in ("", *DATABASE_ENDINGS)):
        if folder.holds(name, FILE):
            raise InTheWay(folder.path / name, "not a file that Cellblock has made")
    with contextlib.suppress(FileNotFoundError), folder.below(LOGS) as logs:
        for name in logs.names():
            if _LOG_FILE.fullmatch(name) and logs.holds(name, FILE):
                raise InTheWay(logs.path / name, "not a file that Cellblock has made")


def _begins_as_database(folder: Folder) -> bool:
    with contextlib.suppress(OSError):
        return folder.beginning(DATABASE, len(_SQLITE)) == _SQLITE
    return False


# ---- a broker's sockets ------------------------------------------------------------------------------------


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
                parent = Path(tempfile.gettempdir())
                parent = _shared_parent(parent)
            remove_stale(parent, SOCKETS)
            self._own = OwnFolder(parent, SOCKETS)
            WATCHER.add(self._own.path, is_folder=True)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            if isinstance(error, InTheWay):
                raise in_the_way(error) from None
            raise ConfigError(
                f"No folder for sockets can be made in {parent}: {error}.",
                hint="Use another --state-dir, with a short path.",
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
        WATCHER.discard(self._own.path, is_folder=True)
        self._own.close()


def _shared_parent(temporary: Path) -> Path:
    """Returns one folder of this user's brokers in the temporary directory, so that leftovers in it are found.

    Where another user has its name, it has one that nobody could guess.
    """
    name = f"cellblock-{os.getuid()}"
    if (
        len(os.fsencode(temporary / name)) + len(f"-12345678/broker-12345678/{SOCKET_NAME}")
        > LONGEST_SOCKET_PATH
    ):
        raise ConfigError(
            f"The path of a socket in {temporary} would be over {LONGEST_SOCKET_PATH} bytes.",
            hint="Set TMPDIR or --state-dir to a folder with a shorter path.",
        )
    for parent in (temporary / name, *sorted(temporary.glob(f"{name}-*"))):
        with contextlib.suppress(InTheWay), Folder.inside(parent, make=parent.name == name) as folder:
            if not folder.stat().st_mode & 0o077:
                return parent
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=temporary))
