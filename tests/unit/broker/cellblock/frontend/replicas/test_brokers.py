from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from cellblock.base.postgresql import PostgresServer
from cellblock.frontend.replicas import brokers as brokers_module
from cellblock.frontend.replicas.brokers import Brokers, Peer
from cellblock.frontend.replicas.words import Words
from support.postgresql import Postgres
from support.waits import WAIT_BOUND_SECONDS, until, until_found

WORDS = Words([b"k" * 32])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come often; a broker is gone soon."""
    monkeypatch.setattr(brokers_module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(brokers_module, "GONE_SECONDS", 2.0)


@contextlib.asynccontextmanager
async def broker(url: str, name: str) -> AsyncIterator[Brokers]:
    server = PostgresServer(url)
    made = Brokers(server, name, f"http://{name}.example:1/", WORDS)
    try:
        await made.join()
        yield made
    finally:
        await made.leave()
        server.close()


@pytest.fixture
def rows(postgres_url: str) -> Iterator[psycopg.Connection[tuple[str, ...]]]:
    with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=cellblock") as connection:
        yield connection


async def until_known(one: Brokers, name: str, peer: Peer | None) -> None:
    async def is_so() -> bool:
        return await one.peer(name) == peer

    await until_found(is_so, f"{one.name} knows {name} as {peer}", pause=0.02)


async def test_brokers_know_each_other(postgres_url: str) -> None:
    async with broker(postgres_url, "a") as a:
        assert a.another() is None and await a.peer("a") is None
        async with broker(postgres_url, "b") as b:
            there = Peer("b", "http://b.example:1", draining=False)
            # At once: who is not known is looked for.
            assert await a.peer("b") == there
            assert await b.peer("a") == Peer("a", "http://a.example:1", draining=False)
            assert b.another() == Peer("a", "http://a.example:1", draining=False)
            await b.drain()
            await until_known(a, "b", Peer("b", "http://b.example:1", draining=True))
            assert a.another() is None
        await until_known(a, "b", None)


async def test_who_leaves_while_it_says_that_it_lives_is_out(
    postgres_url: str, rows: psycopg.Connection[tuple[str, ...]]
) -> None:
    goes_on, is_held = threading.Event(), threading.Event()
    goes_on.set()

    def hold() -> None:
        is_held.set()
        assert goes_on.wait(WAIT_BOUND_SECONDS)

    server = PostgresServer(postgres_url)
    leaves = Brokers(server, "leaves", "http://leaves.example:1/", WORDS, hold)
    await leaves.join()
    goes_on.clear()
    is_held.clear()
    await until(is_held.is_set, "a sign of life is on its way")
    leaving = asyncio.create_task(leaves.leave())
    asyncio.get_running_loop().call_later(0.1, goes_on.set)
    await leaving
    server.close()
    assert rows.execute("SELECT name FROM brokers").fetchall() == []


async def test_brokers_that_start_at_once_make_the_table_once(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await asyncio.gather(
            *(stack.enter_async_context(broker(postgres_url, f"b{number}")) for number in range(4))
        )
        for one in made:
            assert await one.peer("b3" if one.name == "b0" else "b0") is not None


async def test_who_is_silent_is_gone_and_anybody_removes_it(
    postgres_url: str, rows: psycopg.Connection[tuple[str, ...]]
) -> None:
    async with broker(postgres_url, "a") as a:
        insert = "INSERT INTO brokers VALUES ('dead', %s, false, now() - interval '1 hour')"
        rows.execute(insert, (WORDS.address("dead", "http://dead:1"),))
        # Not yet: it may have been the database that was away.
        assert await a.peer("dead") == Peer("dead", "http://dead:1", draining=False)
        await until_known(a, "dead", None)
        left = "SELECT name FROM brokers"
        await until(lambda: rows.execute(left).fetchall() == [("a",)], "its row is removed")


async def test_a_clock_of_the_database_that_is_put_on_makes_nobody_gone(
    postgres_url: str, rows: psycopg.Connection[tuple[str, ...]]
) -> None:
    async with broker(postgres_url, "a") as a, broker(postgres_url, "b"):
        await until(lambda: a._judges, "a has looked for long enough to judge")
        # To the rows it is the same whether the clock is put on, or they are put back.
        for _ in range(20):
            rows.execute("UPDATE brokers SET seen = seen - interval '1 hour'")
            rows.execute("UPDATE brokers SET seen = '-infinity' WHERE name = 'a'")
            assert await a.peer("b") is not None
            await a._look()
            assert a.another() is not None


async def test_nothing_is_sent_to_where_somebody_else_says_that_a_broker_is(
    postgres_url: str, rows: psycopg.Connection[tuple[str, ...]]
) -> None:
    async with broker(postgres_url, "a") as a:
        for url in ("http://evil:1", Words([b"o" * 32]).address("b", "http://evil:1")):
            rows.execute("INSERT INTO brokers VALUES ('b', %s, false)", (url,))
            assert await a.peer("b") is None and a.another() is None
            rows.execute("DELETE FROM brokers WHERE name = 'b'")
        # What another broker has signed is good for that one.
        rows.execute("INSERT INTO brokers SELECT 'b', url, false FROM brokers WHERE name = 'a'")
        assert await a.peer("b") is None


async def test_a_restart_of_the_database_makes_nobody_gone(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(postgres_url, "a") as a, broker(postgres_url, "b") as b:
        assert await a.peer("b") is not None and await b.peer("a") is not None
        postgres.stop()
        try:
            await until(lambda: "may take this one for gone" in caplog.text, "it is noticed")
            # Longer than it takes to be gone.
            await asyncio.sleep(2.5)
            assert await a.peer("b") is not None and await b.peer("a") is not None
        finally:
            postgres.start()
        with psycopg.connect(postgres_url, autocommit=True) as connection:

            def back() -> bool:
                found = connection.execute(
                    "SELECT count(*) FROM cellblock.brokers WHERE seen > now() - interval '1 s'"
                ).fetchone()
                return found == (2,)

            await until(back, "both write again")
        assert await a.peer("b") is not None and await b.peer("a") is not None
