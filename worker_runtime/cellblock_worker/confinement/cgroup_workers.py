"""A cgroup for each worker caps all memory that a run makes, also what RLIMIT_DATA does not see.

Shared maps, System V segments, pages that were made read-only, pipes and page tables all count. The groups are made
as workers need them and used again by later ones, with their files kept open, and a worker is born in its group (see
`launcher`), so that one costs a run a few reads and writes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cellblock_worker.confinement import cgroup_files

MIB: Final = 1024 * 1024

TASKS_PER_WORKER: Final = 64
"""Caps the threads of a worker and of what watches over it: about 12 on 2 cores; V8 and Tokio make at most 50 on
many."""

BOOT_BYTES: Final = 256 * MIB
"""Caps a worker that boots, or waits: it takes 30 MiB of its own, and the pages of Deno's file if it is the first."""

RUN_ROOM_BYTES: Final = 16 * MIB
"""Adds to a run's memory what the kernel keeps for a process (page tables, pipes, stacks), and the pages of Deno's file
that its first script touches. RLIMIT_DATA stays the exact cap of what a script's values take."""

_NUMBER_BYTES: Final = 32

Killed = Literal["own", "shared"]
"""Tells for whose memory the kernel has killed a process: its own group's, or that of all, or of the machine."""


class _Names(NamedTuple):
    limit: str
    usage: str
    peak: str
    reached: tuple[str, bytes]
    kills: tuple[str, bytes]
    settings: tuple[tuple[str, str], ...]


_NAMES: Final = {
    # Swappiness 0: what its own limit pushes out is never swapped, so nothing gets past the limit that way.
    1: _Names(
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.max_usage_in_bytes",
        ("memory.failcnt", b""),
        ("memory.oom_control", b"oom_kill"),
        (("memory.swappiness", "0"),),
    ),
    2: _Names(
        "memory.max",
        "memory.current",
        "memory.peak",
        ("memory.events", b"oom"),
        ("memory.events", b"oom_kill"),
        (("memory.swap.max", "0"), ("memory.oom.group", "1")),
    ),
}


class WorkerGroup:
    """A worker's group exists in each hierarchy that the host has one in. Used by one worker at a time.

    Args:
        hierarchies: Version, folder to make, and its controllers.

    Attributes:
        entries: Files of v1 that take a thread (see `launching.SpawnRequest`).
        born_in: Folder of v2, or nothing.
        lasts: Whether a later worker can use it: its peak can be forgotten.

    Raises:
        OSError: It cannot be made; nothing is left of it.
    """

    def __init__(self, hierarchies: list[tuple[int, Path, tuple[str, ...]]]) -> None:
        self._folders: list[Path] = []
        self._names: _Names | None = None
        self._limit = self._usage = self._peak = self._reached_file = self._kills_file = -1
        self._reached = self._kills = self._limit_bytes = 0
        self.lasts = True
        try:
            for version, folder, controllers in hierarchies:
                folder.mkdir()
                self._folders.append(folder)
                if "pids" in controllers:
                    cgroup_files.write(folder / "pids.max", str(TASKS_PER_WORKER))
                if "memory" in controllers:
                    self._names = _NAMES[version]
                    self._open(self._names, folder)
        except OSError:
            self.remove()
            raise
        self.entries = tuple(str(folder / "tasks") for version, folder, _ in hierarchies if version == 1)
        self.born_in = next((str(folder) for version, folder, _ in hierarchies if version == 2), "")

    def prepare(self) -> None:
        """Prepares the group for the next worker, before that is started. Raises OSError."""
        if self._names is None:
            return
        self._set_limit(self._used() + BOOT_BYTES)
        with contextlib.suppress(OSError):
            os.pwrite(self._peak, b"0", 0)
        self._reached, self._kills = self._counts(self._names)

    def limit_run(self, memory_bytes: int) -> None:
        """Limits the group to what is in it now and a run's memory. Raises OSError."""
        if self._names is not None:
            self._set_limit(self._used() + memory_bytes + RUN_ROOM_BYTES)

    def take(self, size: int) -> None:
        """Takes so much from the run's limit, or gives it back where that is negative. Raises OSError."""
        if self._names is not None:
            self._set_limit(self._limit_bytes - size)

    def forget_peak(self) -> None:
        """Counts the peak anew, for another run of the same process, where the kernel can."""
        if self._peak >= 0 and self.lasts:
            with contextlib.suppress(OSError):
                os.pwrite(self._peak, b"0", 0)

    def peak_bytes(self) -> int:
        """Returns the most memory that the group had since `prepare`; 0 where the kernel does not say."""
        if self._peak < 0:
            return 0
        try:
            return int(os.pread(self._peak, _NUMBER_BYTES, 0))
        except (OSError, ValueError):
            return 0

    def killed_for(self) -> Killed | None:
        """Says for whose memory the kernel has killed a process in the group since `prepare`; None if it has not."""
        if self._names is None:
            return None
        reached, kills = self._counts(self._names)
        if kills <= self._kills:
            return None
        return "own" if reached > self._reached else "shared"

    def is_empty(self) -> bool:
        """Says whether nothing is left in the group. What is left is killed: its worker is gone."""
        left = [folder for folder in self._folders if cgroup_files.members(folder)]
        for folder in left:
            cgroup_files.kill_members(folder)
        return not left

    def remove(self) -> None:
        for fd in (self._limit, self._usage, self._peak, self._reached_file, self._kills_file):
            if fd >= 0:
                os.close(fd)
        self._limit = self._usage = self._peak = self._reached_file = self._kills_file = -1
        for folder in self._folders:
            cgroup_files.end(folder)
        self._folders.clear()

    def _open(self, names: _Names, folder: Path) -> None:
        for name, value in names.settings:
            cgroup_files.write_if_there(folder / name, value)
        self._limit = os.open(folder / names.limit, os.O_WRONLY | os.O_CLOEXEC)
        self._usage = os.open(folder / names.usage, os.O_RDONLY | os.O_CLOEXEC)
        self._reached_file = cgroup_files.open_if_there(folder / names.reached[0])
        self._kills_file = cgroup_files.open_if_there(folder / names.kills[0])
        try:
            self._peak = os.open(folder / names.peak, os.O_RDWR | os.O_CLOEXEC)
            os.pwrite(self._peak, b"0", 0)
        except OSError:
            # Linux before 6.12 under v2 cannot forget a peak, before 5.19 it does not keep one.
            self.lasts = False
            with contextlib.suppress(OSError):
                if self._peak < 0:
                    self._peak = os.open(folder / names.peak, os.O_RDONLY | os.O_CLOEXEC)

    def _counts(self, names: _Names) -> tuple[int, int]:
        return (
            cgroup_files.count(self._reached_file, names.reached[1]),
            cgroup_files.count(self._kills_file, names.kills[1]),
        )

    def _used(self) -> int:
        return int(os.pread(self._usage, _NUMBER_BYTES, 0))

    def _set_limit(self, limit: int) -> None:
        os.pwrite(self._limit, str(limit).encode(), 0)
        self._limit_bytes = limit


class WorkerGroups:
    """Owns the groups of a host's workers.

    Args:
        parents: Version, folder of the host's group, and its controllers, for each hierarchy.
    """

    def __init__(self, parents: list[tuple[int, Path, tuple[str, ...]]]) -> None:
        self._parents = parents
        self._made = 0
        self._left: list[WorkerGroup] = []
        self._closed = False

    def take(self) -> WorkerGroup:
        """Returns an empty group, ready for a worker. It must be given back. Raises OSError."""
        group = next((group for group in self._left if group.is_empty()), None)
        if group is not None:
            self._left.remove(group)
        else:
            self._made += 1
            group = WorkerGroup(
                [
                    (version, folder / f"worker-{self._made}", controllers)
                    for version, folder, controllers in self._parents
                ]
            )
        try:
            group.prepare()
        except OSError:
            group.remove()
            raise
        return group

    def give_back(self, group: WorkerGroup) -> None:
        """Takes back the group of a worker that is reaped, and ends what that has left in it."""
        if not self._closed and (group.lasts or not group.is_empty()):
            self._left.append(group)
        else:
            group.remove()

    def close(self) -> None:
        """Removes all groups that were given back; from now on a group is removed when it is given back."""
        self._closed = True
        for group in self._left:
            group.remove()
        self._left.clear()
