"""The target rises after a burst, falls to its floor after a time without runs, and rises with the next one."""

from __future__ import annotations

from cellblock_worker.scheduling.warm_target import BURST_KEPT_SECONDS, WarmTarget


def made(
    full: int = 4, most: int = 4, floor: int = 4, idle_after: float = 1e9, now: float = 0.0
) -> WarmTarget:
    return WarmTarget(full=full, most=most, floor=floor, idle_after=idle_after, now=now)


def burst(target: WarmTarget, runs: int, now: float) -> None:
    """So many runs at once, which then end."""
    tokens = [b"%d" % number for number in range(runs)]
    for token in tokens:
        target.began(token, now)
    for token in tokens:
        target.ended(token)


def test_all_are_kept_until_the_time_is_over() -> None:
    target = made(floor=1, idle_after=60.0, now=100.0)
    assert [target.at(now) for now in (100.0, 159.9, 160.0, 1000.0)] == [4, 4, 1, 1]
    burst(target, 1, 1000.0)
    assert target.at(1059.0) == 4


def test_a_floor_over_the_target_changes_nothing() -> None:
    assert made(full=2, floor=9, idle_after=1.0).at(5.0) == 2


def test_a_burst_is_remembered_for_a_while() -> None:
    target = made(most=8)
    burst(target, 6, 10.0)
    assert [target.at(now) for now in (10.0, 100.0, 9.9 + BURST_KEPT_SECONDS)] == [6, 6, 6]
    assert target.at(10.0 + BURST_KEPT_SECONDS) == 4


def test_another_burst_as_large_is_remembered_from_then_on_and_a_smaller_one_is_not() -> None:
    target = made(most=8)
    for at, runs in ((0.0, 6), (100.0, 5), (200.0, 6)):
        burst(target, runs, at)
    assert target.at(BURST_KEPT_SECONDS + 199.0) == 6
    assert target.at(BURST_KEPT_SECONDS + 200.0) == 4


def test_once_it_is_forgotten_a_smaller_one_counts() -> None:
    target = made(most=8)
    burst(target, 8, 0.0)
    burst(target, 5, BURST_KEPT_SECONDS)
    assert target.at(BURST_KEPT_SECONDS) == 5


def test_no_more_than_the_most() -> None:
    target = made(most=6)
    burst(target, 100, 1.0)
    assert target.at(1.0) == 6


def test_a_most_below_the_target_is_no_limit_to_it() -> None:
    target = made(full=4, most=2)
    burst(target, 100, 1.0)
    assert target.at(1.0) == 4


def test_runs_one_after_the_other_are_no_burst_however_fast_they_come() -> None:
    target = made(full=1, most=8)
    for turn in range(100):
        burst(target, 1, turn * 0.001)
    assert target.at(1.0) == 1


def test_an_idle_host_keeps_its_floor_whatever_burst_there_was() -> None:
    target = made(full=4, most=8, floor=1, idle_after=60.0)
    burst(target, 8, 0.0)
    assert [target.at(now) for now in (59.0, 60.0)] == [8, 1]


def test_who_keeps_none_warm_keeps_none_after_a_burst() -> None:
    target = made(full=0, most=8)
    burst(target, 8, 0.0)
    assert target.at(0.0) == 0


def test_runs_that_need_no_warm_worker_keep_the_target_and_do_not_raise_it() -> None:
    target = made(most=8, floor=1, idle_after=60.0)
    for _ in range(8):
        target.came(50.0)
    assert [target.at(now) for now in (109.0, 110.0)] == [4, 1]
