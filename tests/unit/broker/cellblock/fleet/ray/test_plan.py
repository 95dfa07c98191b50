"""How many hosts on Ray, and when there are more or fewer."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cellblock.fleet.ray import __main__ as reporter
from cellblock.fleet.ray.fleet import FULL_SHARE, REPORT_SECONDS, Plan, Scale

PLAN = Plan(("--connect", "tcp://b:1"), b"s" * 32, 1, 8, 16, {"CPU": 2.0}, {}, 60.0)


def test_brokers_that_say_the_same_share_and_others_do_not() -> None:
    assert replace(PLAN).name == PLAN.name
    changes: list[dict[str, Any]] = [
        {"arguments": ("--connect", "tcp://b:2")},
        {"secret": b"t" * 32},
        {"least": 2},
        {"most": 9},
        {"capacity": 8},
        {"resources": {"CPU": 3.0}},
        {"runtime_env": {"pip": ["cellblock"]}},
        {"shrink_seconds": 61.0},
    ]
    names = {replace(PLAN, **change).name for change in changes}
    assert len(names) == len(changes) and PLAN.name not in names


def test_another_version_of_cellblock_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PLAN.name
    monkeypatch.setattr("cellblock.fleet.ray.fleet.version", lambda _: "99")
    assert PLAN.name != before


def test_the_secret_is_in_no_text() -> None:
    assert repr(PLAN.secret)[2:-1] not in repr(PLAN) and PLAN.secret.hex() not in repr(PLAN)


def test_resources_are_options_of_an_actor() -> None:
    plan = replace(
        PLAN, resources={"CPU": 2, "GPU": 1, "memory": 2**30, "box": 1}, runtime_env={"pip": ["x"]}
    )
    assert plan.options == {
        "num_cpus": 2,
        "num_gpus": 1,
        "memory": 2**30,
        "resources": {"box": 1},
        "runtime_env": {"pip": ["x"]},
    }
    assert PLAN.options == {"num_cpus": 2, "num_gpus": 0, "resources": {}}


@pytest.mark.parametrize(
    ("endpoint", "connect", "names"),
    [
        ("tcp://0.0.0.0:7070", [], ("tcp://10.1.2.3:7070",)),
        ("tcp://[::]:7070", [], ("tcp://10.1.2.3:7070",)),
        ("tcp://10.9.9.9:7070", [], ("tcp://10.9.9.9:7070",)),
        ("tcp://0.0.0.0:7070", ["dns://brokers:7070", "tcp://b:1"], ("dns://brokers:7070", "tcp://b:1")),
    ],
)
def test_hosts_find_the_broker_where_ray_knows_its_machine(
    endpoint: str, connect: list[str], names: tuple[str, ...]
) -> None:
    task = {
        "settings": {"connect": connect, "hosts": [1, 2], "options": {"resources": {"CPU": 2}}},
        "capacity": 4,
        "shrink_seconds": 1.5,
        "endpoint": endpoint,
        "secret": "0a" * 32,
        "arguments": ["--capacity", "4"],
    }
    arguments = ("--connect", *names, "--capacity", "4")
    assert reporter.plan_of(task, "10.1.2.3") == Plan(arguments, b"\n" * 32, 1, 2, 4, {"CPU": 2}, {}, 1.5)


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
    """So it goes up at once, and down when fewer were enough for a while."""
    made = scale(least, least + more, shrink)
    needs: list[int] = []
    for second, load in enumerate(loads):
        made.note("a", load, second)
        needs.append(min(least + more, max(least, math.ceil(load / (FULL_SHARE * CAPACITY)))))
        assert made.wanted(second) == max(needs[-shrink - 1 :])
