"""Keeps the bound by which a run's host must have kept its word; one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LATE_SECONDS: Final = 1.0
"""Says how late a bound may come: one that comes later says something of this process, and is given as long
once more."""


class Due:
    """Calls `action` with why when a bound has passed, unless this process's own loop has stood still meanwhile.

    Args:
        action: What then happens.
    """

    def __init__(self, action: Callable[[str], None]) -> None:
        self._action = action
        self._timer: asyncio.TimerHandle | None = None

    def at(self, seconds: float, why: str) -> None:
        """Sets the bound, in place of the one before."""
        self.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._timer = loop.call_at(due, self._is_due, due, why)

    def cancel(self) -> None:
        """Takes the bound away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_due(self, due: float, why: str) -> None:
        if asyncio.get_running_loop().time() - due > LATE_SECONDS:
            # What the host has said meanwhile is still to be read.
            self.at(LATE_SECONDS, why)
            return
        self._action(why)
