"""The wall clock of one run counts what is left of `timeoutMs`. The broker may stop it, within an allowance given
before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum


class ClockState(Enum):
    """A run's wall clock is in one of these states."""

    RUNNING = "running"
    STOPPED = "stopped"
    OVERDRAWN = "overdrawn"
    """Says that the clock runs again by itself, having stood still for as long as it may; the broker has yet to say
    that it goes on."""


class WallClock:
    """Counts the wall time of a run, from its construction.

    Args:
        seconds: Until `on_over`, while it runs.
        allowance: Seconds that it may stand still in all.
        on_over: Called once, when the time is over.
    """

    def __init__(self, seconds: float, allowance: float, on_over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._left = seconds
        self._allowance = allowance
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, on_over)
        self.state = ClockState.RUNNING

    def stop(self) -> bool:
        """Stops the clock of a run. False: it does already, or must not any more, and nothing has changed."""
        if self.state is not ClockState.RUNNING or self._allowance <= 0:
            return False
        self._left -= self._turn(ClockState.STOPPED)
        self._timer = self._loop.call_later(self._allowance, self._overdraw)
        return True

    def go_on(self) -> bool:
        """Lets the clock run again. False: it does already, and nothing has changed."""
        if self.state is ClockState.OVERDRAWN:
            # The word came when the allowance was used up; what has passed since counts.
            self.state = ClockState.RUNNING
            return True
        if self.state is not ClockState.STOPPED:
            return False
        self._allowance -= self._turn(ClockState.RUNNING)
        self._timer = self._loop.call_later(max(0.0, self._left), self._on_over)
        return True

    def restart(self, seconds: float) -> None:
        """Gives the run so many seconds from now on, while the clock runs."""
        self._left = seconds
        if self.state is not ClockState.STOPPED:
            self._turn(self.state)
            self._timer = self._loop.call_later(seconds, self._on_over)

    def cancel(self) -> None:
        """Ends the clock: the run is over."""
        self._timer.cancel()

    def _overdraw(self) -> None:
        self._turn(ClockState.OVERDRAWN)
        self._allowance = 0.0
        self._timer = self._loop.call_later(max(0.0, self._left), self._on_over)

    def _turn(self, state: ClockState) -> float:
        """Goes over to a state, and returns the seconds that were spent in the one before."""
        self._timer.cancel()
        now = self._loop.time()
        spent, self._since, self.state = now - self._since, now, state
        return spent
