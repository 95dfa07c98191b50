"""Login files are private and replaced whole, and processes take turns with them by a lock."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from cellblock.upstream.auth.errors import LoginStoreError
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import OpenToOthers, TooLarge, read_private, write_private

MAX_BYTES: Final = 256 * 1024
"""Caps the size of one login file; a login takes a few KiB."""

LOCK_PAUSE_SECONDS: Final = 0.05


def read_login(file: Path) -> bytes | None:
    """Returns the bytes of a login file; None when there is none.

    Raises:
        LoginStoreError: It is no plain file, is another user's, others may read it, or it is too large.
    """
    try:
        with Folder.inside(file.parent) as folder:
            return read_private(folder, file.name, MAX_BYTES)
    except FileNotFoundError:
        return None
    except InTheWay as error:
        raise LoginStoreError(f"{error}.", hint="Move it away.") from None
    except OpenToOthers as error:
        raise LoginStoreError(
            f"Others may read the login file {file} (mode {error.mode:04o}).",
            hint=f"Log in anew: rm {file}. To keep this login: chmod 600 {file}.",
        ) from None
    except TooLarge:
        raise LoginStoreError(f"The login file {file} is too large.", hint=f"Remove it: rm {file}.") from None
    except OSError as error:
        raise LoginStoreError(
            f"The login file {file} cannot be read: {error.strerror}.", hint=f"Remove it: rm {file}."
        ) from None


def write_login(file: Path, data: bytes) -> None:
    """Replaces a login file in one step.

    Raises:
        LoginStoreError: It cannot be written.
    """
    try:
        with Folder.inside(file.parent, make=True) as folder:
            write_private(folder, file.name, data)
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
