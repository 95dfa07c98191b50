"""The soak's figures: a leak is told from a high-water mark."""

from __future__ import annotations

import random

import pytest

from soak.books import Record
from soak.faults import Fault
from soak.figures import growth, memory_breaches, percentile, recoveries
from soak.watch import Sample

MIB = 1 << 20
RUNS = 10_000


def samples(broker: list[int]) -> list[Sample]:
    return [Sample(float(at), rss, 30, 5, 40 * MIB, 20, 10, 0) for at, rss in enumerate(broker)]


def noise(values: list[int]) -> list[int]:
    chance = random.Random(3)
    return [value + chance.randrange(MIB) for value in values]


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ([100 * MIB] * 600, None),
        ([60 * MIB] * 100 + [100 * MIB] * 250 + [150 * MIB] * 250, None),
        ([100 * MIB + at * MIB // 10 for at in range(600)], "grows steadily"),
        ([100 * MIB] * 599 + [600 * MIB], "holds"),
    ],
    ids=["level", "steps", "leak", "too much"],
)
def test_a_leak_is_told_from_a_high_water_mark(broker: list[int], said: str | None) -> None:
    _, breaches = memory_breaches(samples(noise(broker)), RUNS)
    assert len(breaches) == (said is not None), breaches
    assert said is None or said in breaches[0]


def test_short_series_have_no_growth() -> None:
    assert growth([1, 2, 3]) == (0, 0, 0)
    assert growth([]) == (0, 0, 0)


def record(sent: float, answered: float | None, *, ok: bool = True) -> Record:
    return Record(1, "trivial", sent, cancelled=False, answered=answered, ok=ok)


def test_recoveries() -> None:
    records = [
        record(100.0, 100.5),
        record(101.0, 101.1),
        record(103.0, 104.0, ok=False),
        record(105.0, 106.5),
    ]
    faults = [Fault(2.0, "host", "kill"), Fault(3.0, "worker", "kill"), Fault(8.0, "host", "kill")]
    assert recoveries(records, faults, 100.0) == [4.5]
    assert percentile([], 0.5) == 0.0
