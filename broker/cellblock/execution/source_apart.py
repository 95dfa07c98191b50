"""Parses scripts without holding the broker's event loop: small ones at once, others in a process of their own.

The parser is C code that holds Python's lock, and frees a large tree in one go (150 ms for 1 MiB): in a thread it
would still hold the loop. The process has no credential, limits itself, and its death costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
from dataclasses import asdict
from typing import Any, Final

from cellblock.errors import HostUnavailable, Overloaded
from cellblock.execution import imports
from cellblock.execution.imports import Imports, Span, TooComplex, TooSlow, find_imports
from cellblock.pool.admission import DEFAULT_CLIENT, Admission, Ticket
from cellblock_worker.spawning import kill, reaped, spawn

INLINE_BYTES: Final = 8 * 1024
"""Ordinary code of this size is parsed in 3 ms. Larger scripts are rare; a process costs them some 100 ms. With text
made to be slow the parser asks too seldom whether to go on: 16 KiB hold the loop for 44 ms of CPU, 8 KiB for 18."""

INLINE_SECONDS: Final = 0.012
"""CPU time after which text made to be slow goes to a process too."""

PROCESS_BOUND_SECONDS: Final = 20.0
"""From the spawn to the answer: `PARSE_BOUND_SECONDS` of CPU time on a machine that is ten times overloaded."""

PROCESS_CPU_SECONDS: Final = 5
PROCESS_MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
"""1 MiB of source takes 200 MiB at the worst that was seen."""

AT_ONCE: Final = 3
"""Processes at a time; more scripts wait their turn, and clients take turns as for places in the pool."""

RESERVED: Final = 1
"""Of these, kept for clients that have none: one client's scripts take seconds each if they are made for that."""

QUEUE_SIZES: Final = (256, 128)
"""What may wait, in all and of one client, where no pool has bounds for it."""

ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that the process gets of the broker's environment."""


class Analyst:
    """Finds the imports of scripts; one for a broker.

    Args:
        queue: Of scripts that wait for a process; None: one of its own.
        queue_wait_ms: How long one waits at most.
    """

    def __init__(
        self, queue: Admission[asyncio.Future[None]] | None = None, queue_wait_ms: int = 30_000
    ) -> None:
        self._queue: Admission[asyncio.Future[None]] = queue or Admission(*QUEUE_SIZES)
        self._queue_wait_ms = queue_wait_ms
        self._free = AT_ONCE

    async def find(self, source: bytes, client: str = DEFAULT_CLIENT) -> Imports:
        """As `find_imports`, with the event loop held for at most about `INLINE_SECONDS`.

        Args:
            source: The script.
            client: Whose it is; processes are shared fairly between clients.

        Raises:
            TooComplex: As `find_imports` does.
            Overloaded: Too many scripts wait for a process, or this one has waited too long.
            HostUnavailable: Closed meanwhile.
            OSError: No process can be started.
        """
        if len(source) <= INLINE_BYTES:
            with contextlib.suppress(TooSlow):
                return find_imports(source, INLINE_SECONDS)
        await self._turn(client)
        try:
            return await _find_apart(source)
        finally:
            self._end(client)

    def close(self) -> None:
        """Refuses everything that waits."""
        for ticket in self._queue.clear():
            if not ticket.item.done():
                error = HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
                ticket.item.set_exception(error)

    async def _turn(self, client: str) -> None:
        if self._queue.may_start(client, self._free, RESERVED):
            self._queue.start(client)
            self._free -= 1
            return
        ticket = self._queue.join(client, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(self._queue_wait_ms / 1000):
                await ticket.item
        except TimeoutError:
            self._take_back(ticket)
            raise Overloaded(
                f"This script is large, and its turn to be read did not come within {self._queue_wait_ms} ms "
                "(pool.queue_wait_ms).",
                hint="Try again in a moment, send fewer large scripts at a time, or write shorter ones.",
            ) from None
        except asyncio.CancelledError:
            self._take_back(ticket)
            raise
        finally:
            self._queue.leave(ticket)

    def _take_back(self, ticket: Ticket[asyncio.Future[None]]) -> None:
        """A turn that came at the moment at which its run gave up goes to the next in the queue."""
        turn = ticket.item
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._end(ticket.client)

    def _end(self, client: str) -> None:
        self._queue.end(client)
        self._free += 1
        # The turn is given here, not when its run wakes: in between, a newcomer would take it.
        while (ticket := self._queue.next_up(self._free, RESERVED)) is not None:
            if ticket.item.done():
                # Cancelled, and not yet awake to leave by itself.
                self._queue.leave(ticket)
                continue
            self._queue.admit(ticket)
            self._free -= 1
            ticket.item.set_result(None)


async def _find_apart(source: bytes) -> Imports:
    process = await spawn(
        sys.executable,
        "-m",
        "cellblock.execution.source_apart",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        cwd="/",
    )
    try:
        async with asyncio.timeout(PROCESS_BOUND_SECONDS):
            answer, _ = await process.communicate(source)
    except TimeoutError:
        raise TooSlow(f"it cannot be parsed within {imports.PARSE_BOUND_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            kill(process, group=False)
            # Reaped here: a loop that closes before it would leave that to no one.
            await reaped(process)
    if process.returncode != 0:
        raise TooComplex("its parser ran out of time or memory")
    return _decoded(json.loads(answer))


def _decoded(answer: dict[str, Any]) -> Imports:
    if "refused" in answer:
        raise TooComplex(answer["refused"])
    statics, dynamics = (
        tuple(Span(span["start"], span["end"], span["is_string"]) for span in answer[kind])
        for kind in ("statics", "dynamics")
    )
    return Imports(answer["media_type"], statics, dynamics, answer["javascript"])


def main() -> None:
    """The process: a script on stdin, the answer as JSON on stdout."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESS_CPU_SECONDS, PROCESS_CPU_SECONDS))
    if sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_DATA, (PROCESS_MEMORY_BYTES, PROCESS_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: dict[str, Any]
    try:
        source = sys.stdin.buffer.read()
        answer = asdict(find_imports(source, imports.PARSE_BOUND_SECONDS, imports.BLANK_BOUND_SECONDS))
    except TooComplex as error:
        answer = {"refused": str(error)}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    # The tree need not be freed piece by piece.
    os._exit(0)


if __name__ == "__main__":
    main()
