"""Finds this process's place in the cgroup hierarchies, from `/proc/self/cgroup` and `/proc/self/mountinfo`.

See cgroups(7) and the kernel's `Documentation/admin-guide/cgroup-v2.rst`. Nothing is changed here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

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
        path = _below(mount, paths.get("")) if mount.version == 2 else None
        if path is not None:
            offered = _words(path / "cgroup.controllers")
            found = tuple(name for name in left if name in offered)
            if found:
                homes.append(Home(2, path, found))
                left = [name for name in left if name not in found]
            break
    for name in list(left):
        mount = next((mount for mount in mounts if mount.version == 1 and name in mount.controllers), None)
        path = _below(mount, paths.get(name)) if mount is not None else None
        if path is not None:
            homes.append(Home(1, path, (name,)))
    return homes


def _below(mount: Mount, path: str | None) -> Path | None:
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
