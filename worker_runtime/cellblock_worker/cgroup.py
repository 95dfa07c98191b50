"""One cgroup around a worker host and all its workers: a cap on their memory and tasks together.

The host moves itself in before it starts anything, and what it starts is born there, so a worker costs nothing more. A
group for each worker would repeat what `RLIMIT_DATA` keeps, and moving a process takes a lock over the whole machine
(`scripts/measure_choices.py`). Under v2 a group with controllers for its children may hold no process itself, so the
broker and what it started are moved into a group of their own beside it; that is done only where nobody else is in the
group, as under `systemd-run --user --scope -p Delegate=yes`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from cellblock_worker.cgroup_layout import CONTROLLERS, Home, find_homes

PREFIX: Final = "cellblock-"
HOST_PREFIX: Final = "cellblock-host-"
BROKER_PREFIX: Final = "cellblock-broker-"

MIB: Final = 1024 * 1024

WORKER_ROOM_BYTES: Final = 64 * MIB
"""Of each worker beyond its run's memory: an idle one has 32 MiB, and the kernel adds page tables and buffers."""

HOST_ROOM_BYTES: Final = 256 * MIB
"""Of the host itself: 40 MiB, the messages it relays, and the pages of Deno's file, which are shared."""

TASKS_PER_WORKER: Final = 64
"""Threads of a worker and of what watches over it: about 12 on 2 cores; V8 and Tokio make at most 50 on many."""

HOST_TASKS: Final = 64

REMOVE_BOUND_SECONDS: Final = 1.0
"""For the last worker to leave a group after it was killed."""

ENTER_ATTEMPTS: Final = 5
"""A process may be born in a group while the others are moved out of it."""

HOW_TO_GET: Final = (
    "start Cellblock as `systemd-run --user --scope -p Delegate=yes cellblock …`, "
    "or in a systemd service with Delegate=yes"
)


class Caps(NamedTuple):
    """What all workers of a host, and the host, may have together."""

    memory_bytes: int
    tasks: int


class Unusable(RuntimeError):
    """No group can be made in a hierarchy; the text says why."""


def caps_for(
    *, capacity: int, warm: int, boot_parallel: int, memory_bytes: int, total_bytes: int | None
) -> Caps:
    """The caps of a host.

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
    """The host's group in one hierarchy. `leave` goes back to `_way_back` and removes it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.controllers = home.controllers
        self._base = home.path
        self._way_back = home.path
        self._broker: Path | None = None
        if home.version == 2 and home.path.name.startswith(PREFIX):
            # An earlier host of this broker has moved it here.
            self._base = home.path.parent
        self.path = self._base / f"{HOST_PREFIX}{secrets.token_hex(6)}"

    def enter(self, caps: Caps) -> None:
        """Makes the group, moves this process into it and puts the caps on. Raises Unusable."""
        remove_stale(self._base)
        try:
            self._join_new()
            if self.home.version == 2:
                self._enable()
            self._limit(caps)
        except OSError as error:
            self._undo()
            raise Unusable(f"{self._base}: {error.strerror or error}") from None
        except Unusable:
            self._undo()
            raise

    def leave(self) -> None:
        """Moves this process out again and removes the group, as soon as it is empty."""
        with contextlib.suppress(OSError):
            _write(self._way_back / "cgroup.procs", "0")
        deadline = time.monotonic() + REMOVE_BOUND_SECONDS
        while not _remove(self.path) and time.monotonic() < deadline:
            time.sleep(0.01)

    def oom_kills(self) -> int:
        """Processes of the group that the kernel has killed for memory so far."""
        file = "memory.events" if self.home.version == 2 else "memory.oom_control"
        try:
            words = (self.path / file).read_text().split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return 0

    def _join_new(self) -> None:
        for attempt in range(ENTER_ATTEMPTS):
            self.path.mkdir()
            try:
                # 0 is the writer itself, whatever its pid is outside of its namespace.
                _write(self.path / "cgroup.procs", "0")
            except OSError as error:
                # Another host that starts now may have taken the empty group for a stale one.
                if error.errno not in (errno.ENOENT, errno.ENODEV) or attempt == ENTER_ATTEMPTS - 1:
                    raise
            else:
                return

    def _enable(self) -> None:
        """Lets the children of the base have the controllers, after the base itself has been emptied."""
        order = " ".join(f"+{name}" for name in self.controllers)
        for attempt in range(ENTER_ATTEMPTS):
            # Only the root of the whole hierarchy may have processes beside groups, and only it has no type.
            if (self._base / "cgroup.type").exists():
                self._move_broker()
            try:
                _write(self._base / "cgroup.subtree_control", order)
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
                _write(self._broker / "cgroup.procs", pid)

    def _undo(self) -> None:
        if self._broker is not None:
            with contextlib.suppress(OSError):
                for pid in (self._broker / "cgroup.procs").read_text().split():
                    _write(self._base / "cgroup.procs", pid)
                self._way_back = self._base
                self._broker.rmdir()
        self.leave()

    def _limit(self, caps: Caps) -> None:
        if "pids" in self.controllers:
            _write(self.path / "pids.max", str(caps.tasks))
        if "memory" not in self.controllers:
            return
        if self.home.version == 2:
            _write(self.path / "memory.max", str(caps.memory_bytes))
            _write_if_there(self.path / "memory.swap.max", "0")
        else:
            _write(self.path / "memory.limit_in_bytes", str(caps.memory_bytes))
            _write_if_there(self.path / "memory.memsw.limit_in_bytes", str(caps.memory_bytes))


class Membership:
    """This process's place in its groups. Made by `enter`; `leave` must be called when all workers are gone.

    Attributes:
        in_force: What is kept, in words.
        missing: What is not, with the reason and the way to get it.
    """

    def __init__(self, groups: list[_Group], caps: Caps, reasons: list[str]) -> None:
        self._groups = groups
        self._memory = next((group for group in groups if "memory" in group.controllers), None)
        self._claimed = 0
        self.caps = caps
        self.in_force = [_describe(group, caps) for group in groups]
        kept = {name for group in groups for name in group.controllers}
        lacking = [name for name in CONTROLLERS if name not in kept]
        why = "; ".join(reasons) or "this process's cgroup offers no such controller"
        self.missing = [f"cgroup ({', '.join(lacking)}): {why}; {HOW_TO_GET}"] if lacking else []

    @property
    def paths(self) -> list[Path]:
        """The directories of the groups."""
        return [group.path for group in self._groups]

    def claim_oom_kill(self) -> bool:
        """Whether the kernel has killed a process of the group for memory that nobody has claimed yet."""
        if self._memory is None or self._memory.oom_kills() <= self._claimed:
            return False
        self._claimed += 1
        return True

    def leave(self) -> None:
        """Goes back to where this process was (or beside it) and removes the groups."""
        for group in self._groups:
            group.leave()
        self._groups, self._memory = [], None


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
    """Removes the groups of hosts and brokers that were killed: the kernel refuses it for any that is in use."""
    try:
        found = [path for path in base.iterdir() if path.name.startswith(PREFIX)]
    except OSError:
        return
    for path in found:
        _remove(path)


def _remove(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _family() -> set[int]:
    """This process, the broker that started it, and all that the broker has started."""
    try:
        broker = psutil.Process(os.getppid())
        return {os.getpid(), broker.pid, *(child.pid for child in broker.children(recursive=True))}
    except psutil.Error:
        return {os.getpid()}


def _write(file: Path, text: str) -> None:
    # One write call: the kernel takes each as an order of its own.
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_if_there(file: Path, text: str) -> None:
    """For files that a kernel may not have, or may refuse: swap accounting."""
    with contextlib.suppress(OSError):
        _write(file, text)


def _describe(group: _Group, caps: Caps) -> str:
    said = {"memory": f"{caps.memory_bytes // MIB} MiB of memory", "pids": f"{caps.tasks} tasks"}
    kept = " and ".join(said[name] for name in group.controllers)
    names = ", ".join(group.controllers)
    return f"cgroup v{group.home.version} ({names}): all workers and their host have {kept} together"
