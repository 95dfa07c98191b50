"""One cgroup around a worker host and all its workers caps their memory and tasks together; in it, each worker has one.

The host moves itself in before it starts anything, and what it starts is born there or, a worker, in a group of its own
below it (see `cgroup_workers`). Under v2 a group with controllers for its children may hold no process itself, so the
host is in one of its own beside its workers', and the broker and what it started are moved into one beside the host's;
that is done only where nobody else is in the group, as under `systemd-run --user --scope -p Delegate=yes`.

A host holds a lock on its group. The next one that starts takes groups that nobody holds for those of killed hosts,
ends what still runs there, and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from cellblock_worker.confinement import cgroup_files
from cellblock_worker.confinement.cgroup_files import (
    CONTROLLERS,
    Home,
    find_homes,
    write,
    write_if_there,
)
from cellblock_worker.confinement.cgroup_workers import TASKS_PER_WORKER, WorkerGroups

PREFIX: Final = "cellblock-"
HOST_PREFIX: Final = "cellblock-locked-host-"
"""Differs from the name that earlier versions used, whose hosts hold no lock."""

BROKER_PREFIX: Final = "cellblock-broker-"

OWN_NAME: Final = "host"
"""Names the group of the host itself under v2, beside those of its workers."""

MIB: Final = 1024 * 1024

WORKER_ROOM_BYTES: Final = 64 * MIB
"""Adds to a run's memory what each worker needs: an idle one has 32 MiB, and the kernel adds page tables and
buffers."""

HOST_ROOM_BYTES: Final = 256 * MIB
"""Adds what the host itself needs: 40 MiB, the messages it relays, and the pages of Deno's file, which are shared."""

HOST_TASKS: Final = 64

ENTER_ATTEMPTS: Final = 5
"""Bounds the tries to make a group and to give it its controllers: a process may be born in a group while the others
are moved out of it."""

WITHOUT: Final = {
    "memory": "what a worker that was taken over maps besides its data is bounded only as far as its address space and "
    "the seccomp filter go, and all workers together by nothing",
    "pids": "the number of its processes only as far as the filter goes",
}
"""Names what a machine lacks that has no such group."""

HOW_TO_GET: Final = (
    "start Cellblock as `systemd-run --user --scope -p Delegate=yes cellblock …`, "
    "or in a systemd service with Delegate=yes"
)


class Caps(NamedTuple):
    """Caps hold what all workers of a host, and the host, may have together."""

    memory_bytes: int
    tasks: int


class Unusable(RuntimeError):
    """Tells that a cgroup hierarchy takes no group; the text says why."""


def caps_for(
    *, capacity: int, warm: int, boot_parallel: int, memory_bytes: int, total_bytes: int | None
) -> Caps:
    """Returns the caps of a host.

    Args:
        capacity: Runs at the same time.
        warm: Workers that wait.
        boot_parallel: Workers that boot.
        memory_bytes: The most that a run may ask for.
        total_bytes: From the configuration; None computes it.
    """
    workers = capacity + warm + boot_parallel
    computed = capacity * memory_bytes + workers * WORKER_ROOM_BYTES + HOST_ROOM_BYTES
    return Caps(computed if total_bytes is None else total_bytes, workers * TASKS_PER_WORKER + HOST_TASKS)


class _Group:
    """A group holds a host in one hierarchy. `leave` removes it; the host goes back to `_way_back` before."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.controllers = home.controllers
        self._base = home.path
        self._way_back = home.path
        self._broker: Path | None = None
        self._lock: int | None = None
        if home.version == 2 and home.path.name.startswith(PREFIX):
            # An earlier host of this broker has moved it here.
            self._base = home.path.parent
        self.path = self._base / f"{HOST_PREFIX}{secrets.token_hex(6)}"

    def enter(self, caps: Caps) -> None:
        """Makes the group, moves this process into it, and puts the caps on. Raises Unusable."""
        try:
            remove_stale(self._base)
            if self.home.version == 2:
                self._enable()
            self._make()
            self._limit(caps)
        except OSError as error:
            self._undo()
            raise Unusable(f"{self._base}: {error.strerror or error}") from None
        except Unusable:
            self._undo()
            raise

    def leave(self) -> None:
        """Moves this process out again, ends what is left in the group, and removes it."""
        with contextlib.suppress(OSError):
            write(self._way_back / "cgroup.procs", "0")
        if self._lock is not None:
            cgroup_files.end(self.path)
            os.close(self._lock)
            self._lock = None

    def _make(self) -> None:
        for attempt in range(ENTER_ATTEMPTS):
            self.path = self._base / f"{HOST_PREFIX}{secrets.token_hex(6)}"
            self.path.mkdir()
            try:
                # Another host that starts now may take the new group for a stale one, and hold or remove it.
                self._lock = cgroup_files.lock(self.path)
                if self._lock is None:
                    raise OSError(errno.ENOENT, "held by another host")
                own = self.path
                if self.home.version == 2:
                    own = self.path / OWN_NAME
                    own.mkdir()
                    self._order(self.path)
                else:
                    # Kernels before 5.11 count what is below a group only where they are told to.
                    write_if_there(self.path / "memory.use_hierarchy", "1")
                # 0 is the writer itself, whatever its pid is outside of its namespace.
                write(own / "cgroup.procs", "0")
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV) or attempt == ENTER_ATTEMPTS - 1:
                    raise
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None
            else:
                return

    def _order(self, group: Path) -> None:
        """Lets the children of a group have the controllers. Raises OSError."""
        write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in self.controllers))

    def _enable(self) -> None:
        """Lets the children of the base have the controllers, after the base itself has been emptied."""
        for attempt in range(ENTER_ATTEMPTS):
            # Only the root of the whole hierarchy may have processes beside groups, and only it has no type.
            if (self._base / "cgroup.type").exists():
                self._move_broker()
            try:
                self._order(self._base)
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == ENTER_ATTEMPTS - 1:
                    raise
            else:
                return

    def _move_broker(self) -> None:
        inside = (self._base / "cgroup.procs").read_text().split()
        if not inside:
            return
        family = _family()
        if any(int(pid) not in family for pid in inside):
            raise Unusable(f"{self._base} is shared with processes that are not Cellblock's")
        if self._broker is None:
            self._broker = self._base / f"{BROKER_PREFIX}{secrets.token_hex(6)}"
            self._broker.mkdir()
            self._way_back = self._broker
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                write(self._broker / "cgroup.procs", pid)

    def _undo(self) -> None:
        if self._broker is not None:
            with contextlib.suppress(OSError):
                for pid in (self._broker / "cgroup.procs").read_text().split():
                    write(self._base / "cgroup.procs", pid)
                self._way_back = self._base
                self._broker.rmdir()
        self.leave()

    def _limit(self, caps: Caps) -> None:
        if "pids" in self.controllers:
            write(self.path / "pids.max", str(caps.tasks))
        if "memory" not in self.controllers:
            return
        if self.home.version == 2:
            write(self.path / "memory.max", str(caps.memory_bytes))
            write_if_there(self.path / "memory.swap.max", "0")
        else:
            write(self.path / "memory.limit_in_bytes", str(caps.memory_bytes))
            write_if_there(self.path / "memory.memsw.limit_in_bytes", str(caps.memory_bytes))


class Membership:
    """A membership is this process's place in its groups. Made by `enter`; `leave` must be called when all workers are
    gone.

    Attributes:
        in_force: What is kept, in words.
        missing: What is not, with the reason and the way to get it.
        workers: The groups of its workers; None where there are none.
    """

    def __init__(self, groups: list[_Group], caps: Caps, reasons: list[str]) -> None:
        self._groups = groups
        self.caps = caps
        self.in_force = [_describe(group, caps) for group in groups]
        kept = {name for group in groups for name in group.controllers}
        lacking = [name for name in CONTROLLERS if name not in kept]
        why = "; ".join(reasons) or "this process's cgroup offers no such controller"
        self.missing = (
            [
                f"cgroup ({', '.join(lacking)}): {why}; {' and '.join(WITHOUT[name] for name in lacking)}; {HOW_TO_GET}"
            ]
            if lacking
            else []
        )
        parents = [(group.home.version, group.path, group.controllers) for group in groups]
        self.workers = WorkerGroups(parents) if groups else None

    def leave(self) -> None:
        """Goes back to where this process was (or beside it) and removes the groups."""
        if self.workers is not None:
            self.workers.close()
        for group in self._groups:
            group.leave()
        self._groups = []


def enter(caps: Caps, *, proc: Path = Path("/proc/self")) -> Membership:
    """Moves this process into a group of its own in each hierarchy that offers it. Never raises for a lack.

    Args:
        caps: What is put on the group.
        proc: Where `cgroup` and `mountinfo` are read.
    """
    try:
        homes = find_homes((proc / "cgroup").read_text(), (proc / "mountinfo").read_text())
    except OSError as error:
        return Membership([], caps, [f"this system has none ({error.strerror})"])
    groups: list[_Group] = []
    reasons: list[str] = []
    for home in homes:
        group = _Group(home)
        try:
            group.enter(caps)
        except Unusable as error:
            reasons.append(str(error))
        else:
            groups.append(group)
    return Membership(groups, caps, reasons)


def remove_stale(base: Path) -> None:
    """Ends what is left in the groups of hosts that were killed, and removes those and their brokers'.

    A host that lives holds a lock on its group; what has no lock by its name, the kernel removes only when it is empty.
    """
    try:
        found = [path for path in base.iterdir() if path.name.startswith(PREFIX)]
    except OSError:
        return
    for path in found:
        if not path.name.startswith(HOST_PREFIX):
            cgroup_files.remove(path)
            continue
        with contextlib.suppress(OSError):
            held = cgroup_files.lock(path)
            if held is not None:
                try:
                    cgroup_files.end(path)
                finally:
                    os.close(held)


def _family() -> set[int]:
    """Returns the pids of this process, the broker that started it, and all that the broker has started."""
    # Not at the top: few hosts need it, and it takes two megabytes.
    import psutil

    try:
        broker = psutil.Process(os.getppid())
        return {os.getpid(), broker.pid, *(child.pid for child in broker.children(recursive=True))}
    except psutil.Error:
        return {os.getpid()}


def _describe(group: _Group, caps: Caps) -> str:
    said = {"memory": f"{caps.memory_bytes // MIB} MiB of memory", "pids": f"{caps.tasks} tasks"}
    kept = " and ".join(said[name] for name in group.controllers)
    names = ", ".join(group.controllers)
    each = {"memory": "its run's memory, whatever it is made of", "pids": f"{TASKS_PER_WORKER} tasks"}
    of_each = " and ".join(each[name] for name in group.controllers)
    return (
        f"cgroup v{group.home.version} ({names}): each worker has one of its own, with {of_each}; "
        f"all workers and their host have {kept} together"
    )
