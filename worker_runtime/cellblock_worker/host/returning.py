"""Keeps the processes whose run is over and which are not ready for another one yet, and the runs that wait for them.

A process makes its next context after an answer, in a millisecond. A run of the same key waits for that: a new process
in its stead would cost fifty times as much CPU, and could take the place of an old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from cellblock_worker.host.kept import Keepable
from cellblock_worker.scheduling.turns import Waiting

WAIT_SECONDS: Final = 0.1
"""Bounds how long a run waits for a process to be ready: on a busy machine that has to wait for a core."""


T = TypeVar("T", bound=Keepable)


class ReturningWorkers(Generic[T]):
    """Keeps workers on their way to another run, each with the run that waits for it.

    Args:
        give_up: Gets a run that has waited for too long.
    """

    def __init__(self, give_up: Callable[[Waiting], None]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._all: dict[T, tuple[Waiting, asyncio.TimerHandle] | None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def put(self, worker: T) -> None:
        """Keeps a worker whose run is over now."""
        self._all[worker] = None

    def join(self, waiting: Waiting, *, gives_way: bool) -> bool:
        """Has a run wait for a worker that may have it and that no other one waits for; whether there is one."""
        for worker, claim in self._all.items():
            if claim is None and worker.may_have(waiting.run, gives_way=gives_way):
                timer = self._loop.call_later(WAIT_SECONDS, self._late, worker)
                self._all[worker] = (waiting, timer)
                return True
        return False

    def leave(self, token: bytes) -> bool:
        """Takes a run out; whether it was waiting."""
        for worker, claim in self._all.items():
            if claim is not None and claim[0].token == token:
                self._release(worker)
                return True
        return False

    def take(self, worker: T) -> Waiting | None:
        """Takes out a worker that is ready, or gone, and gives the run that waits for it."""
        waiting = self._release(worker)
        self._all.pop(worker, None)
        return waiting

    def clear(self) -> Iterator[Waiting]:
        """Takes out all, and gives the runs that wait."""
        for worker in list(self._all):
            if (waiting := self.take(worker)) is not None:
                yield waiting

    def _release(self, worker: T) -> Waiting | None:
        claim = self._all.get(worker)
        if claim is None:
            return None
        self._all[worker] = None
        claim[1].cancel()
        return claim[0]

    def _late(self, worker: T) -> None:
        if (waiting := self._release(worker)) is not None:
            self._give_up(waiting)
