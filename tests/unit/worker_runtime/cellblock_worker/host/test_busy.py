"""Processes of a key that are busy, and the runs that wait for one of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from cellblock_worker.host import busy
from cellblock_worker.host.busy import BOOT_SECONDS, BusyWorkers
from cellblock_worker.host.turns import Waiting
from cellblock_worker.wire import protocol
from support.waits import within


@dataclass(eq=False)
class Process:
    """What is asked of a worker."""

    key: str
    ready_in: float | None = 0.002
    is_lowered: bool = False

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """As it was told."""
        return run.key == self.key and (gives_way or not self.is_lowered)


def _waiting(token: bytes, key: str = "a") -> Waiting:
    run = protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)
    return Waiting(token, run, b"", 0.0)


def _any(_waiting: Waiting) -> bool:
    return True


def _nobody(waiting: Waiting) -> None:
    raise AssertionError(f"{waiting.token!r} was given up")


async def test_runs_wait_in_their_order_for_any_process_of_their_key() -> None:
    workers = BusyWorkers[Process](_nobody)
    one, two = Process("a"), Process("a")
    workers.put(one)
    workers.put(two)
    first, second, other = _waiting(b"1"), _waiting(b"2"), _waiting(b"3", "b")
    assert [workers.join(waiting, gives_way=False) for waiting in (other, first, second)] == [
        False,
        True,
        True,
    ]
    assert workers.take(two, _any) is first
    assert workers.take(one, _any) is second
    assert workers.take(one, _any) is None
    assert not workers.join(_waiting(b"4"), gives_way=False)


@pytest.mark.parametrize(
    ("times", "joined"),
    [
        ([BOOT_SECONDS], 1),
        ([BOOT_SECONDS * 1.1], 0),
        ([BOOT_SECONDS / 5], 5),
        ([BOOT_SECONDS, BOOT_SECONDS / 2], 3),
        ([None, BOOT_SECONDS / 2], 2),
        ([None], 0),
    ],
)
async def test_as_many_wait_as_are_served_before_a_boot_is_over(
    times: list[float | None], joined: int
) -> None:
    workers = BusyWorkers[Process](_nobody)
    for seconds in times:
        workers.put(Process("a", seconds))
    assert sum(workers.join(_waiting(bytes([number])), gives_way=False) for number in range(9)) == joined
    assert len(list(workers.clear())) == joined


async def test_a_run_that_a_process_may_not_have_waits_for_the_next_one() -> None:
    workers = BusyWorkers[Process](_nobody)
    one, two = Process("a"), Process("a")
    workers.put(one)
    workers.put(two)
    first, second = _waiting(b"1"), _waiting(b"2")
    assert workers.join(first, gives_way=False) and workers.join(second, gives_way=False)
    assert workers.take(one, lambda waiting: waiting is second) is second
    assert workers.take(two, _any) is first


async def test_a_lowered_one_has_runs_that_give_way() -> None:
    workers = BusyWorkers[Process](_nobody)
    workers.put(Process("a", is_lowered=True))
    assert not workers.join(_waiting(b"1"), gives_way=False)
    assert workers.join(_waiting(b"1"), gives_way=True)


async def test_who_leaves_waits_no_longer() -> None:
    workers = BusyWorkers[Process](_nobody)
    process = Process("a")
    workers.put(process)
    assert workers.join(_waiting(b"1"), gives_way=False)
    assert workers.join(_waiting(b"2"), gives_way=False)
    assert [workers.leave(b"1"), workers.leave(b"1")] == [True, False]
    assert [one.token for one in workers.clear()] == [b"2"]


async def test_runs_are_given_up_when_the_last_process_of_their_key_is_gone() -> None:
    given_up: list[bytes] = []
    workers = BusyWorkers[Process](lambda waiting: given_up.append(waiting.token))
    one, two = Process("a"), Process("a")
    workers.put(one)
    workers.put(two)
    assert workers.join(_waiting(b"1"), gives_way=False) and workers.join(_waiting(b"2"), gives_way=False)
    workers.gone(one)
    assert given_up == []
    workers.gone(two)
    workers.gone(two)
    assert given_up == [b"1", b"2"]


async def test_who_waits_for_too_long_is_given_up_and_the_process_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(busy, "WAIT_SECONDS", 0.001)
    given_up: asyncio.Queue[Waiting] = asyncio.Queue()
    workers = BusyWorkers[Process](given_up.put_nowait)
    process = Process("a")
    workers.put(process)
    workers.join(_waiting(b"1"), gives_way=False)
    assert (await within(given_up.get())).token == b"1"
    assert workers.take(process, _any) is None
