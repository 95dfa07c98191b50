"""How many workers are kept booted that have served nobody, and of which kind the next one is.

There are more for a while after many runs were under way at once. A worker that can serve several runs costs twice the
CPU to boot. So there are as many of them as were asked for of late: runs without a key get a plain one. Either kind
serves either run; it is only dearer than it need be, or goes after one run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import State
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


class WarmTarget:
    """Keeps the target of warm workers; times are seconds of one monotonic clock.

    Args:
        full: Workers that are always kept warm.
        now: When this host began.
    """

    def __init__(self, full: int, now: float) -> None:
        self.full = full
        self._last_run = now
        self._under_way: set[bytes] = set()
        self._burst = 0
        self._burst_until = now

    def came(self, now: float) -> None:
        """Takes note of a run that has come, and may need no warm worker."""
        self._last_run = now

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
            return self.full
        return max(self.full, self._burst)


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
