"""What clients use at several brokers: strictly, or as far as is known; settled when the database is back."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from cellblock.base.database import Away, StoreError
from cellblock.base.store import LocalStore, Store
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.run.policy import counts as counts_module
from cellblock.run.policy.counts import ENDLESS_KEPT_MS, TABLES, Counted, CountRows, Counts
from cellblock.serve.http.guards import RateLimit
from support.at_once import at_once
from support.postgresql import Cutting, Postgres
from support.shared_rows import KEY, AnyStore
from support.waits import WAIT_BOUND_SECONDS, until_found

DAY = 86_400_000


class Switched(LocalStore):
    """Files that a test can take away."""

    trouble: str | None = None


class Broker:
    """One broker's counts."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.counts = Counts(store)
        self.counts.start()

    async def sync(self) -> None:
        """Looks at what others have counted, as it does once a second."""
        with contextlib.suppress(Away):
            await self.counts._sync(dict(self.counts._known))


Make = Callable[[], Broker]


def look_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has brokers look only when a test says so, and wait for it as long as a busy machine takes."""
    monkeypatch.setattr(counts_module, "SYNC_SECONDS", 3600.0)
    for bound in ("FIRST_SECONDS", "ASK_SECONDS"):
        monkeypatch.setattr(counts_module, bound, WAIT_BOUND_SECONDS)


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes brokers that count in one file, and look when they are told to."""
    look_when_told(monkeypatch)
    made: list[Broker] = []

    def one() -> Broker:
        made.append(Broker(Switched(tmp_path)))
        return made[-1]

    yield one
    for broker in made:
        await broker.counts.close()


async def look(*brokers: Broker, trouble: str | None = None) -> None:
    """Has each look at what others have counted, its database being there or not."""
    for one in brokers:
        one.store.trouble = trouble
        await one.sync()


async def spent(broker: Broker, times: int, most: int) -> int:
    """How many of so many calls were let pass."""
    return sum([await broker.counts.spend("a", DAY, most) is None for _ in range(times)])


async def test_what_is_strict_is_known_first(make: Make) -> None:
    here, there = make(), make()
    *taken, refused = [await one.counts.take("a", DAY, 3) for one in (here, there, here, there)]
    assert taken == [None, None, None] and 0 < refused <= DAY
    here.store.trouble = "PostgreSQL is not there"
    with pytest.raises(Away, match="not there"):
        await here.counts.take("b", DAY, 3)


async def test_all_else_is_known_after_a_look(make: Make) -> None:
    here, there = make(), make()
    assert await spent(here, 6, 10) == 6
    # Nobody has looked since.
    assert await spent(there, 5, 10) == 5
    await look(here, there)
    assert (await spent(here, 2, 12), await spent(there, 2, 12)) == (2, 1)
    await look(here)
    assert await spent(here, 1, 12) == 0
    assert 0 < await here.counts.spend("a", DAY, 12) <= DAY
    # Who comes new looks before the first call.
    assert await spent(make(), 1, 12) == 0


async def test_while_the_database_is_away_brokers_go_on_and_it_is_settled_later(make: Make) -> None:
    here, there = make(), make()
    assert (await spent(here, 2, 10), await spent(there, 2, 10)) == (2, 2)
    await look(here, there)
    await look(here, there, trouble="PostgreSQL is not there")
    fresh = make()
    fresh.store.trouble = here.store.trouble
    assert await spent(fresh, 3, 10) == 3
    # Each up to what it knows: of 10, 2 at least are used.
    assert (await spent(here, 20, 10), await spent(there, 20, 10)) == (8, 6)
    await look(here, there, fresh)
    watching = make()
    assert [await watching.counts.spend("a", DAY, most) is None for most in (21, 22)] == [False, True]


async def test_what_is_only_here_is_added_at_the_end(make: Make) -> None:
    here = make()
    assert await spent(here, 4, 10) == 4
    await here.counts.close()
    assert await spent(make(), 10, 10) == 6


async def test_a_period_that_is_over_begins_anew(make: Make) -> None:
    here = make()
    for _ in range(3):
        assert 0 < await here.counts.spend("a", 1_000, 0) <= 1_000
    count = here.counts._known["a"]
    count.added, count.ends_at = 7, count.ends_at - 10.0
    before = count.ends_at
    assert await here.counts.spend("a", 1_000, 1) is None
    assert (count.added, (count.ends_at - before) % 1) == (1, pytest.approx(0.0, abs=1e-6))


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_strict_is_too_much_and_nothing_is_lost(make: Make, seed: int) -> None:
    """Several brokers, each with a database that comes and goes, in any order."""
    chance = random.Random(seed)
    brokers = [make() for _ in range(3)]
    strict = loose = 0
    for _ in range(150):
        one = chance.choice(brokers)
        match chance.randrange(6):
            case 0:
                one.store.trouble = None if one.store.trouble else "away"
            case 1:
                await one.sync()
            case 2 | 3:
                with contextlib.suppress(Away):
                    strict += await one.counts.take("strict", DAY, 20) is None
            case _:
                loose += await one.counts.spend("loose", DAY, 1_000) is None
    assert strict <= 20
    await look(*brokers, brokers[0])
    assert brokers[0].counts._known["loose"].used == loose


async def test_what_a_client_asks_of_one_broker_counts_at_the_others(make: Make) -> None:
    here, there = make(), make()
    rates = RateLimit(0.001, 10, clock=lambda: 0.0)
    for _ in range(3):
        there.counts.note("ann", lambda others: None)
        assert rates.take("ann") == 0
        here.counts.note("ann", lambda others: rates.charge("ann", others))
    await look(here, there, here)
    assert [rates.take("ann") for _ in range(4)] == [0] * 4
    assert rates.take("ann") > 0, "three here, three there, four here"
    # What was counted before it was first seen is nobody's now.
    new = RateLimit(0.001, 10, clock=lambda: 0.0)
    third = make()
    assert new.take("ann") == 0
    third.counts.note("ann", lambda others: new.charge("ann", others))
    await third.sync()
    assert [new.take("ann") for _ in range(9)] == [0] * 9


@pytest.mark.parametrize("after", [False, True])
async def test_what_was_added_before_its_answer_was_lost_is_not_added_again(
    postgres: Postgres, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    look_when_told(monkeypatch)
    monkeypatch.setattr("cellblock.fleet.postgresql.UNSURE_SECONDS", 0.0)
    with (
        contextlib.closing(Cutting(postgres_url, tmp_path, after=after)) as cutting,
        contextlib.closing(PostgresServer(cutting.url)) as server,
    ):
        cutting.cuts = False
        one = Broker(SharedState(server, (KEY,)))
        assert await spent(one, 1, 10) == 1
        await one.sync()
        assert await spent(one, 2, 10) == 2
        cutting.cuts = True
        await one.sync()
        assert not cutting.cuts
        assert await spent(one, 1, 10) == 1
        count = one.counts._known["a"]

        async def all_is_added() -> bool:
            # As often as it takes: a look finds the database away until the server has a connection again.
            await one.sync()
            return (count.used, count.added) == (4, 0)

        await until_found(all_is_added, "all is added")
        other = Broker(SharedState(server, (KEY,)))
        assert [await other.counts.spend("a", DAY, most) is None for most in (4, 5)] == [False, True]
        await asyncio.gather(one.counts.close(), other.counts.close())


async def test_a_count_that_cannot_be_added_to_holds_up_no_other_and_has_none_counted_twice(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_when_told(monkeypatch)
    one = Broker(SharedState(postgres_server, (KEY,)))
    for name in ("before", "full", "behind"):
        one.counts.note(name, lambda others: None)
    await one.sync()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE cellblock.counts SET used = 9223372036854775807 WHERE name = 'full'")
    for name in ("before", "full", "behind"):
        one.counts.note(name, lambda others: None)
    for _ in range(3):
        with contextlib.suppress(StoreError):
            await one.sync()
    known = {name: (count.used, count.added) for name, count in one.counts._known.items()}
    assert known == {"before": (2, 0), "full": (1, 1), "behind": (2, 0)}
    await one.counts.close()


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
    assert opened(6_000).take("a", 1_000, 3) == (True, Counted(6, 0, 6_000))
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
        with contextlib.closing(opened()) as rows:
            return sum(rows.take("a", DAY, 25)[0] for _ in range(10))

    assert sum(at_once(take, range(4))) == 25


def test_the_clock_is_the_databases(opened: Opened) -> None:
    _, first = opened().take("a", 60_000, 10)
    _, second = opened().take("a", 60_000, 10)
    assert first.now_ms <= second.now_ms < first.now_ms + 60_000
    assert first.now_ms > 1_700_000_000_000
