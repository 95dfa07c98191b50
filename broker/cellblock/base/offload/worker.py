"""Drives one process apart for the broker: it is started in a cgroup where there are any, given tasks, watched, and
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import psutil

from cellblock.base.offload.process import HEAD, message
from cellblock.base.offload.task import Answer, Task
from cellblock_worker.confinement.cgroup_workers import Killed, WorkerGroup, WorkerGroups
from cellblock_worker.launch.spawning import Process, kill, reaped, spawn

WRITE_BYTES: Final = 256 * 1024
"""Caps the bytes of one write to a process: the loop goes on between two."""

READ_BYTES: Final = 1024 * 1024
"""Caps what is read ahead of an answer."""

MAX_TOLD_BYTES: Final = 256 * 1024
"""Caps an answer beside its parts: it is decoded on the loop."""

MAX_PARTS_BYTES: Final = 192 * 1024 * 1024
"""Caps the parts of an answer together."""

LOOK_SECONDS: Final = 0.1
"""Sets the pause between two looks at what a task has taken: one that ends with its process cannot say it."""

ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Names the variables that a process apart gets of the broker's environment, and nothing else of it."""


class Worker:
    """Owns one process, which it alone kills. Made by `started`; `end` must follow.

    Attributes:
        killed_for: For whose memory the kernel has killed it, once it has ended, where it had a cgroup.
    """

    def __init__(self, process: Process, groups: WorkerGroups | None, group: WorkerGroup | None) -> None:
        self.killed_for: Killed | None = None
        self._process = process
        self._groups = groups
        self._group = group
        self._timer: asyncio.TimerHandle | None = None
        self._since_ms = self.took_ms = 0
        """Has the CPU time of the last task; of one that ended with its process, as of the last look."""

    @classmethod
    async def started(cls, groups: WorkerGroups | None) -> Worker:
        """Returns a new process. Raises OSError."""
        group = None
        if groups is not None:
            with contextlib.suppress(OSError):
                group = groups.take()
        try:
            return cls(await _spawned(group), groups, group)
        except BaseException:
            if groups is not None and group is not None:
                groups.give_back(group)
            raise

    @property
    def alive(self) -> bool:
        """Says whether the process is not known to have died."""
        stdout = self._process.stdout
        return self._process.returncode is None and stdout is not None and not stdout.at_eof()

    def keep(self) -> None:
        """Takes note that the process has work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire(self, seconds: float, action: Callable[[Worker], None]) -> None:
        """Has the process ended that has no work, and is not wanted after so long."""
        self._timer = asyncio.get_running_loop().call_later(seconds, action, self)

    async def do(self, task: Task, facts: Mapping[str, Any], parts: tuple[bytes | memoryview, ...]) -> Answer:
        """Has the process do one task.

        Raises:
            EOFError, OSError: It has died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        self.took_ms = 0
        if self._group is not None:
            self._group.limit_run(task.memory_bytes)
        head = {
            "work": task.work,
            "facts": facts,
            "cpu_seconds": task.cpu_seconds,
            "memory_bytes": task.memory_bytes,
        }
        with self._watched():
            stdin.write(message(head, parts))
            for part in parts:
                await _write(stdin, part)
            (size,) = HEAD.unpack(await stdout.readexactly(HEAD.size))
            if size > MAX_TOLD_BYTES:
                raise EOFError
            answer: dict[str, Any] = json.loads(await stdout.readexactly(size))
            sizes: list[int] = answer["sizes"]
            if sum(sizes) > MAX_PARTS_BYTES:
                raise EOFError
            out = [await stdout.readexactly(size) for size in sizes]
        self.took_ms = answer["cpu_ms"]
        return Answer(answer.get("facts", {}), out, answer.get("error"), answer["last"])

    def kill(self) -> None:
        """Kills the process; `end` must follow."""
        if self._process.returncode is None:
            kill(self._process, group=False)

    async def end(self) -> None:
        """Kills and reaps the process."""
        self.keep()
        self.kill()
        # Reaped here: a loop that closes before it would leave that to no one.
        await reaped(self._process)
        if self._groups is not None and self._group is not None:
            self.killed_for = self._group.killed_for()
            self._groups.give_back(self._group)
            self._group = None

    # ---- inside --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self) -> Generator[None]:
        """Looks at the CPU time and memory that a task takes as long as it lasts, and once more when it ends."""
        self._since_ms = self._used_ms()
        self._look()
        try:
            yield
        finally:
            self.keep()
            self.took_ms = max(self.took_ms, self._used_ms() - self._since_ms)

    def _look(self) -> None:
        self.took_ms = max(self.took_ms, self._used_ms() - self._since_ms)
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _used_ms(self) -> int:
        """Returns the CPU time of the process; 0 when it is gone."""
        # Once it is reaped, its pid may be another's.
        if self._process.returncode is None:
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(self._process.pid).cpu_times()
                return round((times.user + times.system) * 1000)
        return 0


async def _write(stdin: asyncio.StreamWriter, data: bytes | memoryview) -> None:
    """Writes bytes of any size; the loop goes on meanwhile."""
    view = memoryview(data)
    for start in range(0, len(view), WRITE_BYTES):
        stdin.write(view[start : start + WRITE_BYTES])
        await stdin.drain()


async def _spawned(group: WorkerGroup | None) -> Process:
    return await spawn(
        sys.executable,
        "-m",
        "cellblock.base.offload.process",
        str(os.getpid()),
        *(group.joined_by if group is not None else ()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        cwd="/",
        limit=READ_BYTES,
    )
