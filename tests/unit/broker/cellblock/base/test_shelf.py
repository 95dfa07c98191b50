"""Shelves: the same for files and for the rows that brokers share; those are sealed, and known while away."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from cellblock.base.state_keys import StateKeys
from cellblock.base.store import NotShared, Shelf
from cellblock.fleet import shared_state
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedRows, SharedShelf, SharedState
from cellblock_worker.base.private_files import TooLarge
from support.postgresql import Postgres
from support.shared_rows import KEY, OTHER_KEY, AnyStore, state_of
from support.waits import until

MOST = 1000


def shelf(store: AnyStore) -> Shelf:
    return store.shelf("things", MOST)


def test_what_is_written_is_there_until_it_is_removed(store_of_broker: Callable[[], AnyStore]) -> None:
    here = shelf(store_of_broker())
    assert here.names() == [] and here.stamp("a") is None
    for look in (here.read, here.remove):
        with pytest.raises(FileNotFoundError):
            look("a")
    assert here.write("b", b"1", replace=False) and here.write("a", b"2", replace=True)
    assert (here.names(), here.read("a"), here.read("b")) == (["a", "b"], b"2", b"1")
    first = here.stamp("b")
    assert not here.write("b", b"3", replace=False)
    assert here.write("b", b"4", replace=True) and here.stamp("b") != first
    assert not here.write("b", b"5", replace=True, only=first)
    assert here.write("b", b"6", replace=True, only=here.stamp("b"))
    here.remove("a")
    assert (here.names(), here.read("b")) == (["b"], b"6")
    # Others see the same, in whatever order they came.
    there = shelf(store_of_broker())
    assert (there.names(), there.read("b"), there.stamp("a")) == (["b"], b"6", None)
    with pytest.raises(TooLarge):
        # Of a file, whoever reads it is told.
        here.write("c", b"x" * (MOST + 1), replace=True)
        here.read("c")


def test_of_many_that_write_at_once_each_version_is_replaced_once(
    store_of_broker: Callable[[], AnyStore],
) -> None:
    shelf(store_of_broker()).write("a", b"0", replace=True)

    def add(number: int) -> bool:
        one = shelf(store_of_broker())
        return one.write("a", b"%d" % number, replace=True, only=one.stamp("a"))

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(add, range(1, 13)))
    assert any(done)
    assert shelf(store_of_broker()).read("a") in [
        b"%d" % number for number, is_done in enumerate(done, 1) if is_done
    ]


async def test_what_was_written_is_known_although_the_server_went_right_behind_it(
    postgres: Postgres, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(postgres_server)
    rows = state.rows
    here = shelf(state)
    here.write("a", b"1", replace=True)
    look = rows.read

    def look_too_late() -> None:
        with postgres.away():
            look()

    monkeypatch.setattr(rows, "read", look_too_late)
    assert here.write("b", b"2", replace=False), "it is said that nothing was written"
    assert here.read("b") == b"2"
    here.remove("a")
    assert here.names() == ["b"], "what was revoked is still good here"
    monkeypatch.setattr(rows, "read", look)
    shelf(state_of(postgres_server)).write("b", b"3", replace=True)
    rows.start()
    await until(lambda: here.read("b") == b"3", "it is seen what others have written")
    rows.close()


async def test_who_follows_goes_on_when_the_tables_are_not_there_for_a_while(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_state, "POLL_SECONDS", 0.01)
    state = state_of(postgres_server)
    rows = state.rows
    looks = 0

    def read(look: Callable[[], None] = rows.read) -> None:
        nonlocal looks
        looks += 1
        look()

    monkeypatch.setattr(rows, "read", read)
    rows.start()
    with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=cellblock") as connection:
        saved = connection.execute("DELETE FROM migrations WHERE kind = 'shared' RETURNING *").fetchone()
        assert saved is not None
        before = looks
        await until(lambda: looks > before + 1, "it looks again")
        with pytest.raises(NotShared, match="not those"):
            shelf(state).write("a", b"1", replace=True)
        places = ", ".join(["%s"] * len(saved))
        connection.execute(f"INSERT INTO migrations VALUES ({places})", saved)
    shelf(state_of(postgres_server)).write("a", b"1", replace=True)
    await until(lambda: shelf(state).names() == ["a"], "it is seen")
    rows.close()


async def test_while_postgresql_is_away_what_is_known_stays(
    postgres: Postgres, postgres_server: PostgresServer
) -> None:
    state = state_of(postgres_server)
    rows = state.rows
    here = shelf(state)
    here.write("a", b"1", replace=True)
    rows.start()
    with postgres.away():
        assert (here.names(), here.read("a")) == (["a"], b"1")
        with pytest.raises(NotShared, match="PostgreSQL"):
            here.write("a", b"2", replace=True)
        fresh = shelf(SharedState(postgres_server, (KEY,)))
        for look in (fresh.names, lambda: fresh.read("a")):
            # That there is none is not known either.
            with pytest.raises(NotShared, match="not reached"):
                look()
    shelf(state_of(postgres_server)).write("a", b"3", replace=True)
    # Nobody has asked for it: the thread looks.
    await until(lambda: here.read("a") == b"3", "it is seen")
    rows.close()


def test_who_has_the_database_can_neither_read_nor_change_nor_move_what_is_sealed(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    here = shelf(state_of(postgres_server))
    here.write("a", b"the secret of a", replace=True)
    here.write("b", b"the secret of b", replace=True)
    with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=cellblock") as connection:
        bodies = dict(connection.execute("SELECT name, body FROM shared").fetchall())
        assert all(b"secret" not in body for body in bodies.values())
        connection.execute("UPDATE shared SET body = %s WHERE name = 'a'", (bodies["b"],))
        changed = bodies["b"][:-1] + bytes([bodies["b"][-1] ^ 1])
        connection.execute("UPDATE shared SET body = %s WHERE name = 'b'", (changed,))
    there = shelf(state_of(postgres_server))
    for name in ("a", "b"):
        with pytest.raises(NotShared, match="changed"):
            there.read(name)


def rows_of(server: PostgresServer, *keys: bytes) -> SharedRows:
    """The rows as a broker with these keys has them, which has looked, right or not."""
    rows = SharedRows(server, StateKeys(keys))
    rows.read()
    return rows


def shelf_of(rows: SharedRows) -> Shelf:
    return SharedShelf(rows, "things", MOST)


def test_two_keys_are_accepted_and_others_are_not(postgres_server: PostgresServer) -> None:
    shelf_of(rows_of(postgres_server, KEY)).write("a", b"1", replace=True)
    both = shelf_of(rows_of(postgres_server, OTHER_KEY, KEY))
    assert both.read("a") == b"1"
    new = shelf_of(rows_of(postgres_server, OTHER_KEY))
    with pytest.raises(NotShared, match="another key"):
        new.read("a")
    both.write("a", both.read("a"), replace=True)
    assert shelf_of(rows_of(postgres_server, OTHER_KEY)).read("a") == b"1"
    with pytest.raises(NotShared, match="another key"):
        shelf_of(rows_of(postgres_server, KEY)).read("a")


async def test_a_broker_that_comes_with_a_new_key_seals_all_with_it(postgres_server: PostgresServer) -> None:
    old = shelf_of(rows_of(postgres_server, KEY, OTHER_KEY))
    old.write("a", b"1", replace=True)
    old.write("b", b"2", replace=True)

    def are_read_with_it_alone() -> bool:
        new = shelf_of(rows_of(postgres_server, OTHER_KEY))
        try:
            return (new.read("a"), new.read("b")) == (b"1", b"2")
        except NotShared:
            return False

    with contextlib.closing(rows_of(postgres_server, OTHER_KEY, KEY)) as coming:
        coming.start()
        await until(are_read_with_it_alone, "both are sealed anew")
