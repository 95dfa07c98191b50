"""The store: what goes in comes out, through kills, damage, full disks, and several brokers at once."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import store as measuring
from cellblock.learning.infer import shape_of, to_schema
from cellblock.learning.observation import Observation, ToolKey, fingerprint, tool_key
from cellblock.learning.store import MAX_DEFINITIONS, MAX_VERSIONS, Store, StoreError

KILLS = 20
KEY = ToolKey("files", "read", "0" * 16)


def seen(value: Any, at: float = 1.0, **fields: Any) -> Observation:
    return Observation(value=shape_of([value]), samples=1, first_seen=at, last_seen=at, **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "schemas.sqlite3"


def test_what_was_merged_is_there_after_opening_again(path: Path) -> None:
    store = Store(path)
    store.merge({KEY: seen({"id": 1}, 5.0, disagreement="at /x", disagreements=1, sample='{"id":1}')})
    merged = store.merge({KEY: seen({"id": "a"}, 3.0, texts=True)})[KEY]
    store.close()
    again = Store(path)
    assert again.load() == {KEY: merged}
    assert (merged.samples, merged.first_seen, merged.last_seen, merged.version) == (2, 3.0, 5.0, 2)
    assert to_schema(merged.value)["properties"]["id"] == {"type": ["string", "integer"]}
    assert [(version, old.value) for version, _, old in again.versions("files", "read")] == [
        (1, shape_of([{"id": 1}]))
    ]
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_same_again_is_no_new_version(path: Path) -> None:
    store = Store(path)
    for _ in range(3):
        merged = store.merge({KEY: seen({"id": 1})})
    assert (merged[KEY].version, merged[KEY].samples, store.versions("files", "read")) == (1, 3, [])
    store.close()


def test_versions_and_definitions_are_bounded(path: Path) -> None:
    store = Store(path)
    for number in range(MAX_VERSIONS + 5):
        store.merge({KEY: seen({f"k{number}": 1})})
    assert len(store.versions("files", "read")) == MAX_VERSIONS
    for number in range(MAX_DEFINITIONS + 3):
        store.merge({ToolKey("files", "read", f"{number}"): seen(1, 10.0 + number)})
    assert {key.fingerprint for key in store.load()} == {
        str(number) for number in range(3, MAX_DEFINITIONS + 3)
    }
    assert store.versions("files", "read") == []
    store.close()


def test_clear(path: Path) -> None:
    store = Store(path)
    others = [ToolKey("files", "write", "0"), ToolKey("mail", "read", "0")]
    store.merge(dict.fromkeys([KEY, *others], seen(1)))
    assert store.clear("files", "read") == 1
    assert set(store.load()) == set(others)
    assert store.clear("files") == 1
    assert store.clear() == 1
    assert store.load() == {}
    store.close()


@pytest.mark.slow
def test_kills_while_it_writes(path: Path) -> None:
    chance = Random(0)
    before = 0
    for _ in range(KILLS):
        said, held = measuring.kill_once(path, chance.uniform(0.0, 0.02))
        assert said > before, "the writer wrote nothing, so the kill proves nothing"
        assert said <= held <= said + 1, "more than the last write is lost, or one was written twice"
        before = held


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0" * 99]
)
def test_a_damaged_file_is_set_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        store = Store(path)
    assert store.load() == {}
    store.merge({KEY: seen(1)})
    store.close()
    aside = list(path.parent.glob("*.damaged-*"))
    assert [file.read_bytes() for file in aside] == [content]
    assert "damaged" in caplog.text and aside[0].name in caplog.text


def test_damage_in_the_middle_is_found_at_opening(path: Path) -> None:
    store = Store(path)
    store.merge({ToolKey("s", f"t{number}", "0"): seen({"id": number}) for number in range(200)})
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again = Store(path)
    assert again.load() == {}
    again.close()
    assert list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize(
    "body", ['{"value": {"o": 1}}', '{"skipped": 1e999}', '{"fading": {"weight": 1%s}}' % ("0" * 400)]
)
def test_a_row_that_cannot_be_read_is_forgotten(path: Path, body: str) -> None:
    store = Store(path)
    store.merge({KEY: seen(1), ToolKey("mail", "read", "0"): seen(2)})
    with sqlite3.connect(path) as other:
        other.execute("UPDATE observed SET body = ? WHERE server = 'mail'", [body])
    other.close()
    assert list(store.load()) == [KEY]
    assert store.merge({ToolKey("mail", "read", "0"): seen(3)})[ToolKey("mail", "read", "0")].samples == 1
    store.close()


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a database that Cellblock has not made"):
        Store(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreError, match="newer Cellblock"):
        Store(path)
    assert not list(path.parent.glob("*.damaged-*"))


def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    store = Store(path)
    store.merge({KEY: seen({"id": 1})})
    store._connection.execute("PRAGMA max_page_count = 1")
    wide = {
        ToolKey("files", f"t{number}", "0"): seen({f"k{i}": i for i in range(100)}) for number in range(50)
    }
    with pytest.raises(StoreError, match="full"):
        store.merge(wide)
    assert list(store.load()) == [KEY]
    store._connection.execute("PRAGMA max_page_count = 100000")
    assert len(store.merge(wide)) == 50
    store.close()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Store(tmp_path / "absent" / "schemas.sqlite3")


def test_two_brokers_write_one_file(path: Path) -> None:
    failures: list[BaseException] = []

    def broker(name: str) -> None:
        try:
            store = Store(path)
            for number in range(40):
                store.merge({KEY: seen({name: number})})
            store.close()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=broker, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    store = Store(path)
    merged = store.load()[KEY]
    store.close()
    assert merged.samples == 80
    assert set(to_schema(merged.value)["properties"]) == {"left", "right"}


def test_a_broker_waits_for_another_that_is_making_the_file(path: Path) -> None:
    """SQLite by itself gives up at once here, whatever its timeout is."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, other.execute, ["COMMIT"])
    done.start()
    store = Store(path)
    store.merge({KEY: seen(1)})
    store.close()
    done.join()
    other.close()


def test_a_fingerprint_is_of_the_definition() -> None:
    one = fingerprint({"type": "object", "properties": {"a": True}}, None)
    assert one == fingerprint({"properties": {"a": True}, "type": "object"}, None)
    assert one != fingerprint({"type": "object", "properties": {"b": True}}, None)
    assert fingerprint(object(), None) == fingerprint(object(), None)


def test_names_without_a_utf_8_form_are_stored(path: Path) -> None:
    store = Store(path)
    key = tool_key("s", "\ud800", "0")
    store.merge({key: seen(1)})
    assert store.merge({key: seen(1)})[key].samples == 2
    assert list(store.load()) == [key]
    store.close()
