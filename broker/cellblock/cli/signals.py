"""Signals of commands: what ends one, and what a daemon takes for an order to read its configuration."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any


async def ended_by_signals(work: Coroutine[Any, Any, int]) -> int:
    """Does the work; SIGTERM and SIGHUP cancel it, so that everything is closed in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    # Somebody else's already where it is an order to reload.
    if not callable(signal.getsignal(signal.SIGHUP)):
        loop.add_signal_handler(signal.SIGHUP, task.cancel)
    return await task


def has_terminal() -> bool:
    """Whether SIGHUP says that the terminal is gone, and not that a service is to read its configuration."""
    return any(os.isatty(descriptor) for descriptor in (0, 2))


class Hangups:
    """SIGHUP of a daemon, an order to reload. One that comes while the daemon starts is kept until then.

    From a terminal it is no such order, and is left alone.
    """

    def __init__(self) -> None:
        self._kept = False
        self._taken = not has_terminal()
        if self._taken:
            signal.signal(signal.SIGHUP, self._keep)

    @property
    def end(self) -> bool:
        """Whether SIGHUP ends the daemon."""
        return not self._taken

    def obey(self, reload: Callable[[], None]) -> None:
        """From now on the running loop calls this at each, and at once if one was kept."""
        if not self._taken:
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        if self._kept:
            self._kept = False
            reload()

    def _keep(self, *_: object) -> None:
        self._kept = True
