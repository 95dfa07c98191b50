"""Decides which waiting run gets the next warm worker. Sans-I/O.

The broker's queue is fair in places, this one in what is done with them. Runs wait here only for a boot, which
on a busy machine is slow, and then a client whose runs have lately computed much goes behind one whose have not, and
leaves the last warm workers to it. Among equals it is first come, first served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellblock_worker.wire import protocol

HEAVY_CPU_SECONDS: Final = 0.25
"""Sets the lately used CPU time from which a client is a heavy one."""

HALF_LIFE_SECONDS: Final = 2.0
"""Sets the time after which half of what was used is forgotten."""

OTHERS_SECONDS: Final = 10.0
"""Passes until a client that uses nothing is none that a heavy one gives way to."""

GIVE_WAY_SECONDS: Final = 4.0
"""Bounds how long a run gives way to others; the broker takes a host that gives a run no worker for broken."""

LANES_KEPT: Final = 256
"""Caps the clients of which the use is remembered; the one longest out of use is forgotten."""


class Waiting(NamedTuple):
    """Holds a run that waits for a worker: its token, its message and body, and since when in monotonic seconds."""

    token: bytes
    run: protocol.Run
    body: bytes
    since: float


class _Use(NamedTuple):
    """Keeps what a client has used: CPU seconds as remembered at a time."""

    cpu_seconds: float
    at: float


_NOTHING: Final = _Use(0.0, float("-inf"))


@dataclass(slots=True)
class Turns:
    """Holds the waiting runs of one host."""

    _waiting: list[Waiting] = field(default_factory=list[Waiting])
    _used: dict[int, _Use] = field(default_factory=dict[int, _Use])

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def join(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def leave(self, token: bytes) -> bool:
        """Takes a run out; whether it was waiting."""
        for waiting in self._waiting:
            if waiting.token == token:
                self._waiting.remove(waiting)
                return True
        return False

    def clear(self) -> list[Waiting]:
        """Empties the queue, and gives the runs that were in it."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def used(self, lane: int, cpu_seconds: float, now: float) -> None:
        """Counts the CPU time more that runs of a client (`protocol.Run.lane`) have used."""
        use = max(0.0, self._use(lane, now) + cpu_seconds)
        self._used.pop(lane, None)
        self._used[lane] = _Use(use, now)
        if len(self._used) > LANES_KEPT:
            del self._used[next(iter(self._used))]

    def gives_way(self, lane: int, now: float) -> bool:
        """Says whether a client has used much lately, while another one has used something, but far less."""
        most = min(HEAVY_CPU_SECONDS, self._use(lane, now) / 2)
        if not self._is_heavy(lane, now):
            return False
        # The latest is last.
        for other, (_, at) in reversed(self._used.items()):
            if now - at >= OTHERS_SECONDS:
                return False
            if self._use(other, now) < most:
                return True
        return False

    def _is_heavy(self, lane: int, now: float) -> bool:
        return self._use(lane, now) >= HEAVY_CPU_SECONDS

    def take(self, warm: int, now: float, *, keep: int) -> Waiting | None:
        """Returns the run whose turn it is, taken out; None when none waits, or the last workers are kept from heavy
        clients.

        Args:
            warm: Warm workers; at least one.
            now: Monotonic seconds.
            keep: How many of them are for clients that are not heavy.
        """
        if not self._waiting:
            return None
        if len(self._waiting) == 1 and warm > keep:
            return self._waiting.pop()
        weights = [self._weight(waiting, now) for waiting in self._waiting]
        first = weights.index(min(weights))
        if warm <= keep and weights[first] > 0:
            return None
        return self._waiting.pop(first)

    def _weight(self, waiting: Waiting, now: float) -> float:
        """Returns what a run's client has used lately; 0 for a light client, and for a run that has given way for long
        enough.
        """
        if now - waiting.since >= GIVE_WAY_SECONDS:
            return 0.0
        return self._use(waiting.run.lane, now) if self._is_heavy(waiting.run.lane, now) else 0.0

    def _use(self, lane: int, now: float) -> float:
        last = self._used.get(lane, _NOTHING)
        return last.cpu_seconds * 0.5 ** ((now - last.at) / HALF_LIFE_SECONDS)
