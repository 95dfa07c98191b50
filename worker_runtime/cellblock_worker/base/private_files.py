"""Private files are this user's alone: mode 0600, read only where they are what they should be, replaced whole.

Each function works in an open `Folder`, so that no link leads it astray; only a file that the user has named may be
reached through links.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cellblock_worker.base.folders import Folder

Stamp = tuple[int, int, int]
"""Tells one version of a file from another: its inode, its time of change in nanoseconds, its size in bytes."""

_OF_OTHERS: Final = 0o077
"""Masks the permissions that a secret file must not give."""


class OpenToOthers(OSError):
    """Tells that the permissions of a secret file let others use it; `mode` holds them."""

    def __init__(self, file: Path, mode: int) -> None:
        super().__init__(errno.EACCES, f"open to others (mode {mode:04o})", str(file))
        self.mode: Final = mode


class TooLarge(OSError):
    """Tells that a file holds more bytes than its reader allows."""

    def __init__(self, file: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(file))


class NotAFile(OSError):
    """Tells that a folder, a pipe or a device has the name of a file."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is no file")


def stamp_of(file: Path | str, *, follow: bool = False) -> Stamp | None:
    """Returns the stamp of a file, without following a link unless told to; None when there is none."""
    try:
        return _stamp(os.stat(file, follow_symlinks=follow))  # noqa: PTH116 - of a text, too
    except OSError:
        return None


def read_private(folder: Folder, name: str, max_bytes: int, *, secret: bool = True) -> bytes:
    """Returns what a file of Cellblock's holds.

    Args:
        folder: The folder that it is in.
        name: The file's name there.
        max_bytes: The most that it may hold.
        secret: Refuses a file that others may use.

    Raises:
        InTheWay: Something else has its name.
        OpenToOthers: Others may read or write the file.
        TooLarge: The file holds more than `max_bytes`.
        OSError: The file cannot be read; FileNotFoundError when there is none.
    """
    return _read(folder.open(name, os.O_RDONLY), folder.path / name, max_bytes, secret=secret)


def read_named(file: Path, max_bytes: int, *, secret: bool = True) -> tuple[bytes, os.stat_result]:
    """Returns what a file holds that the user has named, and its state: it may be a link, as in containers.

    Raises:
        NotAFile: It is no plain file.
        OpenToOthers, TooLarge, OSError: As `read_private` does.
    """
    # Not to block on a pipe that somebody put in the file's place.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise NotAFile
    return _read(descriptor, file, max_bytes, secret=secret), found


def write_private(
    folder: Folder,
    name: str,
    data: bytes,
    *,
    replace: bool = True,
    only: Stamp | None = None,
    mode: int = 0o600,
) -> bool:
    """Writes a file in one step: whoever reads it finds the old or the new one, whole, even after a power failure.

    Args:
        folder: The folder that it is in.
        name: The file's name there.
        data: All that the file is to hold.
        replace: Puts it in the place of an older file.
        only: The version that it may replace; None: any.
        mode: Its permissions, where the file is one that others may have.

    Returns:
        False where nothing is written: anything has the name, and `replace` is false, or it is another version.

    Raises:
        InTheWay: Something other than a file of this user's is to be replaced; it is left as it is.
        OSError: The file cannot be written.
    """
    new = f".cellblock-{secrets.token_hex(8)}"
    descriptor = folder.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            # A rotated token that is lost with the power cannot be had again.
            os.fsync(file.fileno())
        if not replace:
            return _link(folder, new, name)
        if only is not None:
            seen = folder.look(name)
            if seen is None or _stamp(seen) != only:
                return False
        folder.replace(new, name)
        return True
    finally:
        # A full disk must not get fuller with every attempt.
        folder.remove(new)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _link(folder: Folder, new: str, name: str) -> bool:
    try:
        # Unlike a rename, a link never replaces what another process has made meanwhile.
        folder.link(new, name)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: two processes that start at once may then both write.
        if folder.look(name) is not None:
            return False
        folder.replace(new, name)
    return True


def _read(descriptor: int, file: Path, max_bytes: int, *, secret: bool) -> bytes:
    with os.fdopen(descriptor, "rb") as opened:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if secret and mode & _OF_OTHERS:
            raise OpenToOthers(file, mode)
        data = opened.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLarge(file, max_bytes)
    return data
