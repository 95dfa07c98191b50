"""How many workers are kept booted that have served nobody, of which kind the next one is, and which waiting run gets
it.

There are more for a while after many runs were under way at once. A worker that can serve several runs costs twice the
CPU to boot. So there are as many of them as were asked for of late: runs without a key get a plain one. Either kind
serves either run; it is only dearer than it need be, or goes after one run.

The broker's queue is fair in places, this one in what is done with them. Runs wait here only for a boot, which on a
busy machine is slow, and then a client whose runs have lately computed much goes behind one whose have not, and leaves
the last warm workers to it. Among equals it is first come, first served.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import State
from cellblock_worker.worker.worker import Worker

MAX_WARM_SHARE: Final = 2
"""Caps the workers kept warm after bursts at so many times those that always are."""

BURST_KEPT_SECONDS: Final = 300.0
"""Bounds how long a burst is remembered, and as many workers are kept warm as it took."""

IDLE_SECONDS: Final = 60.0
"""Passes without a run until a burst is forgotten."""

REMEMBERED_RUNS: Final = 32
"""Bounds the runs, of those without an idle process of their key, whose kinds decide: where one of them asked for a
process that lasts, there is one."""

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


class WarmTarget:
    """Keeps the target of warm workers; times are seconds of one monotonic clock.

    Args:
        full: Workers that are always kept warm.
        now: When this host began.
        one_at_first: Whether it is one at most until the first run has come.
    """

    def __init__(self, full: int, now: float, *, one_at_first: bool = False) -> None:
        self.full = full
        self._always = min(1, full) if one_at_first else full
        self._last_run = now
        self._under_way: set[bytes] = set()
        self._burst = 0
        self._burst_until = now

    def came(self, now: float) -> None:
        """Takes note of a run that has come, and may need no warm worker."""
        self._last_run, self._always = now, self.full

    def began(self, run: bytes, now: float) -> None:
        """Takes note of a run, by its token, that has come and needs a warm worker."""
        self.came(now)
        self._under_way.add(run)
        at_once = min(len(self._under_way), MAX_WARM_SHARE * self.full)
        if at_once >= self._burst or now >= self._burst_until:
            self._burst = at_once
            self._burst_until = now + BURST_KEPT_SECONDS

    def ended(self, run: bytes) -> None:
        """Takes note of the end of a run, whether it needed a warm worker or not."""
        self._under_way.discard(run)

    def at(self, now: float) -> int:
        """Returns how many workers to keep warm now."""
        if now >= min(self._burst_until, self._last_run + IDLE_SECONDS):
            return self._always
        return max(self._always, self._burst)


class WarmWorkers:
    """Keeps warm workers, the oldest first.

    Args:
        may_last: Whether there are workers that can serve several runs; all are, until runs have asked for others.
    """

    def __init__(self, *, may_last: bool) -> None:
        self._workers: deque[Worker] = deque()
        self._may_last = may_last
        self._asked: deque[bool] = deque(maxlen=REMEMBERED_RUNS)

    def __len__(self) -> int:
        return len(self._workers)

    def put(self, worker: Worker) -> None:
        self._workers.append(worker)

    def discard(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)

    def drop_dead(self) -> None:
        """Takes out the workers that are killed and not yet gone."""
        if any(worker.state is not State.WARM for worker in self._workers):
            self._workers = deque(worker for worker in self._workers if worker.state is State.WARM)

    def asked(self, run: protocol.Run) -> None:
        """Notes of which kind the worker is that a run asks for, which no idle process can have."""
        self._asked.append(run.key != "")

    def take(self, run: protocol.Run) -> Worker:
        """Takes out a worker for a run: of the kind that it asks for, else the oldest. Raises IndexError."""
        wanted = self._may_last and run.key != ""
        for worker in self._workers:
            if worker.lasts == wanted:
                self._workers.remove(worker)
                return worker
        return self._workers.popleft()

    def take_latest(self) -> Worker:
        """Takes out the worker that booted last. Raises IndexError."""
        return self._workers.pop()

    def next_lasts(self, there: Iterable[bool]) -> bool:
        """Says whether the next worker is to be one for several runs, beside those that are warm or boot: of each
        whether it is one."""
        if not self._may_last or not self._asked:
            return self._may_last
        kinds = list(there)
        share = sum(self._asked) / len(self._asked)
        return sum(kinds) < math.ceil((len(kinds) + 1) * share)


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
