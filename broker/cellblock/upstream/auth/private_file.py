"""Files that only their owner can read, replaced whole, and locks that two processes agree on."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from cellblock.upstream.auth.errors import LoginStoreError
from cellblock_worker.base.folders import Folder, InTheWay

MAX_BYTES: Final = 256 * 1024
"""Of one file; a login takes a few KiB."""

LOCK_PAUSE_SECONDS: Final = 0.05

Stamp = tuple[int, int, int]
"""Changes whenever a file does: inode, time of change, size."""


def stamp_of(file: Path) -> Stamp | None:
    """The stamp of a file; None when there is none."""
    try:
        found = file.stat(follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_private(file: Path) -> bytes | None:
    """The file's bytes; None when there is none.

    Raises:
        LoginStoreError: It is no plain file, is another user's, others may read it, or it is too large.
    """
    try:
        with Folder.inside(file.parent) as folder:
            descriptor = folder.open(file.name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except InTheWay as error:
        raise LoginStoreError(f"{error}.", hint="Move it away.") from None
    except OSError as error:
        raise LoginStoreError(
            f"The login file {file} cannot be read: {error.strerror}.", hint=f"Remove it: rm {file}."
        ) from None
    try:
        found = os.fstat(descriptor)
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise LoginStoreError(
                f"Others may read the login file {file} (mode {stat.S_IMODE(found.st_mode):04o}).",
                hint=f"Log in anew: rm {file}. To keep this login: chmod 600 {file}.",
            )
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            data = opened.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise LoginStoreError(f"The login file {file} is too large.", hint=f"Remove it: rm {file}.")
    return data


def write_private(file: Path, data: bytes) -> None:
    """Replaces the file in one step: whoever reads it gets the old or the new one, whole.

    Raises:
        LoginStoreError: It cannot be written.
    """
    new = f".{file.name}.{secrets.token_hex(8)}"
    try:
        with Folder.inside(file.parent, make=True) as folder:
            descriptor = folder.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    # A rotated token that is lost with the power cannot be had again.
                    os.fsync(opened.fileno())
                folder.replace(new, file.name)
            except BaseException:
                folder.remove(new)
                raise
    except InTheWay as error:
        raise LoginStoreError(f"{error}.", hint="Move it away.") from None
    except OSError as error:
        raise LoginStoreError(
            f"The login file {file} cannot be written: {error.strerror}.", hint="Check the state directory."
        ) from None


@contextlib.asynccontextmanager
async def locked(file: Path, bound: float) -> AsyncGenerator[None]:
    """Holds the lock that this file stands for; it ends with its process at the latest.

    Raises:
        LoginStoreError: Another process has held it for `bound` seconds, or it cannot be made.
    """
    try:
        with Folder.inside(file.parent, make=True) as folder:
            descriptor = folder.open(file.name, os.O_RDWR | os.O_CREAT)
    except InTheWay as error:
        raise LoginStoreError(f"{error}.", hint="Move it away.") from None
    except OSError as error:
        raise LoginStoreError(
            f"The lock {file} cannot be made: {error.strerror}.", hint="Check the state directory."
        ) from None
    try:
        deadline = asyncio.get_running_loop().time() + bound
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise LoginStoreError(
                        f"Another process has held {file} for {bound:g} s.", hint="Try again in a moment."
                    ) from None
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)
