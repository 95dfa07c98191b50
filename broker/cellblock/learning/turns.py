"""When results are looked at: while no run is at work, or else for a small share of the time, or when someone asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

BUSY_SHARE: Final = 0.01
"""Most of the processor's time that looking takes while runs are at work, and no one waits for what is learnt."""

MAX_PAUSE_SECONDS: Final = 5.0
"""Longest pause for that: a look during which Python happened to collect its garbage can take 60 ms."""

TURN_SECONDS: Final = 0.1
"""Between two looks at whether runs are still at work."""


class Turns:
    """The pace of one thread that looks.

    Attributes:
        busy: Whether runs are at work; asked from that thread.
        wanted: Set by whoever waits for what is learnt.
    """

    def __init__(self) -> None:
        self.busy: Callable[[], bool] = lambda: False
        self.wanted = threading.Event()
        self._next = 0.0

    def wait(self) -> None:
        """Waits until there may be another look, at most `MAX_PAUSE_SECONDS` after the last one."""
        while (left := self._next - time.monotonic()) > 0 and self.busy():
            if self.wanted.wait(min(left, TURN_SECONDS)):
                return

    def took(self, seconds: float) -> None:
        """Notes what a look has cost, in seconds of processor time."""
        self._next = time.monotonic() + min(seconds / BUSY_SHARE, MAX_PAUSE_SECONDS)
