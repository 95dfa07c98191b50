"""Processes that are not ready for another run yet, and who waits for which."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from cellblock_worker.host import returning
from cellblock_worker.host.returning import ReturningWorkers
from cellblock_worker.scheduling.turns import Waiting
from cellblock_worker.wire import protocol
from support.waits import within


@dataclass(eq=False)
class Process:
    """What is asked of a worker."""

    key: str
    is_lowered: bool = False

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """As it was told."""
        return run.key == self.key and (gives_way or not self.is_lowered)


def _waiting(token: bytes, key: str = "a") -> Waiting:
    run = protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)
    return Waiting(token, run, b"", 0.0)


def _nobody(waiting: Waiting) -> None:
    raise AssertionError(f"{waiting.token!r} was given up")


async def test_each_has_one_run_of_its_key() -> None:
    workers = ReturningWorkers[Process](_nobody)
    process = Process("a")
    workers.put(process)
    first, second, other = _waiting(b"1"), _waiting(b"2"), _waiting(b"3", "b")
    assert [workers.join(one, gives_way=False) for one in (other, first, second)] == [False, True, False]
    assert workers.take(process) is first
    assert len(workers) == 0 and workers.take(process) is None
    assert not workers.join(second, gives_way=False)


async def test_a_lowered_one_has_runs_that_give_way() -> None:
    workers = ReturningWorkers[Process](_nobody)
    workers.put(Process("a", is_lowered=True))
    assert not workers.join(_waiting(b"1"), gives_way=False)
    assert workers.join(_waiting(b"1"), gives_way=True)


async def test_who_leaves_makes_room_for_the_next() -> None:
    workers = ReturningWorkers[Process](_nobody)
    process = Process("a")
    workers.put(process)
    assert workers.join(_waiting(b"1"), gives_way=False)
    assert [workers.leave(b"1"), workers.leave(b"1")] == [True, False]
    assert workers.join(_waiting(b"2"), gives_way=False)
    assert [one.token for one in workers.clear()] == [b"2"]
    assert len(workers) == 0


async def test_who_waits_for_too_long_is_given_up_and_the_process_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returning, "WAIT_SECONDS", 0.001)
    given_up: asyncio.Queue[Waiting] = asyncio.Queue()
    workers = ReturningWorkers[Process](given_up.put_nowait)
    process = Process("a")
    workers.put(process)
    workers.join(_waiting(b"1"), gives_way=False)
    assert (await within(given_up.get())).token == b"1"
    assert len(workers) == 1 and workers.take(process) is None
