"""The private folder of a broker's sockets: made, held by a lock, and removed; also those of brokers that were killed.

Who holds the lock lives, in whatever pid namespace: a container's broker and its machine's may share a state folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from cellblock.errors import ConfigError

SOCKET_PATH_CAP: Final = 100
"""sockaddr_un holds 108 bytes on Linux and 104 on macOS, including the file's name."""

LONGEST_SOCKET_PATH: Final = 107 if sys.platform.startswith("linux") else 103
"""What the system takes at all."""

NAMES_BYTES: Final = 40
"""For what stands behind the parent folder: the folder's own name and the socket's."""

LOCK_NAME: Final = "lock"

UNLOCKED_SECONDS: Final = 60.0
"""Age from which a folder without a lock file is a leftover; a new one has its lock within milliseconds."""

SHORTAGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""What the machine lacks, and no configuration mends."""

ATTEMPTS: Final = 10
"""Folders that may be lost in a row to a broker that starts at the same moment and takes them for stale."""


class SocketDir:
    """A fresh folder with mode 0700 under `state_dir`, or in the temporary directory where its path would be too long.

    Raises:
        ConfigError: It cannot be made there.
        OSError: The machine has no space or no descriptor left for it.
    """

    def __init__(self, state_dir: Path) -> None:
        parent = state_dir / "run"
        try:
            if len(str(parent)) + NAMES_BYTES > SOCKET_PATH_CAP:
                parent = _shared_parent()
                if len(os.fsencode(parent)) + len("/broker-12345678/hosts.sock") > LONGEST_SOCKET_PATH:
                    raise ConfigError(
                        f"The path of a socket in {parent} would be over {LONGEST_SOCKET_PATH} bytes.",
                        hint="Set TMPDIR or --state-dir to a folder with a shorter path.",
                    )
            else:
                parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            remove_stale(parent)
            self.path, self._lock = make_locked(parent)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            raise ConfigError(
                f"No folder for sockets can be made in {parent}: {error}.", hint="Use another --state-dir."
            ) from None

    def restore(self) -> None:
        """Makes and locks the folder anew where someone has removed it, or its lock. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.fstat(self._lock).st_nlink == 0:
            lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(self._lock)
            self._lock = lock

    def close(self) -> None:
        """Removes the folder, then gives up its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        # Nothing is left behind in the temporary directory, unless another broker has its folder there.
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()


def remove_stale(parent: Path) -> None:
    """Removes the folders in `parent` that no living broker holds.

    Others come and go meanwhile: a broker that stops removes its own folder, and `parent` with the last.
    """
    try:
        folders = [folder for folder in parent.iterdir() if folder.is_dir()]
    except FileNotFoundError:
        return
    for folder in folders:
        try:
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > UNLOCKED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            if _locked(lock):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def make_locked(parent: Path) -> tuple[Path, int]:
    """Makes a folder of this broker's own in `parent`, with mode 0700.

    Returns:
        The folder, and the descriptor that holds its lock until it is closed.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(ATTEMPTS):
        try:
            path = Path(tempfile.mkdtemp(prefix="broker-", dir=parent))
        except FileNotFoundError:
            # The last of the other brokers has just tidied up.
            parent.mkdir(exist_ok=True, mode=0o700)
            continue
        try:
            lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            continue
        # Between the two lines another broker may have taken the lock, to remove the folder.
        if _locked(lock) and os.fstat(lock).st_nlink > 0:
            return path, lock
        os.close(lock)
    raise FileNotFoundError(f"{ATTEMPTS} folders were removed as soon as they were made")


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _shared_parent() -> Path:
    """One folder of this user's brokers in the temporary directory, so that leftovers in it are found."""
    parent = Path(tempfile.gettempdir()) / f"cellblock-{os.getuid()}"
    parent.mkdir(exist_ok=True, mode=0o700)
    seen = parent.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise PermissionError(f"{parent} is not a private folder of this user")
    return parent
