"""Runs one process made like a worker, from its start to its end, for what a host does by itself, beside any run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.deno_process import DenoProcess
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.launch.spawning import REAP_BOUND_SECONDS


class Outcome(NamedTuple):
    """An outcome tells how the process ended, what it wrote to stdout, and the last that it wrote to stderr."""

    returncode: int
    output: bytes
    complaints: bytes

    @property
    def stderr_text(self) -> str:
        """Returns the beginning of what the process wrote to its stderr, for a message."""
        return self.complaints.decode("utf-8", "replace").strip()[:300]


class _Ending:
    """Collects what a process writes until it has ended (ProcessEvents)."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.returncode: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_output(self, data: bytes) -> None:
        self.output += data

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        if not self.returncode.done():
            self.returncode.set_result(returncode)


async def run_once(
    launch: confinement.Launch, bound: float, given: bytes = b"", launcher: Launcher | None = None
) -> Outcome:
    """Starts a process, gives it its whole standard input, and waits for its end.

    Args:
        launch: Closed here.
        bound: Longest time in seconds; past it, or when the caller is cancelled, the process is killed.
        given: What it reads.
        launcher: Starts it, one that is in the room where `launch` is in one; None: it is started from this process.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It was killed.
    """
    ending = _Ending()
    try:
        order = launch.order(None)
        process = DenoProcess(launcher or Launcher(alone=True), order, ending, max_unsent_bytes=len(given))
    finally:
        launch.close()
    process.write(given)
    process.end_input()
    try:
        async with asyncio.timeout(bound):
            returncode = await asyncio.shield(ending.returncode)
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        process.abandon_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_BOUND_SECONDS):
                await asyncio.shield(ending.returncode)
        raise
    if process.trouble is not None:
        raise process.trouble
    return Outcome(returncode, bytes(ending.output), process.stderr_tail)
