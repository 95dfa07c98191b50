"""Starting a process for the event loop, safe to cancel at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from functools import partial
from typing import Any

__all__ = ["Process", "spawn"]


async def spawn(*argv: str, start_new_session: bool = False, **options: Any) -> Process:
    """As `asyncio.create_subprocess_exec`, whose cancellation kills the child alone and waits for what it started.

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
    except asyncio.CancelledError:
        # A callback: a second cancellation ends the wait below, but not the kill.
        creating.add_done_callback(partial(_kill, start_new_session))
        await asyncio.wait([creating])
        if creating.exception() is None:
            await creating.result().wait()
        raise


def _kill(whole_group: bool, creating: asyncio.Future[Process]) -> None:
    if creating.cancelled() or creating.exception() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process = creating.result()
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
