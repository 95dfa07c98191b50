"""Says which host has the next run, and how many places are free, without a look at every host: a fleet has a
thousand.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Known(Generic[T]):
    host: T
    places: int = 0
    runs: int = 0
    is_usable: bool = False

    @property
    def free(self) -> int:
        # By host: one that has lent fewer places than it has runs takes none from the others.
        return max(0, self.places - self.runs)


class FreeHosts(Generic[T]):
    """Holds what is known of hosts, and the order in which they are to have runs.

    Attributes:
        places: Counts the places of all.
        free: Counts those that no run has.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._number_of: dict[T, int] = {}
        self._known: dict[int, _Known[T]] = {}
        self._order: list[tuple[int, int]] = []
        self._ordered: set[tuple[int, int]] = set()
        self.places = 0
        self.free = 0

    def put(self, host: T, *, places: int, runs: int, is_usable: bool) -> None:
        """Takes note of a host that has come, or of what has changed of it; one that is not usable gets no run."""
        number = self._number_of.get(host)
        if number is None:
            number = self._number_of[host] = next(self._numbers)
            self._known[number] = _Known(host)
        known = self._known[number]
        self.places += places - known.places
        self.free -= known.free
        known.places, known.runs, known.is_usable = places, runs, is_usable
        self.free += known.free
        # Once for each number of runs: what is not so any more is taken out when it comes to the front.
        if is_usable and known.free and (entry := (runs, number)) not in self._ordered:
            self._ordered.add(entry)
            heapq.heappush(self._order, entry)

    def drop(self, host: T) -> None:
        """Forgets a host."""
        number = self._number_of.pop(host, None)
        if number is not None:
            known = self._known.pop(number)
            self.places -= known.places
            self.free -= known.free

    def least_busy(self) -> T | None:
        """Returns the host that has the fewest runs, of those with a free place; of several the one that came
        first."""
        while self._order:
            runs, number = entry = self._order[0]
            known = self._known.get(number)
            if known is not None and known.is_usable and known.free and known.runs == runs:
                return known.host
            heapq.heappop(self._order)
            self._ordered.discard(entry)
        return None
