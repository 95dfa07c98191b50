"""Keeps the workers that have booted and served nobody, and says of which kind the next one is.

A worker that can serve several runs costs twice the CPU to boot. So there are as many of them as were asked for of
late: runs without a key get a plain one. Either kind serves either run; it is only dearer than it need be, or goes
after one run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import State

REMEMBERED_RUNS: Final = 32
"""Bounds the runs, of those without a kept process, whose kinds decide: where one of them asked for a process that
lasts, there is one."""


class Warmable(Protocol):
    """Stands for a worker that has booted."""

    @property
    def state(self) -> State:
        """Returns where the worker is in its life."""
        ...

    @property
    def lasts(self) -> bool:
        """Says whether the worker can serve several runs."""
        ...


T = TypeVar("T", bound=Warmable)


class WarmWorkers(Generic[T]):
    """Keeps warm workers, the oldest first.

    Args:
        may_last: Whether there are workers that can serve several runs; all are, until runs have asked for others.
    """

    def __init__(self, *, may_last: bool) -> None:
        self._workers: deque[T] = deque()
        self._may_last = may_last
        self._asked: deque[bool] = deque(maxlen=REMEMBERED_RUNS)

    def __len__(self) -> int:
        return len(self._workers)

    def put(self, worker: T) -> None:
        self._workers.append(worker)

    def discard(self, worker: T) -> None:
        if worker in self._workers:
            self._workers.remove(worker)

    def drop_dead(self) -> None:
        """Takes out the workers that are killed and not yet gone."""
        if any(worker.state is not State.WARM for worker in self._workers):
            self._workers = deque(worker for worker in self._workers if worker.state is State.WARM)

    def asked(self, run: protocol.Run) -> None:
        """Notes of which kind the worker is that a run asks for, which no kept process can have."""
        self._asked.append(run.key != "")

    def take(self, run: protocol.Run) -> T:
        """Takes out a worker for a run: of the kind that it asks for, else the oldest. Raises IndexError."""
        wanted = self._may_last and run.key != ""
        for worker in self._workers:
            if worker.lasts == wanted:
                self._workers.remove(worker)
                return worker
        return self._workers.popleft()

    def take_latest(self) -> T:
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
