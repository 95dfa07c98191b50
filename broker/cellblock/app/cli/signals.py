"""Signals says what ends a command, and what a daemon takes for an order to read its configuration."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any


async def ended_by_signals(work: Coroutine[Any, Any, int]) -> int:
    """Does the work of a command; SIGTERM and SIGHUP cancel it, so that everything is closed in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    # Somebody else's already where it is an order to reload.
    if not callable(signal.getsignal(signal.SIGHUP)):
        loop.add_signal_handler(signal.SIGHUP, task.cancel)
    return await task


class Hangups:
    """Hangups takes SIGHUP of a daemon for an order to reload, and keeps one that comes while the daemon starts.

    Where there is a terminal, SIGHUP says that it is gone: that is no such order, and is left alone.
    """

    def __init__(self) -> None:
        self._kept = False
        self._taken = not any(os.isatty(descriptor) for descriptor in (0, 2))
        if self._taken:
            signal.signal(signal.SIGHUP, self._keep)

    @property
    def end(self) -> bool:
        """Says whether SIGHUP ends the daemon."""
        return not self._taken

    def obey(self, reload: Callable[[], None]) -> None:
        """Has the running loop call `reload` at each SIGHUP from now on, and at once if one has come before."""
        if self._taken:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
            if self._kept:
                reload()

    def _keep(self, *_: object) -> None:
        self._kept = True
