"""Workers that have served nobody: which a run gets, and of which kind the next one is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cellblock_worker.host.warm import REMEMBERED_RUNS, WarmWorkers
from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import State


@dataclass(eq=False)
class Process:
    """What is asked of a worker."""

    lasts: bool
    state: State = State.WARM


def _run(key: str) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)


PLAIN, KEYED = _run(""), _run("a key")


def _warm(*workers: Process, may_last: bool = True) -> WarmWorkers[Process]:
    made = WarmWorkers[Process](may_last=may_last)
    for worker in workers:
        made.put(worker)
    return made


def test_a_run_gets_the_oldest_of_its_kind_and_another_kind_rather_than_none() -> None:
    lasting, plain, later = Process(lasts=True), Process(lasts=False), Process(lasts=False)
    warm = _warm(lasting, plain, later)
    assert [warm.take(PLAIN) for _ in range(3)] == [plain, later, lasting]
    with pytest.raises(IndexError):
        warm.take(PLAIN)
    warm = _warm(plain, lasting, later)
    assert [warm.take(KEYED) for _ in range(3)] == [lasting, plain, later]


def test_without_reuse_a_run_with_a_key_gets_the_oldest() -> None:
    first, second = Process(lasts=False), Process(lasts=False)
    assert _warm(first, second, may_last=False).take(KEYED) is first


def test_what_is_killed_is_taken_by_nobody() -> None:
    dead, alive, latest = Process(lasts=False, state=State.ENDING), Process(lasts=True), Process(lasts=True)
    warm = _warm(dead, alive, latest)
    warm.drop_dead()
    assert len(warm) == 2
    assert warm.take_latest() is latest
    warm.discard(dead)
    assert warm.take(PLAIN) is alive


def test_the_next_is_of_the_kind_that_was_asked_for() -> None:
    warm = _warm()
    assert warm.next_lasts([]), "nobody has asked yet"
    for _ in range(REMEMBERED_RUNS):
        warm.asked(PLAIN)
    assert not warm.next_lasts([])
    warm.asked(KEYED)
    assert warm.next_lasts([False, False, False])
    assert not warm.next_lasts([True, False, False])
    for _ in range(REMEMBERED_RUNS // 2):
        warm.asked(KEYED)
    assert warm.next_lasts([True, False])
    assert not warm.next_lasts([True, True, True])


def test_where_all_ask_for_processes_that_last_all_are() -> None:
    warm = _warm()
    for _ in range(REMEMBERED_RUNS):
        warm.asked(KEYED)
    assert all(warm.next_lasts([True] * there) for there in range(20))


def test_without_reuse_none_is_for_several_runs() -> None:
    warm = _warm(may_last=False)
    warm.asked(KEYED)
    assert not warm.next_lasts([])
