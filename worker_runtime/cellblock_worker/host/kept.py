"""Keeps the processes that wait for another run of those whom they have served, and says which of them must go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from cellblock_worker.wire import protocol
from cellblock_worker.worker.reuse import ReuseBounds

SURPLUS_SECONDS: Final = 1.0
"""Keeps processes of one key over `principal_warm`: those of a burst, of which the next may come at once."""


class Keepable(Protocol):
    """Stands for a worker that has served a run."""

    @property
    def key(self) -> str:
        """Returns the key of the runs that the worker may have."""
        ...

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """Says whether the worker may have this run, which gives way to others or does not."""
        ...


T = TypeVar("T", bound=Keepable)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept(Generic[T]):
    worker: T
    since: float


class KeptWorkers(Generic[T]):
    """Keeps processes by key. Sans-I/O: times are monotonic seconds, and the caller ends what must go."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[_Kept[T]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, worker: T, now: float) -> None:
        self._by_key.setdefault(worker.key, []).append(_Kept(worker, now))
        self._count += 1

    def take(self, run: protocol.Run, *, gives_way: bool) -> T | None:
        """Takes out a process for a run: of its key, the one that was used last."""
        for kept in reversed(self._by_key.get(run.key, ())):
            if kept.worker.may_have(run, gives_way=gives_way):
                self._remove(kept)
                return kept.worker
        return None

    def discard(self, worker: T) -> None:
        for kept in self._by_key.get(worker.key, ()):
            if kept.worker is worker:
                self._remove(kept)
                return

    def over(self, most: int) -> Iterator[T]:
        """Takes out the processes over so many in all, those first that have waited longest."""
        while self._count > max(0, most):
            oldest = min((kept[0] for kept in self._by_key.values()), key=lambda kept: kept.since)
            self._remove(oldest)
            yield oldest.worker

    def idle(self, bounds: ReuseBounds, now: float) -> Iterator[T]:
        """Takes out the processes that have waited for longer than they may."""
        for all_of_key in list(self._by_key.values()):
            # The last is the one that is taken first.
            for at, kept in enumerate(reversed(all_of_key[:])):
                most = bounds.idle_ms / 1000 if at < bounds.principal_warm else SURPLUS_SECONDS
                if now - kept.since >= most:
                    self._remove(kept)
                    yield kept.worker

    def others(self, prefix: str) -> Iterator[T]:
        """Takes out the processes whose keys begin otherwise."""
        for key in [key for key in self._by_key if not key.startswith(prefix)]:
            for kept in self._by_key[key][:]:
                self._remove(kept)
                yield kept.worker

    def _remove(self, kept: _Kept[T]) -> None:
        of_key = self._by_key[kept.worker.key]
        of_key.remove(kept)
        self._count -= 1
        if not of_key:
            del self._by_key[kept.worker.key]
