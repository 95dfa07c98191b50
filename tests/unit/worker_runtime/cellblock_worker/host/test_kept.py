"""Processes that wait for another run: who gets one, and which must go."""

from __future__ import annotations

from dataclasses import dataclass

from cellblock_worker.host.kept import SURPLUS_SECONDS, KeptWorkers
from cellblock_worker.wire import protocol
from cellblock_worker.worker.reuse import ReuseBounds

BOUNDS = ReuseBounds(max_runs=9, max_age_ms=9000, idle_ms=60_000, principal_warm=1)


@dataclass(eq=False)
class Process:
    """What is kept of a worker."""

    key: str
    fits: bool = True
    is_lowered: bool = False

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """As it was told."""
        return self.fits and (gives_way or not self.is_lowered)


def _run(key: str) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)


def test_a_run_gets_a_process_of_its_key_alone_and_the_latest_first() -> None:
    kept = KeptWorkers[Process]()
    first, second, other = Process("a"), Process("a"), Process("b")
    for at, process in enumerate((first, second, other)):
        kept.put(process, float(at))
    assert [kept.take(_run("a"), gives_way=False) for _ in range(3)] == [second, first, None]
    assert len(kept) == 1
    assert kept.take(_run("c"), gives_way=False) is None
    assert kept.take(_run("b"), gives_way=False) is other


def test_a_process_that_may_not_have_the_run_stays() -> None:
    kept = KeptWorkers[Process]()
    process = Process("a", fits=False)
    kept.put(process, 0.0)
    assert kept.take(_run("a"), gives_way=False) is None
    process.fits = True
    assert kept.take(_run("a"), gives_way=False) is process


def test_a_lowered_process_has_runs_that_give_way_and_no_other() -> None:
    kept = KeptWorkers[Process]()
    raised, lowered = Process("a"), Process("a", is_lowered=True)
    for process in (raised, lowered):
        kept.put(process, 0.0)
    assert kept.take(_run("a"), gives_way=True) is lowered
    kept.put(lowered, 0.0)
    assert [kept.take(_run("a"), gives_way=False) for _ in range(2)] == [raised, None]


def test_those_over_a_number_go_the_longest_waiting_first() -> None:
    kept = KeptWorkers[Process]()
    all_of_them = [Process(key) for key in "abab"]
    for at, process in enumerate(all_of_them):
        kept.put(process, float(at))
    assert list(kept.over(2)) == all_of_them[:2]
    assert list(kept.over(-1)) == all_of_them[2:]
    assert len(kept) == 0


def test_a_key_keeps_its_latest_process_and_the_others_for_a_second() -> None:
    kept = KeptWorkers[Process]()
    early, late, alone = Process("a"), Process("a"), Process("b")
    for at, process in enumerate((early, late, alone)):
        kept.put(process, float(at))
    assert list(kept.idle(BOUNDS, SURPLUS_SECONDS)) == [early]
    assert list(kept.idle(BOUNDS, 60.0)) == []
    assert set(kept.idle(BOUNDS, 62.0)) == {late, alone}


def test_those_of_other_keys_go() -> None:
    kept = KeptWorkers[Process]()
    first, second, other = Process("a1"), Process("a1"), Process("b1")
    for process in (first, second, other):
        kept.put(process, 0.0)
    assert list(kept.others("b")) == [first, second]
    assert len(kept) == 1
    assert list(kept.others("")) == []


def test_one_that_is_gone_is_forgotten() -> None:
    kept = KeptWorkers[Process]()
    process = Process("a")
    kept.put(process, 0.0)
    kept.discard(process)
    kept.discard(process)
    assert len(kept) == 0
