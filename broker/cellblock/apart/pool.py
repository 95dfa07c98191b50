"""Work on others' bytes that must not hold the broker's loop: done in a few processes, which clients and servers share.

The decoders and parsers are native code that holds Python's lock, and what they make is freed in one go: in a thread
they would still hold the loop. Who waits is served in turns, as for places in the pool of workers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from cellblock.apart.process import HEAD, message
from cellblock.errors import CellblockError, HostUnavailable, Overloaded
from cellblock.pool.admission import Admission, Ticket
from cellblock.pool.room import Room
from cellblock_worker.spawning import Process, kill, reaped, spawn

logger = logging.getLogger("cellblock.apart")

AT_ONCE: Final = 3
"""Processes at a time; more work waits its turn, and whoever it is for take turns as for places in the pool."""

RESERVED: Final = 1
"""Of these, kept for those that have none: one client's bodies take seconds each if they are made for that."""

QUEUE_SIZES: Final = (256, 128)
"""What may wait, in all and of one, but scripts: those count in the queue of runs."""

QUEUE_WAIT_MS: Final = 30_000

WALL_SECONDS: Final = 30.0
"""From the start of a task to its answer: a few seconds of computing on a machine that is ten times overloaded."""

IDLE_SECONDS: Final = 60.0
"""A process that has nothing to do for so long is ended: it takes 30 to 80 MiB, and its start up to 0.6 s."""

WRITE_BYTES: Final = 256 * 1024
"""Of one write: the loop goes on between two."""

READ_BYTES: Final = 1024 * 1024
"""What is read ahead of an answer."""

MAX_TOLD_BYTES: Final = 256 * 1024
"""Of an answer beside its parts: it is decoded on the loop."""

MAX_PARTS_BYTES: Final = 192 * 1024 * 1024
"""Of the parts of an answer together."""

ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that the processes get of the broker's environment."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of work.

    Attributes:
        work: A function, as `module:name`: takes what it is told and the parts, and gives the same.
        subject: What is worked on, for messages; begins a sentence.
        cpu_seconds: What one may take. A process that takes more is killed.
        memory_bytes: The same of memory. Linux only.
    """

    work: str
    subject: str
    cpu_seconds: int = 5
    memory_bytes: int = 1024 * 1024 * 1024


class Answer(NamedTuple):
    """What a task gave: plain JSON data that is small, and bytes that are not to be decoded here; and what it took."""

    told: dict[str, Any]
    parts: list[bytes]
    cpu_ms: int = 0


class ApartFailed(CellblockError):
    """A process did not give an answer: it was over a bound, or was killed. The task has had no effect."""


class TookTooLong(ApartFailed):
    """The answer did not come in time."""


class Apart:
    """Has work done in processes that it owns. Starts one when it is needed, and ends those that are not.

    Args:
        queue_wait_ms: How long something waits at most.
    """

    def __init__(self, queue_wait_ms: int = QUEUE_WAIT_MS) -> None:
        self._queue: Admission[asyncio.Future[None]] = Admission(*QUEUE_SIZES)
        self._queue_wait_ms = queue_wait_ms
        self._free = AT_ONCE
        self._idle: list[_Worker] = []
        self._working: set[_Worker] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def free(self) -> int:
        """How many more processes may work."""
        return self._free

    @property
    def waiting(self) -> int:
        """What waits for one."""
        return self._queue.waiting

    async def do(
        self,
        task: Task,
        told: Mapping[str, Any],
        *parts: bytes | memoryview,
        key: str,
        subject: str = "",
        room: Room | None = None,
    ) -> Answer:
        """Has one piece of work done. Cancelled, it is given up, and its process killed.

        Args:
            task: Its kind.
            told: Plain JSON data, small.
            parts: Bytes, as large as they are.
            key: Whom it is for: processes are shared fairly between keys.
            subject: In place of the task's own, for messages.
            room: Where it counts while it waits; None: in a queue of this work alone.

        Raises:
            ApartFailed: It was over a bound of the task.
            Overloaded: Too much waits for a process, or this has waited too long.
            HostUnavailable: Closed meanwhile.
            OSError: No process can be started.
        """
        subject = subject or task.subject
        await self._turn(key, subject, room)
        try:
            return await self._done(task, told, parts, subject)
        finally:
            self._end(key)

    async def close(self) -> None:
        """Refuses everything that waits, and ends the processes; work that one has fails."""
        self.refuse_all()
        for worker in self._working:
            worker.kill()
        while self._idle:
            self._discard(self._idle.pop())
        if self._ends:
            await asyncio.wait(self._ends)

    def refuse_all(self) -> None:
        """Refuses everything that waits, and what comes from now on."""
        self._closed = True
        for ticket in self._queue.clear():
            if not ticket.item.done():
                ticket.item.set_exception(_stopping())

    # ---- inside: turns -------------------------------------------------------------------------------

    async def _turn(self, key: str, subject: str, room: Room | None) -> None:
        if self._closed:
            raise _stopping()
        if self._queue.may_start(key, self._free, RESERVED):
            self._queue.start(key)
            self._free -= 1
            return
        ticket = self._queue.join(key, asyncio.get_running_loop().create_future(), room)
        try:
            async with asyncio.timeout(self._queue_wait_ms / 1000):
                await ticket.item
        except TimeoutError:
            self._take_back(ticket)
            raise Overloaded(
                f"{subject} is large, and its turn to be read did not come within {self._queue_wait_ms} ms "
                "(pool.queue_wait_ms).",
                hint="Try again in a moment, with fewer large scripts or messages at a time, or with smaller ones.",
            ) from None
        except asyncio.CancelledError:
            self._take_back(ticket)
            raise
        finally:
            self._queue.leave(ticket)

    def _take_back(self, ticket: Ticket[asyncio.Future[None]]) -> None:
        """A turn that came at the moment at which its work was given up goes to the next in the queue."""
        turn = ticket.item
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._end(ticket.client)

    def _end(self, key: str) -> None:
        self._queue.end(key)
        self._free += 1
        # The turn is given here, not when its work wakes: in between, a newcomer would take it.
        while (ticket := self._queue.next_up(self._free, RESERVED)) is not None:
            if ticket.item.done():
                # Cancelled, and not yet awake to leave by itself.
                self._queue.leave(ticket)
                continue
            self._queue.admit(ticket)
            self._free -= 1
            ticket.item.set_result(None)

    # ---- inside: processes ---------------------------------------------------------------------------

    async def _done(
        self, task: Task, told: Mapping[str, Any], parts: tuple[bytes | memoryview, ...], subject: str
    ) -> Answer:
        worker = self._waiting_one() or _Worker(await _started())
        kept = False
        self._working.add(worker)
        try:
            async with asyncio.timeout(WALL_SECONDS):
                answer, kept = await worker.do(task, told, parts)
        except TimeoutError:
            raise TookTooLong(
                f"{subject} could not be read within {WALL_SECONDS:g} s.",
                hint="Send less at a time.",
            ) from None
        except (OSError, EOFError):
            raise ApartFailed(
                f"{subject} could not be read: that took more than {task.cpu_seconds} s of computing or "
                f"{task.memory_bytes} bytes of memory, or its process was killed.",
                hint="Send less at a time.",
            ) from None
        finally:
            self._working.discard(worker)
            if kept and not self._closed:
                self._idle.append(worker)
                worker.expire(IDLE_SECONDS, self._expire)
            else:
                await worker.end()
        if "error" in answer.told:
            logger.error("%s failed: %s", task.work, answer.told["error"])
            raise ApartFailed(
                f"Cellblock failed while it read this: {subject}.",
                hint="Report this with the broker's log.",
            )
        return Answer(answer.told["told"], answer.parts, answer.cpu_ms)

    def _waiting_one(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                worker.keep()
                return worker
            self._discard(worker)
        return None

    def _expire(self, worker: _Worker) -> None:
        self._idle.remove(worker)
        self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        ending = asyncio.ensure_future(worker.end())
        self._ends.add(ending)
        ending.add_done_callback(self._ends.discard)


class _Worker:
    """One process, which it alone kills."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._timer: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether it is not known to have died."""
        stdout = self._process.stdout
        return self._process.returncode is None and stdout is not None and not stdout.at_eof()

    def keep(self) -> None:
        """It has work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire(self, seconds: float, action: Callable[[_Worker], None]) -> None:
        """It has none, and is not wanted after so long."""
        self._timer = asyncio.get_running_loop().call_later(seconds, action, self)

    async def do(
        self, task: Task, told: Mapping[str, Any], parts: tuple[bytes | memoryview, ...]
    ) -> tuple[Answer, bool]:
        """One task; says also whether it can have another.

        Raises:
            EOFError, OSError: It has died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        head = {
            "work": task.work,
            "told": told,
            "cpu_seconds": task.cpu_seconds,
            "memory_bytes": task.memory_bytes,
        }
        stdin.write(message(head, parts))
        for part in parts:
            await _write(stdin, part)
        (size,) = HEAD.unpack(await stdout.readexactly(HEAD.size))
        if size > MAX_TOLD_BYTES:
            raise EOFError
        answer: dict[str, Any] = json.loads(await stdout.readexactly(size))
        sizes = cast("list[int]", answer.pop("sizes"))
        if sum(sizes) > MAX_PARTS_BYTES:
            raise EOFError
        last: bool = answer.pop("last")
        out = [await stdout.readexactly(size) for size in sizes]
        return Answer(answer, out, answer.pop("cpu_ms")), not last

    def kill(self) -> None:
        """Kills it; `end` must follow."""
        if self._process.returncode is None:
            kill(self._process, group=False)

    async def end(self) -> None:
        """Kills and reaps it."""
        self.keep()
        self.kill()
        # Reaped here: a loop that closes before it would leave that to no one.
        await reaped(self._process)


async def _write(stdin: asyncio.StreamWriter, data: bytes | memoryview) -> None:
    """Writes bytes of any size; the loop goes on meanwhile."""
    view = memoryview(data)
    for start in range(0, len(view), WRITE_BYTES):
        stdin.write(view[start : start + WRITE_BYTES])
        await stdin.drain()


async def _started() -> Process:
    return await spawn(
        sys.executable,
        "-m",
        "cellblock.apart.process",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        cwd="/",
        limit=READ_BYTES,
    )


def _stopping() -> HostUnavailable:
    return HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
