"""Databases. Files: private, set aside when damaged, left alone when another program or a newer version has made
them. PostgreSQL: migrations go up one at a time, a commit without an answer is found out, and so is who is gone.
Shelves: the same for files and for the rows that brokers share; those are sealed, and known while away."""

import base64
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cellblock.app.assembly import store_of
from cellblock.base.database import Away, SqliteDatabase, StoreError, Tables
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import CellblockSettings, Settings
from cellblock.base.settings.state import StateSettings
from cellblock.base.state_keys import StateKeys
from cellblock.base.store import NotShared, Shelf
from cellblock.base.tasks import is_done_within, start_daemon
from cellblock.fleet import presence as presences
from cellblock.fleet.postgresql import Additive, Connection, PostgresDatabase, PostgresServer, lock_number
from cellblock.fleet.presence import Presence
from cellblock.fleet.shared_state import SharedRows, SharedShelf, SharedState
from cellblock_worker.base.private_files import TooLarge
from support.at_once import at_once
from support.certificates import certificate
from support.postgresql import BOUND_SECONDS, Cutting, Postgres, installed_binaries
from support.shared_rows import KEY, OTHER_KEY, AnyStore, state_of
from support.waits import until

MIGRATIONS = ("CREATE TABLE things (name TEXT NOT NULL)",)


@pytest.fixture
def database(postgres_server: PostgresServer) -> PostgresDatabase:
    return PostgresDatabase(postgres_server, "things", MIGRATIONS)


@pytest.fixture
def presence(postgres_server: PostgresServer) -> Generator[Presence]:
    made = Presence(postgres_server)
    made.start()
    made.hold()
    yield made
    made.close()


def add(database: PostgresDatabase, name: str) -> None:
    with database.transaction(name):
        database.execute("INSERT INTO things VALUES (?)", name)


def test_migrations_go_up_one_at_a_time_and_not_down(postgres_url: str) -> None:
    def broker(migrations: tuple[str, ...]) -> None:
        with closing(PostgresServer(postgres_url)) as server:
            PostgresDatabase(server, "things", migrations)

    for migrations in (
        MIGRATIONS,
        (*MIGRATIONS, "ALTER TABLE things ADD COLUMN size INTEGER; SELECT pg_sleep(0.1)"),
    ):
        at_once(broker, [migrations] * 6)
    with pytest.raises(StoreError, match="newer Cellblock"):
        broker(MIGRATIONS)


def test_a_release_goes_on_beside_one_that_has_only_added_something(postgres_url: str) -> None:
    """In a rolling upgrade both use the tables, and a broker of the older one may start again."""
    added = (*MIGRATIONS, Additive("ALTER TABLE things ADD COLUMN size INTEGER"))
    changed = (*added, "ALTER TABLE things RENAME COLUMN size TO length")

    def opened(migrations: tuple[str, ...]) -> PostgresDatabase:
        server = PostgresServer(postgres_url)
        server.close()
        return PostgresDatabase(server, "things", migrations)

    with psycopg.connect(postgres_url) as connection:
        # As the releases made it that know nothing of this.
        connection.execute(
            "CREATE SCHEMA cellblock; CREATE TABLE cellblock.migrations "
            "(kind TEXT PRIMARY KEY, version INTEGER NOT NULL, changes BIGINT NOT NULL DEFAULT 0)"
        )
    add(opened(MIGRATIONS), "old")
    add(opened(added), "new")
    older = opened(MIGRATIONS)
    add(older, "old again")
    assert {name for (name,) in older.rows("SELECT name FROM things")} == {"new", "old", "old again"}
    opened(changed)
    for migrations in (MIGRATIONS, added):
        with pytest.raises(StoreError, match="newer Cellblock"):
            opened(migrations)
    opened((*changed, Additive("CREATE INDEX things_length ON things (length)")))
    opened(changed)


@pytest.mark.parametrize("after", [True, False], ids=["its answer is lost", "it is lost"])
def test_a_commit_that_nobody_has_answered_is_found_out(
    postgres_url: str, short_path: Path, after: bool
) -> None:
    with (
        closing(Cutting(postgres_url, short_path, after=after)) as cutting,
        closing(PostgresServer(cutting.url)) as server,
    ):
        cutting.cuts = False
        database = PostgresDatabase(server, "things", MIGRATIONS)
        cutting.cuts = True
        with nullcontext() if after else pytest.raises(Away):
            add(database, "one")
        assert not database.came_through()
        assert not cutting.cuts, "nothing was cut"
        assert database.rows("SELECT name FROM things") == ([("one",)] if after else [])
        add(database, "two")


def test_what_is_begun_when_the_server_goes_is_not_done(
    database: PostgresDatabase, postgres: Postgres
) -> None:
    add(database, "one")
    with pytest.raises(Away), database.transaction():
        database.execute("INSERT INTO things VALUES (?)", "two")
        with postgres.away():
            database.execute("INSERT INTO things VALUES (?)", "three")
    assert not database.came_through()
    assert database.rows("SELECT name FROM things") == [("one",)]
    with pytest.raises(StoreError, match="syntax") as wrong:
        database.rows("SELEC 1")
    assert not isinstance(wrong.value, Away)


async def test_who_lives_is_seen_without_a_clock(
    presence: Presence, postgres_server: PostgresServer, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Presence(postgres_server)
    other.start()
    other.hold()
    assert presence.lives(other.name) and other.lives(presence.name) and presence.lives(presence.name)
    # All sessions end; nobody is dead.
    sessions = presence._session, other._session
    postgres.stop()
    await until(lambda: presence.trouble is not None, "it is seen that the server is away")
    postgres.start()
    await until(lambda: presence._session > sessions[0] and other._session > sessions[1], "they are back")
    assert presence.lives(other.name), "it has just lost its session, too"
    monkeypatch.setattr(presences, "GRACE_SECONDS", 0.0)
    assert presence.lives(other.name)
    other.close()
    await until(lambda: not presence.lives(other.name), "it is gone")
    assert not presence.lives("broker-never-there")


async def test_what_is_announced_is_heard_when_it_is_written(
    presence: Presence, database: PostgresDatabase, postgres: Postgres
) -> None:
    heard: list[str] = []
    for kind in ("things", "others"):
        presence.on_change(kind, lambda kind=kind: heard.append(kind))
    with database.transaction():
        database.announce()
        database.execute("INSERT INTO things VALUES (?)", "one")
    await until(lambda: heard == ["things"], "it is heard")
    with pytest.raises(ZeroDivisionError), database.transaction():
        database.announce()
        _ = 1 / 0
    session = presence._session
    postgres.stop()
    postgres.start()
    await until(lambda: presence._session > session, "it is back")
    await until(lambda: sorted(heard) == ["others", "things", "things"], "what was missed may be anything")


async def test_of_two_brokers_with_one_name_the_second_has_it_when_the_first_has_ended(
    postgres_server: PostgresServer,
) -> None:
    first, second, third = (Presence(postgres_server, broker=name, serves=True) for name in ("a", "a", "b"))
    for one in (first, second, third):
        assert not one.may_serve
        one.start()
        one.hold()
        wanted = one is not second
        await until(
            lambda one=one, wanted=wanted: one.may_serve is wanted and "known" not in str(one.rival),
            "it knows",
        )
    assert second.rival == "another broker has the name a: give each its own in state.broker"
    assert first.name.startswith("a.") and first.name != second.name and second.lives(first.name)
    first.close()
    await until(lambda: second.may_serve, "the name is free")
    second.close()
    third.close()


async def test_a_lock_that_is_free_for_a_moment_is_nobodys_death(
    presence: Presence, postgres_url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PostgresServer(postgres_url)
    connection = other.connect()
    connection.execute(b"SELECT pg_advisory_lock(%s)", (lock_number("broker-x"),))
    assert presence.lives("broker-x")
    connection.close()
    assert presence.lives("broker-x"), "its session may have been lost just now"
    session = presence._session
    postgres.stop()
    postgres.start()
    await until(lambda: presence._session > session, "it is back")
    monkeypatch.setattr(presences, "GRACE_SECONDS", 0.01)
    assert presence.lives("broker-x"), "in the session that is lost it may not have been there to be seen"
    await until(lambda: not presence.lives("broker-x"), "it counts as dead")


def test_a_driver_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "cellblock.fleet.postgresql")
    state = StateSettings(url="postgresql://localhost/x", key=base64.b64encode(bytes(32)).decode())
    with pytest.raises(ConfigError, match=r"cellblock\[postgresql\]"):
        store_of(Settings(cellblock=CellblockSettings(state=state)))


def test_a_wrong_url_is_told_without_its_password() -> None:
    with pytest.raises(ConfigError) as said:
        PostgresServer("postgresql://me:hunter2@localhost/x?no_such=1")
    assert "hunter2" not in str(said.value)


@pytest.mark.skipif(installed_binaries() is None, reason="the wheel's PostgreSQL is built without TLS")
def test_a_server_is_reached_over_tls_that_is_verified(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    right, wrong = (certificate(tmp_path / name, host="localhost") for name in ("right", "wrong"))
    with closing(Postgres(tls=right)) as there:
        url = f"postgresql://postgres@localhost:{there.port}/postgres?sslmode=verify-full&sslrootcert="
        with (
            closing(PostgresServer(f"{url}{right[0]}")) as server,
            server.connection() as connection,
        ):
            encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert connection.execute(encrypted).fetchone() == (True,)
        for other in (f"{url}{wrong[0]}", f"{url}{right[0]}".replace("localhost", "127.0.0.1")):
            with pytest.raises(Away, match="certificate"):
                PostgresServer(other).connect()


async def test_a_server_that_stands_still_is_not_waited_for(
    database: PostgresDatabase, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "silence", 1.0)
    stood: list[int] = []

    def stand_still() -> None:
        with database.transaction():
            ((pid,),) = database.rows("SELECT pg_backend_pid()")
            stood.append(pid)
            os.kill(pid, signal.SIGSTOP)
            database.execute("INSERT INTO things VALUES (?)", "one")

    asked = start_daemon("asking", stand_still)
    try:
        assert await is_done_within(asked, BOUND_SECONDS), "it is waited for without a bound"
    finally:
        os.kill(stood[0], signal.SIGCONT)
    with pytest.raises(Away, match="silent for 1 s"):
        asked.result()
    assert not database.came_through()
    assert database.rows("SELECT name FROM things") == []


@pytest.mark.parametrize(
    "made",
    [
        "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
        "ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    ],
)
def test_texts_are_texts_in_a_database_of_another_encoding(postgres: Postgres, made: str) -> None:
    url = postgres.database(made)
    with closing(PostgresServer(url)) as server:
        database = PostgresDatabase(server, "things", MIGRATIONS)
        add(database, "zwölf")
        assert database.rows("SELECT name FROM things") == [("zwölf",)]
    postgres.drop(url)


def test_who_waited_for_a_lock_sees_what_was_written_whatever_the_database_s_default_is(
    postgres: Postgres, postgres_url: str
) -> None:
    postgres.configure(postgres_url, "default_transaction_isolation = 'serializable'")

    def broker(name: str) -> None:
        with closing(PostgresServer(postgres_url)) as server:
            database = PostgresDatabase(server, "things", MIGRATIONS, counted=True)
            for _ in range(10):
                add(database, name)

    at_once(broker, ["one"] * 4)


IN_A_FILE = ("CREATE TABLE things (name TEXT NOT NULL, body BLOB); CREATE INDEX names ON things (name);",)
SETUPS = {
    "plain": (),
    # Written into a file that is no database yet, as those of kept runs are.
    "own pragmas": ("PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA secure_delete = ON"),
}


@pytest.fixture(params=SETUPS.values(), ids=list(SETUPS))
def setup(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "things.sqlite3"


def opened(path: Path, setup: tuple[str, ...] = (), *, checked: bool = True) -> SqliteDatabase:
    logger = logging.getLogger("cellblock.test")
    tables = Tables("things", path.name, "things", logger, IN_A_FILE, (), setup)
    return SqliteDatabase(path, tables, checked=checked)


def put(database: SqliteDatabase, *names: str) -> None:
    with database.transaction():
        for name in names:
            database.connection.execute("INSERT INTO things VALUES (?, zeroblob(1000))", (name,))


def names(database: SqliteDatabase) -> list[str]:
    return [name for (name,) in database.rows("SELECT name FROM things ORDER BY name")]


def test_what_was_written_is_there_after_opening_again(path: Path, setup: tuple[str, ...]) -> None:
    with closing(opened(path, setup=setup)) as database:
        put(database, "one")
    with closing(opened(path, setup=setup)) as again:
        assert names(again) == ["one"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0" * 99]
)
def test_a_damaged_file_is_set_aside(
    path: Path, setup: tuple[str, ...], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING), closing(opened(path, setup=setup)) as database:
        assert names(database) == []
        put(database, "one")
    aside = list(path.parent.glob("*.damaged-*"))
    assert [file.read_bytes() for file in aside] == [content]
    assert "the store of things was damaged" in caplog.text and aside[0].name in caplog.text


def test_damage_in_the_middle_is_found_at_opening(path: Path, setup: tuple[str, ...]) -> None:
    with closing(opened(path, setup=setup)) as database:
        put(database, *(f"t{number}" for number in range(200)))
    os.truncate(path, path.stat().st_size // 2)
    with closing(opened(path, setup=setup)) as again:
        assert names(again) == []
    assert list(path.parent.glob("*.damaged-*"))


def test_another_programs_database_is_left_alone(path: Path, setup: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a database that Cellblock has not made"):
        opened(path, setup=setup)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_file_of_a_newer_version_is_left_alone(path: Path, setup: tuple[str, ...]) -> None:
    opened(path, setup=setup).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer Cellblock"):
        opened(path, setup=setup)
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        opened(tmp_path / "absent" / "things.sqlite3")


def test_a_broker_waits_for_another_that_is_making_the_file(path: Path) -> None:
    """SQLite by itself gives up at once here, whatever its timeout is."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        done = threading.Timer(0.3, other.execute, ["COMMIT"])
        done.start()
        with closing(opened(path)) as database:
            put(database, "one")
        done.join()


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
    postgres: Postgres,
    postgres_server: PostgresServer,
    shared_state: SharedState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, here = shared_state.rows, shelf(shared_state)
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


async def test_who_follows_goes_on_when_the_tables_are_not_there_for_a_while(
    postgres_url: str,
    postgres_server: PostgresServer,
    shared_state: SharedState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cellblock.fleet.shared_state.POLL_SECONDS", 0.01)
    rows = shared_state.rows
    rows.read()
    look, looks = rows.read, list[None]()
    monkeypatch.setattr(rows, "read", lambda: (looks.append(None), look()))
    rows.start()
    with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=cellblock") as connection:
        saved: Any = connection.execute("DELETE FROM migrations WHERE kind = 'shared' RETURNING *").fetchone()
        before = len(looks)
        await until(lambda: len(looks) > before + 1, "it looks again")
        with pytest.raises(NotShared, match="not those"):
            shelf(shared_state).write("a", b"1", replace=True)
        places = ", ".join(["%s"] * len(saved))
        connection.execute(f"INSERT INTO migrations VALUES ({places})", saved)
    shelf(state_of(postgres_server)).write("a", b"1", replace=True)
    await until(lambda: shelf(shared_state).names() == ["a"], "it is seen")


async def test_while_postgresql_is_away_what_is_known_stays(
    postgres: Postgres, postgres_server: PostgresServer, shared_state: SharedState
) -> None:
    here = shelf(shared_state)
    here.write("a", b"1", replace=True)
    shared_state.rows.start()
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

    with closing(rows_of(postgres_server, OTHER_KEY, KEY)) as coming:
        coming.start()
        await until(are_read_with_it_alone, "both are sealed anew")
