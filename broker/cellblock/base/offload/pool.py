"""Work on others' bytes that must not hold the broker's loop is done in a few processes, which clients and servers
share.

The decoders and parsers are native code that holds Python's lock, and what they make is freed in one go: in a thread
they would still hold the loop. Who waits is served in turns, as for places in the pool of workers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from cellblock.base.admission import Admission, Room, wait_turn
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.base.offload.task import Answer, ApartFailed, Task, TookTooLong
from cellblock.base.offload.worker import Worker
from cellblock.base.tasks import TaskSet
from cellblock_worker.confinement import cgroup
from cellblock_worker.confinement.cgroup_workers import TASKS_PER_WORKER, Killed

logger = logging.getLogger("cellblock.base.offload")

AT_ONCE: Final = 3
"""Bounds the processes at a time; more work waits its turn, and whoever it is for take turns as for places in the
pool."""

RESERVED: Final = 1
"""Keeps so many processes for those that have none: one client's bodies take seconds each if they are made for that."""

QUEUE_SIZE: Final = 256
"""Bounds the tasks that may wait; those of one client or server may take half. Not scripts: those count in the queue of
runs."""

QUEUE_WAIT_MS: Final = 30_000

WALL_SECONDS: Final = 30.0
"""Bounds the time from the start of a task to its answer: a few seconds of computing on a machine that is ten times
overloaded."""

GROUP_CAPS: Final = cgroup.Caps(memory_bytes=AT_ONCE * 1024 * cgroup.MIB, tasks=AT_ONCE * TASKS_PER_WORKER)
"""Caps all processes together, where they have cgroups: as much as ordinary work of each may take."""

IDLE_SECONDS: Final = 60.0
"""Passes until a process that has nothing to do is ended: it takes 30 to 80 MiB, and its start up to 0.6 s."""


class Bill:
    """Adds up the CPU time of work for a run that is not its worker's, in milliseconds. Any thread may add."""

    def __init__(self) -> None:
        self._cpu_ms = 0.0
        self._lock = threading.Lock()

    @property
    def cpu_ms(self) -> int:
        """Returns the CPU milliseconds that the bill has so far."""
        return round(self._cpu_ms)

    def add(self, cpu_ms: float) -> None:
        """Adds CPU milliseconds to the bill."""
        with self._lock:
            self._cpu_ms += cpu_ms


paying: Final[ContextVar[Bill | None]] = ContextVar("cellblock_paying", default=None)
"""Holds the bill of the run for which something is asked, such as an answer that then has to be read or made
plain."""


class OnBill:
    """Puts what this thread computes in a block, which waits for nobody, on the bill of the run that it is for."""

    __slots__ = ("_began", "_bill")

    def __enter__(self) -> None:
        self._bill, self._began = paying.get(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        if self._bill is not None:
            self._bill.add((time.thread_time() - self._began) * 1000)


class Apart:
    """Has work done in processes that it owns. Starts one when it is needed, and ends those that are not.

    Args:
        queue_wait_ms: How long something waits at most.
        grouped: Whether each process gets a cgroup, where the machine allows that.
    """

    def __init__(self, queue_wait_ms: int = QUEUE_WAIT_MS, *, grouped: bool = True) -> None:
        self._queue: Admission[asyncio.Future[None]] = Admission(QUEUE_SIZE)
        self._queue_wait_ms = queue_wait_ms
        self.free = AT_ONCE
        """Counts how many processes more may work at once."""

        self._idle: list[Worker] = []
        self._working: set[Worker] = set()
        self._ends = TaskSet()
        self._closed = False
        self._grouped = grouped
        self._membership: cgroup.Membership | None = None

    @property
    def waiting(self) -> int:
        """Returns how many pieces of work wait for a process."""
        return self._queue.waiting

    @property
    def caps_memory(self) -> bool:
        """Says whether a process that would start now had a cgroup for its memory."""
        return self._groups() is not None and self._membership is not None and self._membership.caps_memory

    async def do(
        self,
        task: Task,
        facts: Mapping[str, Any],
        *parts: bytes | memoryview,
        key: str,
        subject: str = "",
        room: Room | None = None,
        bill: Bill | None = None,
    ) -> Answer:
        """Has one piece of work done. Cancelled, it is given up, and its process killed.

        Args:
            task: Its kind.
            facts: Plain JSON data, small.
            parts: Bytes, as large as they are.
            key: Whom it is for: processes are shared fairly between keys.
            subject: In place of the task's own, for messages.
            room: Where it counts while it waits; None: in a queue of this work alone.
            bill: Gets what it takes, however it ends.

        Raises:
            ApartFailed: It was over a bound of the task.
            Overloaded: Too much waits for a process, or this has waited too long.
            HostUnavailable: Closed meanwhile.
            OSError: No process can be started.
        """
        subject = subject or task.subject
        await self._turn(key, subject, room)
        try:
            return await self._done(task, facts, parts, subject, bill or Bill())
        finally:
            self._end(key)

    async def close(self) -> None:
        """Refuses everything that waits, and ends the processes; work that one has fails."""
        self.refuse_all()
        for worker in self._working:
            worker.kill()
        while self._idle:
            self._ends.start(self._idle.pop().end())
        await self._ends.ended()
        if self._membership is not None:
            self._membership.leave()
            self._membership = None

    def refuse_all(self) -> None:
        """Refuses all tasks that wait, and those that come from now on."""
        self._closed = True
        for ticket in self._queue.clear():
            if not ticket.item.done():
                ticket.item.set_exception(_stopping())

    # ---- inside: turns -------------------------------------------------------------------------------

    async def _turn(self, key: str, subject: str, room: Room | None) -> None:
        if self._closed:
            raise _stopping()
        if self._queue.may_start(key, self.free, RESERVED):
            self._queue.start(key)
            self.free -= 1
            return
        ticket = self._queue.join(key, asyncio.get_running_loop().create_future(), room)
        seconds = self._queue_wait_ms / 1000
        try:
            await wait_turn(self._queue, ticket, ticket.item, seconds, lambda _: self._end(key))
        except TimeoutError:
            raise Overloaded(
                f"{subject} is large, and its turn to be read did not come within {self._queue_wait_ms} ms "
                "(pool.queue_wait_ms).",
                hint="Try again in a moment, with fewer large scripts or messages at a time, or with smaller ones.",
            ) from None

    def _end(self, key: str) -> None:
        self._queue.end(key)
        self.free += 1
        # The turn is given here, not when its work wakes: in between, a newcomer would take it.
        while (ticket := self._queue.next_up(self.free, RESERVED)) is not None:
            if ticket.item.done():
                # Cancelled, and not yet awake to leave by itself.
                self._queue.leave(ticket)
                continue
            self._queue.admit(ticket)
            self.free -= 1
            ticket.item.set_result(None)

    # ---- inside: processes ---------------------------------------------------------------------------

    async def _done(
        self,
        task: Task,
        facts: Mapping[str, Any],
        parts: tuple[bytes | memoryview, ...],
        subject: str,
        bill: Bill,
    ) -> Answer:
        worker = self._waiting_one() or await Worker.started(self._groups())
        if self._closed:
            # While it started: whoever closes has not seen it.
            await worker.end()
            raise _stopping()
        kept = False
        self._working.add(worker)
        try:
            async with asyncio.timeout(WALL_SECONDS):
                answer = await worker.do(task, facts, parts)
            kept = not answer.last
        except TimeoutError:
            raise TookTooLong(
                f"{subject} could not be read within {WALL_SECONDS:g} s.",
                hint="Send less at a time.",
            ) from None
        except (OSError, EOFError):
            await worker.end()
            raise _died(task, subject, worker.killed_for) from None
        finally:
            self._working.discard(worker)
            bill.add(worker.took_ms)
            if kept and not self._closed:
                self._idle.append(worker)
                worker.expire(IDLE_SECONDS, self._expire)
            else:
                await worker.end()
        if answer.error is not None:
            logger.error("%s failed: %s", task.work, answer.error)
            raise ApartFailed(
                f"Cellblock failed while it read this: {subject}.",
                hint="Report this with the broker's log.",
            )
        return answer

    def _groups(self) -> cgroup.WorkerGroups | None:
        """Returns the groups of the processes: made with the first, under v2 once the worker host has made room."""
        if self._grouped and (self._membership is None or self._membership.workers is None):
            self._membership = cgroup.enter(GROUP_CAPS, inside=False)
        return self._membership.workers if self._membership is not None else None

    def _waiting_one(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                worker.keep()
                return worker
            self._ends.start(worker.end())
        return None

    def _expire(self, worker: Worker) -> None:
        self._idle.remove(worker)
        self._ends.start(worker.end())


def _died(task: Task, subject: str, killed_for: Killed | None) -> ApartFailed:
    if killed_for == "shared":
        said = "all such work together, or this machine, ran out of memory, and its process was killed"
    elif killed_for == "own":
        said = f"that took more than {task.memory_bytes} bytes of memory"
    else:
        said = (
            f"that took more than {task.cpu_seconds} s of computing or {task.memory_bytes} bytes of memory, "
            "or its process was killed"
        )
    return ApartFailed(f"{subject} could not be read: {said}.", hint="Send less at a time.")


def _stopping() -> HostUnavailable:
    return HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
