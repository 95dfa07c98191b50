"""Databases: private, set aside when damaged, left alone when another program or a newer version has made them."""

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.database import SqliteDatabase, StoreError

MIGRATIONS = ("CREATE TABLE things (name TEXT NOT NULL, body BLOB); CREATE INDEX names ON things (name);",)
SETUPS = {
    "plain": (),
    # Written into a file that is no database yet, as those of kept runs are.
    "own pragmas": ("PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA secure_delete = ON"),
}

logger = logging.getLogger("cellblock.test")


@pytest.fixture(params=SETUPS.values(), ids=list(SETUPS))
def setup(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "things.sqlite3"


def opened(path: Path, **options: Any) -> SqliteDatabase:
    return SqliteDatabase(path, MIGRATIONS, "things", logger, **options)


def add(database: SqliteDatabase, *names: str) -> None:
    with database.transaction():
        for name in names:
            database.connection.execute("INSERT INTO things VALUES (?, zeroblob(1000))", (name,))


def names(database: SqliteDatabase) -> list[str]:
    return [name for (name,) in database.rows("SELECT name FROM things ORDER BY name")]


def test_what_was_written_is_there_after_opening_again(path: Path, setup: tuple[str, ...]) -> None:
    database = opened(path, setup=setup)
    add(database, "one")
    database.close()
    again = opened(path, setup=setup)
    assert names(again) == ["one"]
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0" * 99]
)
def test_a_damaged_file_is_set_aside(
    path: Path, setup: tuple[str, ...], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        database = opened(path, setup=setup)
    assert names(database) == []
    add(database, "one")
    database.close()
    aside = list(path.parent.glob("*.damaged-*"))
    assert [file.read_bytes() for file in aside] == [content]
    assert "the store of things was damaged" in caplog.text and aside[0].name in caplog.text


def test_damage_in_the_middle_is_found_at_opening(path: Path, setup: tuple[str, ...]) -> None:
    database = opened(path, setup=setup)
    add(database, *(f"t{number}" for number in range(200)))
    database.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again = opened(path, setup=setup)
    assert names(again) == []
    again.close()
    assert list(path.parent.glob("*.damaged-*"))


def test_another_programs_database_is_left_alone(path: Path, setup: tuple[str, ...]) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a database that Cellblock has not made"):
        opened(path, setup=setup)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_file_of_a_newer_version_is_left_alone(path: Path, setup: tuple[str, ...]) -> None:
    opened(path, setup=setup).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreError, match="newer Cellblock"):
        opened(path, setup=setup)
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        opened(tmp_path / "absent" / "things.sqlite3")


def test_a_broker_waits_for_another_that_is_making_the_file(path: Path) -> None:
    """SQLite by itself gives up at once here, whatever its timeout is."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, other.execute, ["COMMIT"])
    done.start()
    database = opened(path)
    add(database, "one")
    database.close()
    done.join()
    other.close()
