"""Claims on a real PostgreSQL: one broker has a thing at a time, also when sessions end and PostgreSQL is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import pytest

from cellblock.base import claims as module
from cellblock.base.claims import KIND, MIGRATIONS, Claims
from cellblock.base.postgresql import PostgresServer, lock_number
from cellblock.base.presence import BEAT_SECONDS, Presence
from support.postgresql import Postgres
from support.waits import until

NAME = "browser"
END_SESSION = (
    b"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    b"AND CAST(classid AS BIGINT) = %s AND CAST(objid AS BIGINT) = %s"
)

Make = Callable[[], Claims]


@pytest.fixture
def make(postgres_server: PostgresServer) -> Generator[Make]:
    """Makes the claims of one broker more."""
    made: list[Presence] = []

    def one() -> Claims:
        presence = Presence(postgres_server, {KIND: MIGRATIONS})
        made.append(presence)
        claims = Claims(presence, [NAME, "another"])
        claims.want(NAME)
        presence.start()
        presence.hold()
        return claims

    yield one
    for presence in made:
        presence.close()


def end_session(server: PostgresServer, name: str) -> None:
    number = lock_number(name) & 0xFFFF_FFFF_FFFF_FFFF
    with server.connection() as connection:
        assert connection.execute(END_SESSION, (number >> 32, number & 0xFFFF_FFFF)).fetchall()


async def holds(*brokers: Claims) -> Claims:
    """The one that has it."""
    await until(lambda: any(one.epoch(NAME) for one in brokers), "one has it")
    (found,) = (one for one in brokers if one.epoch(NAME) is not None)
    return found


async def test_one_of_several_has_it_and_the_others_know_whose_it_is(make: Make) -> None:
    looks, *brokers = (make() for _ in range(4))
    for number, one in enumerate(brokers):
        one.take(f"http://{number}")
    first = await holds(*brokers)
    url = f"http://{brokers.index(first)}"
    for one in (looks, *brokers):
        await until(lambda one=one: one.claim(NAME) is not None, "it is known")
        claim = one.claim(NAME)
        assert claim is not None and (claim.broker, claim.url, claim.epoch) == (first.broker, url, 1)
    assert first.claim("another") is None, "nobody can have it"
    # It is given up only when it has ended.
    first.let_go()
    sure = first._sure[NAME]
    await until(lambda: first._sure[NAME] > sure + BEAT_SECONDS, "it has looked again, and again")
    assert first.epoch(NAME) == 1 and await holds(*brokers) is first
    first.ended(NAME, 1)
    assert first.epoch(NAME) is None
    second = await holds(*brokers)
    assert second is not first and second.epoch(NAME) == 2
    await until(lambda: not first.held, "it says that it has ended it")
    # Who has ended it and still takes has it again, in another epoch.
    second.ended(NAME, 1)
    assert second.epoch(NAME) == 2, "that was another epoch"
    second.ended(NAME, 2)
    assert await holds(*brokers) is second and second.epoch(NAME) == 3


async def test_who_takes_over_from_one_that_is_silent_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAKE_OVER_SECONDS", 3.0)
    first, second = make(), make()
    first.take("http://first")
    await holds(first)
    second.take("http://second")
    # As if it were killed: its session ends, and nothing is written.
    first._presence.close()
    gone = time.monotonic()
    await until(lambda: second.epoch(NAME) is not None, "the other one has it")
    assert time.monotonic() - gone >= 3.0
    assert second.epoch(NAME) == 2


async def test_a_session_that_is_lost_for_a_moment_loses_nothing(
    make: Make, postgres_server: PostgresServer
) -> None:
    first = make()
    first.take("http://first")
    await holds(first)
    session = first._session
    end_session(postgres_server, f"claim {NAME}")
    await until(lambda: first._session > session, "it is back")
    assert first.epoch(NAME) == 1


async def test_who_has_lost_it_says_so_and_the_other_one_need_not_wait(
    make: Make, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAKE_OVER_SECONDS", 600.0)
    first, second = make(), make()
    first.take("http://first")
    await holds(first)
    second.take("http://second")
    # Another one holds the lock from when the session has ended.
    with postgres_server.connect() as taken:
        end_session(postgres_server, f"claim {NAME}")
        taken.execute(b"SELECT pg_advisory_lock(%s)", (lock_number(f"claim {NAME}"),))
        await until(lambda: first.epoch(NAME) is None, "it is not sure any more")
        assert second.epoch(NAME) is None
        first.let_go()
        first.ended(NAME, 1)
        await until(lambda: not first.held, "it says that it has ended it")
    assert await holds(second) is second and second.epoch(NAME) == 2


async def test_nobody_is_sure_while_postgresql_is_away(make: Make, postgres: Postgres) -> None:
    has_it, looks = make(), make()
    has_it.take("http://one")
    await holds(has_it)
    postgres.stop()
    await until(lambda: has_it.epoch(NAME) is None, "it is not sure any more")
    assert has_it.trouble is not None
    postgres.start()
    # It has ended nothing yet: nobody else has begun, and it is sure again.
    await until(lambda: has_it.epoch(NAME) == 1, "it is sure again")
    assert looks.epoch(NAME) is None
