"""Keeps the broker's side of a run's wall clock, and the bound by which the run's host must have kept its word.

The clock stands still while the user is asked about a call, or by a server. The host keeps `timeoutMs`; the clock tells
it when to stop and to go on, and moves the broker's own, later bound along with it. Only what the broker itself holds
stops the clock: a worker has no word for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from cellblock_worker.wire import protocol

LATE_SECONDS: Final = 1.0
"""Says how late a bound may come: one that comes later says something of this process, and is given as long
once more."""


class RunClock:
    """Stops and continues a run's time.

    Args:
        allowance: Seconds that the clock may stand still in all; the host keeps this too.
        send: Tells the host; does nothing when the run is no longer running.
        set_bound: Sets the broker's own bound of the run, in seconds from now; does nothing as above.
        outer: The clock of the run that has called this one: it stands still with this one.
    """

    def __init__(
        self,
        allowance: float,
        send: Callable[[protocol.Pause | protocol.Resume], None],
        set_bound: Callable[[float], None],
        outer: RunClock | None = None,
    ) -> None:
        self._allowance = allowance
        self._send = send
        self._set_bound = set_bound
        self._outer = outer
        self._left = 0.0
        self._since = 0.0
        self._stopped = False
        self._holders = 0

    @classmethod
    def of_no_run(cls) -> RunClock:
        """Makes the clock of a call without a run: it never stands still."""
        return cls(0.0, lambda message: None, lambda seconds: None)

    def start(self, bound: float) -> None:
        """Begins the run's time: the worker has the script, and the broker's own bound is `bound` seconds away; or
        begins it anew, as the run has come back to where it was."""
        self._left = bound
        if not self._stopped:
            self._since = asyncio.get_running_loop().time()
        self._set_bound(bound + (self._allowance if self._stopped else 0.0))

    def stop(self) -> None:
        """Stops the run's time."""
        self._holders += 1
        if self._outer is not None:
            self._outer.stop()
        if self._stopped or self._allowance <= 0:
            return
        self._left -= self._turn(stopped=True)
        self._send(protocol.Pause())
        self._set_bound(self._left + self._allowance)

    def go_on(self) -> None:
        """Lets the run's time pass again, when nobody else has stopped it."""
        self._holders -= 1
        if self._outer is not None:
            self._outer.go_on()
        if self._holders or not self._stopped:
            return
        self._allowance -= self._turn(stopped=False)
        self._send(protocol.Resume())
        self._set_bound(self._left)

    @property
    def left(self) -> float:
        """Gives what is left of the run's time, in seconds, with the bound's own grace."""
        passed = 0.0 if self._stopped else asyncio.get_running_loop().time() - self._since
        return self._left - passed

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Keeps the run's time from passing inside a block."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def _turn(self, *, stopped: bool) -> float:
        now = asyncio.get_running_loop().time()
        spent, self._since, self._stopped = now - self._since, now, stopped
        return spent


class Deadline:
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
