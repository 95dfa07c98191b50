"""How many hosts there should be, as brokers report and fall silent."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cellblock.fleet.ray.scale import FULL_SHARE, REPORT_SECONDS, Scale

CAPACITY = 16


def scale(least: int = 0, most: int = 10, shrink: float = 60.0, have: int = 0) -> Scale:
    return Scale(least=least, most=most, capacity=CAPACITY, shrink_seconds=shrink, have=have, now=0.0)


def test_three_quarters_of_the_places_are_for_the_runs_that_there_are() -> None:
    for load, wanted in ((0, 0), (1, 1), (12, 1), (13, 2), (24, 2), (120, 10), (10_000, 10)):
        made = scale()
        made.note("a", load, 0.0)
        assert made.wanted(0.0) == wanted, load


def test_brokers_are_added_and_one_that_is_silent_or_leaves_counts_no_more() -> None:
    made = scale(shrink=0.0)
    made.note("a", 12, 0.0)
    made.note("b", 12, 5.0)
    assert made.wanted(5.0) == 2 and made.brokers(5.0) == 2
    assert made.wanted(REPORT_SECONDS + 0.1) == 1 and made.brokers(REPORT_SECONDS + 0.1) == 1
    made.leave("b")
    assert made.wanted(REPORT_SECONDS + 0.2) == 0 and made.brokers(REPORT_SECONDS + 0.2) == 0


def test_it_goes_up_at_once_and_down_when_fewer_were_enough_for_a_while() -> None:
    made = scale(least=1, shrink=60.0)
    seen: list[int] = []
    for second in range(150):
        made.note("a", 48 if second == 10 else 24 if second == 50 else 0, second)
        seen.append(made.wanted(second))
    assert seen == [1] * 10 + [4] * 61 + [2] * 40 + [1] * 39


def test_hosts_that_are_there_already_count_as_needed() -> None:
    made = scale(have=7)
    made.note("a", 0, 1.0)
    assert made.wanted(1.0) == 7
    made.note("a", 0, 61.0)
    assert made.wanted(61.0) == 0


@given(
    loads=st.lists(st.integers(0, 400), min_size=1, max_size=80),
    least=st.integers(0, 3),
    more=st.integers(1, 12),
    shrink=st.integers(0, 30),
)
def test_it_is_what_the_busiest_second_of_the_last_ones_needed(
    loads: list[int], least: int, more: int, shrink: int
) -> None:
    made = scale(least, least + more, shrink)
    needs: list[int] = []
    for second, load in enumerate(loads):
        made.note("a", load, second)
        needs.append(min(least + more, max(least, math.ceil(load / (FULL_SHARE * CAPACITY)))))
        assert made.wanted(second) == max(needs[-shrink - 1 :])
