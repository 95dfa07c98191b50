"""Starts a process for the event loop, safe to cancel at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

__all__ = ["Process", "close_pipes", "kill", "let_go", "passed_environment", "pipe_of", "reaped", "spawn"]

_PASSED: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

REAP_BOUND_SECONDS: Final = 5.0
"""Bounds the time from SIGKILL to the exit and the last byte of the pipes, which a process elsewhere may hold open."""


def passed_environment() -> dict[str, str]:
    """Returns what a process of ours gets of this one's environment, in another folder: no credential can be among it,
    and no path is relative."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    if path := passed.get("PYTHONPATH"):
        passed["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    return passed


async def spawn(*argv: str, start_new_session: bool = False, **options: Any) -> Process:
    """Works as `asyncio.create_subprocess_exec`, whose cancellation kills the child alone and waits for what it
    started.

    Cancelled here, the process is killed with its group, where it has one of its own, and reaped.

    Args:
        argv: The program and its arguments.
        start_new_session: Whether it leads a session and a process group.
        options: As `asyncio.create_subprocess_exec` takes them.

    Raises:
        OSError: It cannot be started.
    """
    creating = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*argv, start_new_session=start_new_session, **options)
    )
    try:
        return await asyncio.shield(creating)
    except BlockingIOError as error:
        why = "no more processes are allowed here (`ulimit -u`, or the pids limit of the cgroup)"
        raise BlockingIOError(error.errno, why) from None
    except asyncio.CancelledError:
        # A callback: a second cancellation ends the wait below, but not the kill.
        creating.add_done_callback(partial(_discard, start_new_session))
        await asyncio.wait([creating])
        if creating.exception() is None:
            await reaped(creating.result())
        raise


def kill(process: Process, *, group: bool) -> None:
    """Sends SIGKILL to a process, or to the whole group that it leads, and ends its input.

    The input, because what has left the group by then, and holds the pipes open, may wait for it.
    """
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    if process.stdin is not None and not process.stdin.is_closing():
        # Not `close`, which would wait for what is not read yet.
        process.stdin.transport.abort()


async def reaped(process: Process) -> None:
    """Waits for the end of a killed process, at most `REAP_BOUND_SECONDS`, and closes its pipes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_BOUND_SECONDS):
            await process.wait()
    close_pipes(process)


def close_pipes(process: Process) -> None:
    """Closes this side of the pipes of a process that is over: what it has started may hold the other side, and from
    Python 3.14 on `wait` does not wait for them at all."""
    # Nothing public does.
    transport: Any = getattr(process, "_transport", None)
    with contextlib.suppress(PermissionError):
        transport.close()


def pipe_of(process: Process, number: int) -> int | None:
    """Returns the descriptor of this side of a pipe of a process; None where it is closed, as at the pipe's end."""
    transport: Any = getattr(process, "_transport", None)
    pipe = transport.get_pipe_transport(number)
    return None if pipe.is_closing() else pipe.get_extra_info("pipe").fileno()


def let_go(process: Process) -> None:
    """Closes this side of the pipes of a process that goes on: closing its transport would kill it."""
    transport: Any = getattr(process, "_transport", None)
    transport._proc = SimpleNamespace(pid=process.pid, returncode=0, poll=lambda: 0, popen=transport._proc)
    transport.close()


def _discard(group: bool, creating: asyncio.Future[Process]) -> None:
    if not creating.cancelled() and creating.exception() is None:
        kill(creating.result(), group=group)
