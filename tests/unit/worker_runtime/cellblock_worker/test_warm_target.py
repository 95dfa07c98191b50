"""The target falls to its floor after a time without runs, and rises with the next one."""

from __future__ import annotations

from cellblock_worker.warm_target import WarmTarget


def test_all_are_kept_until_the_time_is_over() -> None:
    target = WarmTarget(full=4, floor=1, idle_after=60.0, last_run=100.0)
    assert [target.at(now) for now in (100.0, 159.9, 160.0, 1000.0)] == [4, 4, 1, 1]
    target.used(1000.0)
    assert target.at(1059.0) == 4


def test_a_floor_over_the_target_changes_nothing() -> None:
    assert WarmTarget(full=2, floor=9, idle_after=1.0, last_run=0.0).at(5.0) == 2
