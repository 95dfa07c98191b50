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

from support.processes import alive, command_line

SAMPLE_SECONDS: Final = 1.0
ORPHAN_SECONDS: Final = 15.0
"""A process that has lost its parent may live this long: a worker of a killed host dies at once, a stopped one when it
is killed, an upstream server when it sees the end of its stdin."""

REST_SAMPLES: Final = 60
REST_PAUSE_SECONDS: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36


_HELD: Final = re.compile(r"/worker-\d+/memory\.")
"""Files of the cgroups of as many workers as a host had at a time."""

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
                kind = re.sub(
                    r"^/proc/\d+/", "/proc/PID/", target.partition(":")[0] if ":" in target else target
                )
                kinds[re.sub(r"(-host)-[0-9a-f]{12}$", r"\1", kind)] += 1
    return kinds


def files_under(*folders: Path) -> set[str]:
    """Everything in these folders."""
    return {str(path) for folder in folders for path in folder.rglob("*")}


def tracebacks(log: str) -> list[str]:
    """The entries of a log with a traceback, but for the MCP SDK's about lines of servers that are no messages."""
    starts = [0, *(found.start() for found in re.finditer(r"^\d{4}-\d\d-\d\d ", log, re.MULTILINE)), len(log)]
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
        looks = [self._rest()]
        while looks[-REST_SAMPLES:] != looks[-1:] * REST_SAMPLES and time.monotonic() < deadline:
            await asyncio.sleep(REST_PAUSE_SECONDS)
            looks.append(self._rest())
        return looks[-1]

    async def survivors(self, bound: float) -> list[str]:
        """What is left of all processes ever seen, after the broker has ended and `bound` seconds at most."""
        deadline = time.monotonic() + bound
        while (left := [one for one in self.seen if alive(one)]) and time.monotonic() < deadline:
            self.orphans.reap()
            await asyncio.sleep(0.1)
        return [f"{one.pid} {' '.join(command_line(one))[:200]}" for one in left]

    # ---- inside --------------------------------------------------------------------------------------

    def _roles(self) -> tuple[Kinds, psutil.Process | None]:
        """Looks at the living processes: how many have each role, and the host."""
        roles = by_role(self.broker)
        self.seen.update(process for processes in roles.values() for process in processes)
        host = next(iter(roles.get("host", [])), None)
        return Counter({role: len(processes) for role, processes in roles.items()}), host

    def _look(self) -> Sample:
        roles, host = self._roles()
        host_rss = 0
        with contextlib.suppress(psutil.Error):
            host_rss = host.memory_info().rss if host else 0
        return Sample(
            at=round(time.monotonic() - self.started, 2),
            broker_rss=self.broker.memory_info().rss,
            broker_fds=descriptors(self.broker.pid).total(),
            host_pid=host.pid if host else 0,
            host_rss=host_rss,
            host_fds=descriptors(host.pid).total() if host else 0,
            processes=roles.total(),
            temporary_files=len(files_under(*self._temporary)),
        )

    def _rest(self) -> Rest:
        try:
            roles, host = self._roles()
        except psutil.Error:
            return Rest(Counter(), Counter(), Counter())
        return Rest(descriptors(self.broker.pid), descriptors(host.pid) if host else Counter(), roles)


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
