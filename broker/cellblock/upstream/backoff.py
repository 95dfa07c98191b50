"""How long to wait before connecting again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

STEADY_SECONDS: Final = 10.0
"""A connection that held so long was a good one; one that ended sooner counts as a failure."""

JITTER: Final = 0.5
"""Share of each pause that is left to chance, so that many clients of one server do not come back at once."""


class Backoff:
    """Pauses that double from the first to the longest.

    Args:
        first: The first pause in seconds.
        longest: The longest pause in seconds.
        chance: Gives numbers from 0 to 1.
    """

    def __init__(self, first: float, longest: float, chance: Callable[[], float] = random.random) -> None:
        self._first = first
        self._longest = max(first, longest)
        self._chance = chance
        self._next = first

    def pause(self, held: float) -> float:
        """The pause after a connection that held so many seconds; 0 for one that never was."""
        if held >= STEADY_SECONDS:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (1 - JITTER * self._chance())
