"""Parses scripts: small ones on the event loop, each other one in a process of its own.

The parser is C code that holds Python's lock, and frees a large tree in one go, so a thread would hold the loop as
well. 1 MiB takes 0.4 s (JavaScript) to 2.1 s (TypeScript): the one kind of bytes that has no bound of some
milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Final

import msgspec

from cellblock.base.admission import Admission, QueueBound, wait_turn
from cellblock.base.budget import Account
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.base.kept import Newest
from cellblock.script import imports
from cellblock.script.imports import Imports, TooComplex, TooSlow, find_imports
from cellblock.script.parser_process import CPU_SECONDS, Parsed
from cellblock_worker.launch.spawning import Process, kill, passed_environment, reaped, spawn

INLINE_BYTES: Final = 16 * 1024
"""Bounds the scripts that are parsed on the loop: ordinary code of this size takes 4 ms, TypeScript 28. A process takes
0.1 s. With text made to be slow the parser asks too seldom whether to go on: this much holds the loop for 45 ms."""

INLINE_SECONDS: Final = 0.03
"""Sets the CPU time after which text made to be slow goes to a process too."""

AT_ONCE: Final = 3
"""Bounds the processes at a time; clients take turns, as for places in the pool."""

RESERVED: Final = 1
"""Keeps so many processes for clients that have none."""

QUEUE_SIZE: Final = 256

KNOWN_SCRIPTS: Final = 64
"""Bounds the scripts of which it is known what parsing them gives: kept ones, and what is tried again or sent now and
then."""

WALL_SECONDS: Final = 30.0
"""Bounds the time of one process: its bound on CPU time, on a machine that is overloaded."""


class Parsers:
    """Parses the scripts of all clients, and owns the processes for it.

    Args:
        queue_wait_ms: How long a script waits for a process at most.
    """

    def __init__(self, queue_wait_ms: int = 30_000) -> None:
        self._queue: Admission[asyncio.Future[None]] = Admission(QUEUE_SIZE)
        self._queue_wait_ms = queue_wait_ms
        self._closed = False
        # By client, so that none can find out by the time what others have sent.
        self._known = Newest[tuple[str, bytes], Imports](KNOWN_SCRIPTS)
        self.free = AT_ONCE
        """Counts the processes that may start now."""

    @property
    def waiting(self) -> int:
        """Returns how many scripts wait for a process."""
        return self._queue.waiting

    async def parsed(self, source: bytes, account: Account, bound: QueueBound | None = None) -> Imports:
        """Finds imports as `find_imports` does.

        Args:
            source: The script.
            account: Of the run.
            bound: Where it counts while it waits for a process: in the queue of runs.

        Raises:
            TooComplex: As `find_imports` does.
            Overloaded: Too many scripts wait for a process, or this one has waited too long.
            HostUnavailable: Cellblock stops meanwhile, or no process can be started.
        """
        if len(source) <= INLINE_BYTES:
            of = account.client, source
            with contextlib.suppress(TooSlow):
                found = self._known[of] = self._known.get(of) or find_imports(source, INLINE_SECONDS)
                return found
        await self._turn(account.client, bound)
        try:
            found = await self._in_process(source)
        except TimeoutError:
            raise TooSlow(f"it cannot be parsed within {imports.PARSE_BOUND_SECONDS:g} s") from None
        except OSError as error:
            message = f"No process can be started to read the script ({error})."
            raise HostUnavailable(message, hint="Try again in a moment.") from None
        finally:
            self._end(account.client)
        account.add_cpu(found.cpu_ms)
        if isinstance(found.imports, str):
            raise TooComplex(found.imports)
        return found.imports

    def close(self) -> None:
        """Refuses the scripts that wait, and those that come from now on."""
        self._closed = True
        for ticket in self._queue.clear():
            if not ticket.item.done():
                ticket.item.set_exception(_stopping())

    # ---- inside --------------------------------------------------------------------------------------

    async def _turn(self, client: str, bound: QueueBound | None) -> None:
        if self._closed:
            raise _stopping()
        if self._queue.may_start(client, self.free, RESERVED):
            self._queue.start(client)
            self.free -= 1
            return
        ticket = self._queue.join(client, asyncio.get_running_loop().create_future(), bound)
        seconds = self._queue_wait_ms / 1000
        try:
            await wait_turn(self._queue, ticket, ticket.item, seconds, lambda _: self._end(client))
        except TimeoutError:
            raise Overloaded(
                "This script is large, and its turn to be read did not come within "
                f"{self._queue_wait_ms} ms (pool.queue_wait_ms).",
                hint="Try again in a moment, with fewer large scripts at a time, or with smaller ones.",
            ) from None

    def _end(self, client: str) -> None:
        self._queue.end(client)
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

    async def _in_process(self, source: bytes) -> Parsed:
        """Parses in a new process, which dies with this call. Raises TimeoutError, OSError."""
        process = await _started()
        try:
            async with asyncio.timeout(WALL_SECONDS):
                said, _ = await process.communicate(source)
            return msgspec.json.decode(said, type=Parsed)
        except msgspec.DecodeError:
            # It has died over a bound.
            return Parsed("its parser ran out of time or memory", CPU_SECONDS * 1000)
        finally:
            if process.returncode is None:
                kill(process, group=False)
            await reaped(process)


async def _started() -> Process:
    return await spawn(
        sys.executable,
        "-m",
        "cellblock.script.parser_process",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=passed_environment(),
        cwd="/",
    )


def _stopping() -> HostUnavailable:
    return HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
