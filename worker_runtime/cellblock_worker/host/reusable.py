"""The processes that may have another run of the key that they serve, and the runs that wait for one of them.

Such a process is busy, with a run or on its way to the next one, or idle; its own state says which. A new process costs
50 ms of CPU and 40 MiB, and may take the place of an old one; a context costs a millisecond. As many processes of a
key as there are cores are worth that at once. Beside them a run waits for a busy process of its key where one is likely
to be ready soon; where all wait for tools, the cores are free for another process. Each process tells how long it is
likely to take: the mean of its own runs, or the time of a context. Runs wait in their order, not for one process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from cellblock_worker.host.warm import Waiting
from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import IDLE_SECONDS, State
from cellblock_worker.worker.worker import Worker

CORES: Final = os.cpu_count() or 1
"""Sets how many processes of a key are made for runs that come at once, before one waits for another."""

SOON_SECONDS: Final = 0.02
"""Bounds the wait that is expected: less than the boot that it saves, as the new process would have later runs, too."""

WAIT_SECONDS: Final = 0.1
"""Bounds the wait itself: a run may take longer than those before it, and a busy machine has to find a core."""

SURPLUS_SECONDS: Final = 1.0
"""Keeps idle processes of one key beside the one that was used last: those of a burst, of which the next may come at
once."""


class ReusableWorkers:
    """Keeps processes by key, and the runs that wait for them; the caller ends what must go.

    Args:
        give_up: Gets a run that has waited for too long, or for which no worker of its key is left.
    """

    def __init__(self, give_up: Callable[[Waiting], None]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._of_key: dict[str, list[Worker]] = {}
        self._waiting: dict[bytes, tuple[Waiting, asyncio.TimerHandle]] = {}

    def add(self, worker: Worker) -> None:
        """Takes note of a worker that has a run of its key, the first or a later one."""
        of_key = self._of_key.setdefault(worker.key, [])
        if worker not in of_key:
            of_key.append(worker)

    def discard(self, worker: Worker) -> None:
        """Forgets a worker that is gone; runs that can wait for no other are given up."""
        of_key = self._of_key.get(worker.key, [])
        if worker not in of_key:
            return
        of_key.remove(worker)
        if not of_key:
            del self._of_key[worker.key]
            for waiting, _ in list(self._waiting.values()):
                if waiting.run.key == worker.key:
                    self._late(waiting)

    def take_idle(self, run: protocol.Run, *, gives_way: bool) -> Worker | None:
        """Returns the idle worker for a run that was used last."""
        idle = [
            worker
            for worker in self._of_key.get(run.key, ())
            if worker.state is State.WARM and worker.may_have(run, gives_way=gives_way)
        ]
        return max(idle, key=_idle_since, default=None)

    def join(self, waiting: Waiting, *, gives_way: bool) -> bool:
        """Has a run wait for a worker that is likely to be ready soon; whether there is one, and as many as may be at
        once. None is idle for it."""
        key = waiting.run.key
        busy = [one for one in self._of_key.get(key, ()) if one.may_have(waiting.run, gives_way=gives_way)]
        rate = sum(1 / one.ready_in for one in busy if one.ready_in)
        ahead = sum(1 for other, _ in self._waiting.values() if other.run.key == key)
        # One that makes a context is ready in a millisecond.
        is_next = ahead < sum(one.state is State.RETURNING for one in busy)
        if not is_next and (len(busy) < CORES or ahead + 1 > rate * SOON_SECONDS):
            return False
        timer = self._loop.call_later(WAIT_SECONDS, self._late, waiting)
        self._waiting[waiting.token] = (waiting, timer)
        return True

    def leave(self, token: bytes) -> bool:
        """Takes a run out; whether it was waiting."""
        if token not in self._waiting:
            return False
        _, timer = self._waiting.pop(token)
        timer.cancel()
        return True

    def next_run(self, key: str, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Takes out the first run in wait for a key that a worker may have which is ready now."""
        for waiting, _ in self._waiting.values():
            if waiting.run.key == key and fits(waiting):
                self.leave(waiting.token)
                return waiting
        return None

    def clear(self) -> list[Waiting]:
        """Takes out the runs that wait."""
        all_waiting = [waiting for waiting, _ in self._waiting.values()]
        for waiting in all_waiting:
            self.leave(waiting.token)
        return all_waiting

    def over(self, most: int) -> list[Worker]:
        """Returns the idle workers over so many in all, those first that have waited longest."""
        idle = [worker for of_key in self._of_key.values() for worker in _idle(of_key)]
        return sorted(idle, key=_idle_since)[: max(0, len(idle) - max(0, most))]

    def expired(self, now: float) -> list[Worker]:
        """Returns the idle workers that have waited for longer than they may."""
        expired: list[Worker] = []
        for of_key in self._of_key.values():
            for worker in (idle := _idle(of_key)):
                most = IDLE_SECONDS if worker is idle[-1] else SURPLUS_SECONDS
                if now - worker.idle_since >= most:
                    expired.append(worker)
        return expired

    def others(self, prefix: str) -> list[Worker]:
        """Returns the idle workers whose keys begin otherwise."""
        return [
            worker
            for key, of_key in self._of_key.items()
            if not key.startswith(prefix)
            for worker in _idle(of_key)
        ]

    def _late(self, waiting: Waiting) -> None:
        self.leave(waiting.token)
        self._give_up(waiting)


def _idle_since(worker: Worker) -> float:
    return worker.idle_since


def _idle(workers: list[Worker]) -> list[Worker]:
    """Returns those of some workers that are idle, in the order in which they became so."""
    return sorted((worker for worker in workers if worker.state is State.WARM), key=_idle_since)
