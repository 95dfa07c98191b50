"""Cgroups: which this process is in (`/proc/self/cgroup` and `mountinfo`), and how they are read, written, emptied and
removed, with no knowledge of hosts and workers.

See cgroups(7) and the kernel's `Documentation/admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cellblock_worker.base.lifetime import kill_if

EMPTY_BOUND_SECONDS: Final = 1.0
"""Bounds the time for the last process to leave a group after it was killed."""

_POLL_SECONDS: Final = 0.01

_PIECE_BYTES: Final = 16 * 1024
"""Exceeds what the kernel gives of most of its files at once."""


def write(file: Path, text: str) -> None:
    """Gives one order to the kernel. Raises OSError."""
    # One write call: the kernel takes each as an order of its own.
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def write_if_there(file: Path, text: str) -> None:
    """Writes to a file that a kernel may not have, or may refuse."""
    with contextlib.suppress(OSError):
        write(file, text)


def open_if_there(file: Path) -> int:
    """Returns a descriptor to read a file that a kernel may not have; -1: it has none."""
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def count(fd: int, name: bytes = b"") -> int:
    """Returns the number after a name in an open file of names and numbers, or of the whole file; 0 where there is
    none, or the file is not open.
    """
    try:
        words = os.pread(fd, _PIECE_BYTES, 0).split()
        return int(words[words.index(name) + 1] if name else words[0])
    except (OSError, ValueError, IndexError):
        return 0


def members(group: Path) -> list[int]:
    """Returns the pids of the processes in a group; none when it is gone."""
    text = b""
    try:
        # Anew each time: a descriptor that stays open may tell of those who were there a second ago.
        fd = os.open(f"{group}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        while piece := os.read(fd, _PIECE_BYTES):
            text += piece
        return [int(pid) for pid in text.split()]
    except (OSError, ValueError):
        return []
    finally:
        os.close(fd)


def kill_members(group: Path) -> None:
    """Sends SIGKILL to all that is in a group and in those below it; some may live until a second time."""
    with contextlib.suppress(OSError):
        # Linux 5.14 and v2 only: all at once, also what is being forked.
        write(group / "cgroup.kill", "1")
        return
    for folder in (*_below(group), group):
        for pid in members(folder):
            kill_if(pid, partial(_is_in, folder, pid))


def remove(group: Path) -> bool:
    """Removes a group with those below it. False: the kernel refuses it, as it is in use."""
    for folder in _below(group):
        if not remove(folder):
            return False
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def end(group: Path) -> bool:
    """Kills all processes in a group and below it, and removes the group, within `EMPTY_BOUND_SECONDS`."""
    deadline = time.monotonic() + EMPTY_BOUND_SECONDS
    while not remove(group):
        if time.monotonic() > deadline:
            return False
        kill_members(group)
        time.sleep(_POLL_SECONDS)
    return True


def lock(group: Path) -> int | None:
    """Returns a descriptor that says, as long as it is open, that the group has an owner who lives; None when another
    holds it.

    Raises:
        OSError: The group is gone.
    """
    fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _below(group: Path) -> list[Path]:
    try:
        return [path for path in group.iterdir() if path.is_dir()]
    except OSError:
        return []


def _is_in(group: Path, pid: int) -> bool:
    return pid in members(group)


CONTROLLERS: Final = ("memory", "pids")
"""Names the controllers that a cap over all workers needs."""


class Mount(NamedTuple):
    """A mount shows one hierarchy: `root` is what of it is mounted at `point`; v2 has no `controllers` of its own."""

    version: int
    root: str
    point: Path
    controllers: frozenset[str]


class Home(NamedTuple):
    """A home is the group of this process in one hierarchy, and which of `CONTROLLERS` it can have there."""

    version: int
    path: Path
    controllers: tuple[str, ...]


def read_mounts(mountinfo: str) -> list[Mount]:
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if right[0] == "cgroup2" else 1
        controllers = frozenset(right[2].split(",")) if version == 1 else frozenset[str]()
        mounts.append(Mount(version, _unescape(left[3]), Path(_unescape(left[4])), controllers))
    return mounts


def read_memberships(text: str) -> dict[str, str]:
    """Returns a map of controller to path, from the text of a `/proc/PID/cgroup` file; the path in v2 is under the
    empty name.
    """
    lines = (line.split(":", 2) for line in text.splitlines())
    return {name: parts[2] for parts in lines if len(parts) == 3 for name in parts[1].split(",")}


def find_homes(memberships: str, mountinfo: str) -> list[Home]:
    """Returns the groups that this process is in, each with the controllers that are to be had there: v2 first.

    Args:
        memberships: Text of `/proc/self/cgroup`.
        mountinfo: Text of `/proc/self/mountinfo`.
    """
    mounts, paths = read_mounts(mountinfo), read_memberships(memberships)
    homes: list[Home] = []
    left = list(CONTROLLERS)
    for mount in mounts:
        path = _path_below(mount, paths.get("")) if mount.version == 2 else None
        if path is not None:
            offered = _words(path / "cgroup.controllers")
            found = tuple(name for name in left if name in offered)
            if found:
                homes.append(Home(2, path, found))
                left = [name for name in left if name not in found]
            break
    for name in list(left):
        mount = next((mount for mount in mounts if mount.version == 1 and name in mount.controllers), None)
        path = _path_below(mount, paths.get(name)) if mount is not None else None
        if path is not None:
            homes.append(Home(1, path, (name,)))
    return homes


def _path_below(mount: Mount, path: str | None) -> Path | None:
    """Returns where a group's path in the hierarchy is in the file system; None when the mount does not show it."""
    if path is None or path.startswith("/.."):
        return None
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(root + "/"):
        return None
    found = mount.point / path[len(root) :].lstrip("/")
    return found if found.is_dir() else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _unescape(field: str) -> str:
    """Undoes the octal escapes of mountinfo (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), field)
