"""The folder of kept outputs is shared by the processes that serve with one state directory: what all of them have kept
stays under the cap of whoever writes.

Each process has a folder of its own in it, and an index of that. Another one may remove the oldest files there to make
room; their owner finds that out when it is asked for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Generator
from typing import Final

from cellblock.base.own_folders import own_folder
from cellblock.base.state_dir import OUTPUT_NAME
from cellblock_worker.base.folders import Folder

BLOCK_BYTES: Final = 4096
"""Sets what a file takes at least; small outputs count for one block."""

TURN_SECONDS: Final = 2.0
"""Bounds the wait for the other front-ends to write their outputs, 10 ms each. One that is stopped meanwhile must not
stop us: two that write at once may be over the cap by one output for a moment."""

POLL_SECONDS: Final = 0.01

_ID: Final = re.compile(OUTPUT_NAME)


def on_disk(size: int) -> int:
    """Returns what a file of `size` bytes counts for, in bytes."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def write_within(parent: Folder, total_bytes: int, folder: Folder, name: str, data: bytes) -> None:
    """Writes a new file into a folder in `parent`, after the oldest ones of all folders there have made room for it.

    Args:
        parent: The folder that is shared.
        total_bytes: What all outputs in its folders may take together.
        folder: One of those folders.
        name: The file's.
        data: What it holds.

    Raises:
        OSError: It cannot be written.
    """
    with _turn(parent):
        _make_room(parent, total_bytes - on_disk(len(data)))
        descriptor = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)


def _make_room(parent: Folder, left: int) -> None:
    """Removes the oldest outputs until the others take at most `left` bytes. What is not ours does not count."""
    kept: list[tuple[float, int, str, str]] = []
    for own in parent.names():
        # A folder or a file may go at any moment, with the process that had it.
        with contextlib.suppress(OSError), own_folder(parent, own) as folder:
            for name in folder.names():
                seen = folder.look(name)
                if seen is not None and _ID.fullmatch(name) and stat.S_ISREG(seen.st_mode):
                    kept.append((seen.st_mtime, on_disk(seen.st_size), own, name))
    used = sum(size for _, size, _, _ in kept)
    for _, size, own, name in sorted(kept):
        if used <= left:
            return
        with contextlib.suppress(OSError), parent.below(own) as folder:
            folder.remove(name)
        used -= size


@contextlib.contextmanager
def _turn(parent: Folder) -> Generator[None]:
    """Lets one process at a time in, as far as the bound allows; the lock is on the folder itself."""
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(parent.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        except OSError:  # a file system that locks no folders
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(parent.descriptor, fcntl.LOCK_UN)
