"""What the broker and everything under it takes: sampled every second, and compared at rest before and after."""

import asyncio
import contextlib
import ctypes
import os
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

SAMPLE_SECONDS: Final = 1.0
ORPHAN_SECONDS: Final = 15.0
"""A process that has lost its parent may live this long: a worker of a killed host dies at once, a stopped one when it
is killed, an upstream server when it sees the end of its stdin."""

REST_SAMPLES: Final = 60
REST_PAUSE_SECONDS: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36
_PROCESS: Final = re.compile(r"^/proc/\d+/")
_HOSTS_GROUP: Final = re.compile(r"(-host)-[0-9a-f]{12}$")

_LOG_ENTRY: Final = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)

_HELD: Final = re.compile(r"/worker-\d+/memory\.|/deno-dir/")
"""Files of the cgroups of as many workers as a host had at a time, and of its DENO_DIR, which it makes when idle."""

Kinds = Counter[str]


@dataclass(frozen=True)
class Sample:
    """One look. `at` in seconds since the load began, memory in bytes; host figures are 0 while there is none."""

    at: float
    broker_rss: int
    broker_fds: int
    host_pid: int
    host_rss: int
    host_fds: int
    processes: int
    temporary_files: int


@dataclass(frozen=True)
class Rest:
    """Descriptors by kind and processes by role, with nothing to do."""

    broker_fds: Kinds
    host_fds: Kinds
    processes: Kinds


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own, so that none can escape the count."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def role_of(process: psutil.Process) -> str:
    """host, worker, bubblewrap, upstream or another name. Raises psutil.Error."""
    name = process.name()
    # Where native attackers are among the workers, Deno itself has the second name.
    if name in ("deno", "native.deno"):
        return "worker"
    if name == "bwrap":
        return "bubblewrap"
    line = process.cmdline()
    if "cellblock_worker" in line:
        return "host"
    return "upstream" if any(part.endswith("_server.py") for part in line) else name


def by_role(broker: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The living descendants of the broker."""
    found: dict[str, list[psutil.Process]] = {}
    for process in broker.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(role_of(process), []).append(process)
    return found


def descriptors(pid: int) -> Kinds:
    """The open descriptors of a process by kind; empty when it is gone."""
    kinds: Kinds = Counter()
    with contextlib.suppress(OSError):
        for entry in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if _HELD.search(target):
                    continue
                kind = _PROCESS.sub("/proc/PID/", target.partition(":")[0] if ":" in target else target)
                kinds[_HOSTS_GROUP.sub(r"\1", kind)] += 1
    return kinds


def files_under(*folders: Path) -> set[str]:
    """Everything in these folders."""
    return {str(path) for folder in folders for path in folder.rglob("*")}


def tracebacks(log: str) -> list[str]:
    """The entries of a log with a traceback, but for the MCP SDK's about lines of servers that are no messages."""
    starts = [0, *(found.start() for found in _LOG_ENTRY.finditer(log)), len(log)]
    entries = [log[start:end] for start, end in pairwise(starts)]
    return [
        entry for entry in entries if "Traceback" in entry and " mcp.client" not in entry.partition("\n")[0]
    ]


class Orphans:
    """Reaps adopted children that have ended, and notes those that do not end.

    Attributes:
        kept: Children of this process that are not to end.
        leaked: What has lived too long, by its id.
    """

    def __init__(self, *kept: int) -> None:
        self.kept = set(kept)
        self.leaked: dict[int, str] = {}
        self._since: dict[int, float] = {}

    def reap(self) -> None:
        """Looks once."""
        for child in psutil.Process().children():
            if child.pid in self.kept:
                continue
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)
                    self._since.pop(child.pid, None)
                    continue
                since = self._since.setdefault(child.pid, time.monotonic())
                if time.monotonic() - since > ORPHAN_SECONDS:
                    self.leaked[child.pid] = f"{role_of(child)}: {' '.join(child.cmdline())[:200]}"


class Watch:
    """Samples until closed.

    Args:
        broker_pid: The broker, a child of this process.
        others: Further children of this process that are not to end.
        temporary: Folders that must stay empty.
    """

    def __init__(self, broker_pid: int, others: Collection[int], temporary: list[Path]) -> None:
        self.broker = psutil.Process(broker_pid)
        self.orphans = Orphans(broker_pid, *others)
        self.samples: list[Sample] = []
        self.seen: set[psutil.Process] = set()
        self.host: psutil.Process | None = None
        self._temporary = temporary
        self.started = time.monotonic()
        """When the times of the samples begin, by the monotonic clock."""

    async def run(self) -> None:
        """Samples every `SAMPLE_SECONDS`; cancel it."""
        self.started = time.monotonic()
        while True:
            with contextlib.suppress(psutil.Error):
                self.samples.append(self._look())
            self.orphans.reap()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def rest(self, bound: float) -> Rest:
        """Waits until processes and descriptors stay the same for 3 s. The last look after `bound` seconds."""
        deadline = time.monotonic() + bound
        same = 0
        last = self._rest()
        while same < REST_SAMPLES and time.monotonic() < deadline:
            await asyncio.sleep(REST_PAUSE_SECONDS)
            now = self._rest()
            same = same + 1 if now == last else 0
            last = now
        return last

    async def survivors(self, bound: float) -> list[str]:
        """What is left of all processes ever seen, after the broker has ended and `bound` seconds at most."""
        deadline = time.monotonic() + bound
        left = [process for process in self.seen if _alive(process)]
        while left and time.monotonic() < deadline:
            self.orphans.reap()
            await asyncio.sleep(0.1)
            left = [process for process in left if _alive(process)]
        return [_shown(process) for process in left]

    # ---- inside --------------------------------------------------------------------------------------

    def _look(self) -> Sample:
        roles = by_role(self.broker)
        for processes in roles.values():
            self.seen.update(processes)
        self.host = next(iter(roles.get("host", [])), None)
        host_pid = self.host.pid if self.host else 0
        host_rss = 0
        with contextlib.suppress(psutil.Error):
            host_rss = self.host.memory_info().rss if self.host else 0
        return Sample(
            at=round(time.monotonic() - self.started, 2),
            broker_rss=self.broker.memory_info().rss,
            broker_fds=sum(descriptors(self.broker.pid).values()),
            host_pid=host_pid,
            host_rss=host_rss,
            host_fds=sum(descriptors(host_pid).values()) if host_pid else 0,
            processes=sum(len(processes) for processes in roles.values()),
            temporary_files=len(files_under(*self._temporary)),
        )

    def _rest(self) -> Rest:
        try:
            roles = by_role(self.broker)
        except psutil.Error:
            return Rest(Counter(), Counter(), Counter())
        self.seen.update(process for processes in roles.values() for process in processes)
        host = next(iter(roles.get("host", [])), None)
        return Rest(
            descriptors(self.broker.pid),
            descriptors(host.pid) if host else Counter(),
            Counter({role: len(processes) for role, processes in roles.items()}),
        )


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


LEAK_PER_RUN_BYTES: Final = 512
"""Steady growth of resident memory that is a leak; a forgotten response or task is several KiB."""

LEAK_SLACK_BYTES: Final = 4 * 1024 * 1024
"""Steady growth that is noise, over the whole load."""

MEMORY_MOST_BYTES: Final = 400 * 1024 * 1024
"""The most that broker or host may hold, whatever is done to them."""

WINDOWS: Final = 6
"""A leak grows in each of these parts of the load but the first, which fills caches. A high-water mark, which the C
library keeps after a few messages of many MiB came together, is a step between two parts that stay level."""


def growth(values: Sequence[int]) -> tuple[int, int, int]:
    """Medians of the second and the last of `WINDOWS` parts of a series, and the steady growth between them: the
    least rise from one part to the next, once for each."""
    size = len(values) // WINDOWS
    if size == 0:
        return 0, 0, 0
    medians = [int(statistics.median(values[part * size : (part + 1) * size])) for part in range(1, WINDOWS)]
    rises = [after - before for before, after in pairwise(medians)]
    return medians[0], medians[-1], max(0, min(rises)) * len(rises)


def memory_breaches(
    samples: Sequence[Sample], runs: int
) -> tuple[dict[str, tuple[int, int, int]], list[str]]:
    """`growth` of the broker and of the host that lived longest, and what is too much."""
    lives: defaultdict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.host_pid:
            lives[sample.host_pid].append(sample.host_rss)
    longest = max(lives.values(), key=len, default=list[int]())
    whole = {"broker": [sample.broker_rss for sample in samples], "host": longest}
    found = {who: growth(values) for who, values in whole.items()}
    breaches = [
        f"{who}: grows steadily, by {steady} bytes in {runs} runs"
        for who, (_, _, steady) in found.items()
        if steady > LEAK_SLACK_BYTES + LEAK_PER_RUN_BYTES * runs
    ]
    breaches += [
        f"{who}: holds {max(values)} bytes, at most {MEMORY_MOST_BYTES}"
        for who, values in whole.items()
        if max(values, default=0) > MEMORY_MOST_BYTES
    ]
    return found, breaches
