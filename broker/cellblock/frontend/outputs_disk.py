"""The folder of kept outputs as the processes share it that serve with one state directory: what all of them have kept
stays under the cap of whoever writes.

Each process has a folder of its own in it, and an index of that. Another one may remove the oldest files there to make
room; their owner finds that out when it is asked for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from cellblock.socket_dir import LOCK_NAME

BLOCK_BYTES: Final = 4096
"""What a file takes at least; small outputs count for one block."""

TURN_SECONDS: Final = 2.0
"""For the others to write theirs, 10 ms each. One that is stopped meanwhile must not stop us: two that write at once
may be over the cap by one output for a moment."""

POLL_SECONDS: Final = 0.01


def on_disk(size: int) -> int:
    """What a file of `size` bytes counts for, in bytes."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def write_within(parent: Path, total_bytes: int, file: Path, data: bytes) -> None:
    """Writes a new file into a folder in `parent`, after the oldest ones of all folders there have made room for it.

    Args:
        parent: The folder that is shared.
        total_bytes: What all files in its folders may take together.
        file: In one of those folders.
        data: What it holds.

    Raises:
        OSError: It cannot be written.
    """
    with _turn(parent):
        _make_room(parent, total_bytes - on_disk(len(data)))
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)


def _make_room(parent: Path, left: int) -> None:
    """Removes the oldest files until the others take at most `left` bytes."""
    kept: list[tuple[float, int, Path]] = []
    for folder in parent.iterdir():
        # A folder or a file may go at any moment, with the process that had it.
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if entry.name != LOCK_NAME and entry.is_file(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        kept.append((seen.st_mtime, on_disk(seen.st_size), Path(entry.path)))
    used = sum(size for _, size, _ in kept)
    for _, size, file in sorted(kept):
        if used <= left:
            return
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        used -= size


@contextlib.contextmanager
def _turn(parent: Path) -> Generator[None]:
    """One process at a time, as far as the bound allows; the lock is on the folder itself."""
    lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + TURN_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(POLL_SECONDS)
            except OSError:  # a file system that locks no folders
                break
        yield
    finally:
        os.close(lock)
