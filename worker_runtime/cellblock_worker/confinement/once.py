"""Runs one process made like a worker, from its start to its end, for what a host does by itself, beside any run."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.spawning import kill, reaped, spawn


class Outcome(NamedTuple):
    """An outcome tells how the process ended, and all that it wrote."""

    returncode: int
    output: bytes
    complaints: bytes

    @property
    def said(self) -> str:
        """Returns the beginning of what the process wrote to its stderr, for a message."""
        return self.complaints.decode("utf-8", "replace").strip()[:300]


async def run_once(launch: confinement.Launch, bound: float, given: bytes = b"") -> Outcome:
    """Starts it, gives it its whole standard input, and waits for its end.

    Args:
        launch: Closed here.
        bound: Longest time in seconds; past it, or when the caller is cancelled, the process is killed.
        given: What it reads.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It was killed.
    """
    try:
        process = await spawn(
            *launch.argv,
            env=confinement.WORKER_ENVIRONMENT,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=launch.preexec,
            pass_fds=launch.fds,
        )
    finally:
        launch.close()
    try:
        async with asyncio.timeout(bound):
            output, complaints = await process.communicate(given)
    finally:
        if process.returncode is None:
            kill(process, group=True)
            await reaped(process)
    assert process.returncode is not None
    return Outcome(process.returncode, output, complaints)
