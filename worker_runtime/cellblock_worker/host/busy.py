"""The processes of a key that have a run, or make the context of their next one, and the runs that wait for them.

A new process costs 50 ms of CPU and may take the place of an old one; a context costs a millisecond. So a run waits for
a process of its key where that is likely to be ready before another one could have booted. Each process tells how long
it is likely to take: the mean of its own runs, or the time of a context. Runs wait in their order, not for one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from cellblock_worker.host.kept import Keepable
from cellblock_worker.host.turns import Waiting

BOOT_SECONDS: Final = 0.05
"""Bounds the wait that is expected: as long as the boot that it saves."""

WAIT_SECONDS: Final = 0.1
"""Bounds the wait itself: a run may take longer than those before it, and a busy machine has to find a core."""


class Busy(Keepable, Protocol):
    """A worker that has a run of its key, or had one a moment ago."""

    @property
    def ready_in(self) -> float | None:
        """The seconds until it is likely to be ready for another run; None where that is not known."""
        ...


T = TypeVar("T", bound=Busy)


class BusyWorkers(Generic[T]):
    """Keeps the busy workers by key, and the runs that wait for one of them.

    Args:
        give_up: Gets a run that has waited for too long, or for which no worker of its key is left.
    """

    def __init__(self, give_up: Callable[[Waiting], None]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, list[T]] = {}
        self._waiting: dict[str, dict[bytes, tuple[Waiting, asyncio.TimerHandle]]] = {}

    def put(self, worker: T) -> None:
        self._workers.setdefault(worker.key, []).append(worker)

    def join(self, waiting: Waiting, *, gives_way: bool) -> bool:
        """Has a run wait for a worker that is likely to be ready soon; whether there is one."""
        key = waiting.run.key
        times = [
            worker.ready_in
            for worker in self._workers.get(key, ())
            if worker.may_have(waiting.run, gives_way=gives_way)
        ]
        rate = sum(1 / seconds for seconds in times if seconds)
        ahead = len(self._waiting.get(key, ()))
        if ahead + 1 > rate * BOOT_SECONDS:
            return False
        timer = self._loop.call_later(WAIT_SECONDS, self._late, waiting)
        self._waiting.setdefault(key, {})[waiting.token] = (waiting, timer)
        return True

    def leave(self, token: bytes) -> bool:
        """Takes a run out; whether it was waiting."""
        for of_key in self._waiting.values():
            if token in of_key:
                self._take_out(of_key[token][0])
                return True
        return False

    def take(self, worker: T, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Takes out a worker that is ready, and the first run in wait for its key that it may have."""
        self._discard(worker)
        first = next((one for one, _ in self._waiting.get(worker.key, {}).values() if fits(one)), None)
        if first is not None:
            self._take_out(first)
        self._release(worker.key)
        return first

    def gone(self, worker: T) -> None:
        if self._discard(worker):
            self._release(worker.key)

    def clear(self) -> Iterator[Waiting]:
        """Takes out the runs that wait."""
        for waiting in [one for of_key in self._waiting.values() for one, _ in of_key.values()]:
            self._take_out(waiting)
            yield waiting

    def _discard(self, worker: T) -> bool:
        of_key = self._workers.get(worker.key, [])
        if worker not in of_key:
            return False
        of_key.remove(worker)
        if not of_key:
            del self._workers[worker.key]
        return True

    def _release(self, key: str) -> None:
        if key not in self._workers:
            for waiting, _ in list(self._waiting.get(key, {}).values()):
                self._late(waiting)

    def _take_out(self, waiting: Waiting) -> None:
        of_key = self._waiting[waiting.run.key]
        of_key.pop(waiting.token)[1].cancel()
        if not of_key:
            del self._waiting[waiting.run.key]

    def _late(self, waiting: Waiting) -> None:
        self._take_out(waiting)
        self._give_up(waiting)
