"""Counts of several brokers in one database, a file or a PostgreSQL: never more than may be, each period anew."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cellblock.run.policy.counts import ENDLESS_KEPT_MS, TABLES, Counted, CountRows
from support.shared_rows import AnyStore

Opened = Callable[..., CountRows]


@pytest.fixture
def opened(store_of_broker: Callable[[], AnyStore]) -> Iterator[Opened]:
    """Opens the counts as one more broker, whose database has a clock of the test's own, or its own."""
    brokers: list[CountRows] = []

    def made(now: int | None = None) -> CountRows:
        database = store_of_broker().database(TABLES)
        if now is not None:
            database.now_ms = str(now)
        brokers.append(CountRows(database))
        return brokers[-1]

    yield made
    for broker in brokers:
        broker.close()


def test_in_each_period_so_many_and_no_more(opened: Opened) -> None:
    here, there = opened(5_000), opened(5_999)
    taken = [one.take("a", 1_000, 3)[0] for one in (here, there, here, there, here)]
    assert taken == [True, True, True, False, False]
    assert there.take("b", 1_000, 1)[0] and not there.take("c", 1_000, 0)[0]
    is_counted, counted = opened(6_000).take("a", 1_000, 3)
    assert is_counted and counted == Counted(6, 0, 6_000)
    # A clock that is behind belongs to the period that has begun.
    assert here.take("a", 1_000, 1) == (False, Counted(6, 1, 5_000))
    assert here.add("a", 1_000, 5) == Counted(6, 6, 5_000)
    assert there.add("a", 1_000, 0) == Counted(6, 6, 5_999)
    assert not there.take("a", 1_000, 6)[0], "what was added counts, too"


def test_a_clock_that_was_wrong_closes_no_count_for_years(opened: Opened) -> None:
    day, wrong = 86_400_000, opened(20_000 * 86_400_000)
    assert wrong.take("a", day, 1) == (True, Counted(20_000, 0, 20_000 * day))
    right = opened(10_000 * day)
    assert right.take("a", day, 1) == (True, Counted(10_000, 0, 10_000 * day))
    assert not right.take("a", day, 1)[0]


def test_a_count_without_periods_goes_on_and_what_is_over_is_removed(opened: Opened) -> None:
    early, late = opened(1_000), opened(1_000 + ENDLESS_KEPT_MS)
    early.add("endless", 0, 2)
    early.add("short", 500, 2)
    assert late.add("endless", 0, 3) == Counted(0, 5, 1_000 + ENDLESS_KEPT_MS)
    late.tidy()
    assert early.add("short", 500, 0).used == 0
    assert early.add("endless", 0, 0).used == 5


def test_of_many_that_take_at_once_so_many_get_one(opened: Opened) -> None:
    def take(_: int) -> int:
        rows = opened()
        try:
            return sum(rows.take("a", 86_400_000, 25)[0] for _ in range(10))
        finally:
            rows.close()

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(take, range(4))) == 25


def test_the_clock_is_the_databases(opened: Opened) -> None:
    _, first = opened().take("a", 60_000, 10)
    _, second = opened().take("a", 60_000, 10)
    assert first.now_ms <= second.now_ms < first.now_ms + 60_000
    assert first.now_ms > 1_700_000_000_000
