"""Journals at rest: encrypted, each piece in its place only, bounded by age and size."""

import secrets
import sqlite3
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from cellblock.base.database import SqliteDatabase, StoreError
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import JOURNALS
from cellblock.fleet.postgresql import PostgresServer
from cellblock.record.rows import Head, Piece, TooLarge, WrongPiece
from cellblock.record.store import PAGE_RUNS, UNENDED_SECONDS, JournalStore
from support.opened_journals import opened_journals
from support.shared_rows import KEY, OTHER_KEY

Open = Callable[..., JournalStore]
NOW = 1_000_000_000.0
TEXT = b"the script said hunter2-hunter2"
SETTINGS = JournalSettings(mode="all")


def head(run: str = "r1", principal: str = "cli", began: float = NOW, **fields: Any) -> Head:
    return Head(run, principal, began, **{"ended": began + 1, "outcome": "ok", **fields})


def changed(kept_in: Path | PostgresServer, in_file: str, shared: str) -> None:
    if isinstance(kept_in, Path):
        with sqlite3.connect(kept_in / JOURNALS) as other:
            assert other.execute(in_file).rowcount > 0
        other.close()
    else:
        with kept_in.connection() as connection:
            assert connection.execute((shared or in_file).encode()).rowcount > 0


def test_what_was_written_is_there_after_opening_again(
    kept_in: Path | PostgresServer, open_store: Open
) -> None:
    store = open_store()
    pieces = [Piece("facts", TEXT), Piece("recording", b"")]
    store.write(head(calls=3), pieces)
    store.close()
    store = open_store()
    found = store.read("r1")
    assert found is not None
    assert found[1] == pieces
    assert (found[0].calls, found[0].outcome) == (3, "ok")
    assert store.heads() == [found[0]] and found[0].bytes > len(TEXT)
    assert store.read("r2") is None
    store.close()
    if isinstance(kept_in, Path):
        assert (kept_in / JOURNALS).stat().st_mode & 0o777 == 0o600


def test_nothing_that_a_script_saw_is_readable_in_the_files(tmp_path: Path) -> None:
    store = opened_journals(tmp_path / JOURNALS, lambda: (KEY,), SETTINGS)
    store.write(head(), [Piece("facts", TEXT * 100)])
    store.write(head("r2", ended=None, outcome=None), [Piece("recording", TEXT), Piece("call", TEXT)])
    names = [file.name for file in tmp_path.iterdir()]
    assert "journals.sqlite3-wal" in names, "what was just written is not looked at"
    assert all(b"hunter2" not in file.read_bytes() for file in tmp_path.iterdir())
    store.close()


def test_an_end_takes_the_place_of_what_was_written_on_the_way(store: JournalStore) -> None:
    under_way = head(ended=None, outcome=None)
    store.write(under_way, [Piece("recording", b"begun")])
    store.write(under_way, [Piece("call", b"intent")])
    store.write(under_way, [Piece("call", b"answer")])
    found = store.read("r1")
    assert found is not None
    assert [piece.body for piece in found[1]] == [b"begun", b"intent", b"answer"]
    size = found[0].bytes
    store.write(head(), [Piece("recording", b"whole")])
    found = store.read("r1")
    assert found is not None
    assert found[1] == [Piece("recording", b"whole")] and found[0].bytes < size


def test_a_run_is_its_principals_alone(store: JournalStore) -> None:
    odd = "stdio:\ud800"
    store.write(head("r1", "token:a"), [Piece("facts", TEXT)])
    store.write(head("r2", odd, NOW + 1), [Piece("facts", TEXT)])
    assert [one.id for one in store.heads("token:a")] == ["r1"]
    assert store.read("r1", "token:b") is None and not store.delete("r1", "token:b")
    assert [one.id for one in store.heads(odd)] == ["r2"] and store.read("r2", odd) is not None
    assert [one.id for one in store.heads()] == ["r2", "r1"]
    assert [one.id for one in store.heads(limit=1)] == ["r2"]
    assert store.delete("r1", "token:a") and store.read("r1") is None


@pytest.mark.parametrize(
    ("in_file", "shared"),
    [
        (
            "UPDATE pieces SET body = CAST(substr(body, 1, 20) || iif(substr(body, 21, 1) = x'78', 'y', 'x') "
            "|| substr(body, 22) AS BLOB) WHERE run = 'r1'",
            "UPDATE pieces SET body = set_byte(body, 20, get_byte(body, 20) # 1) WHERE run = 'r1'",
        ),
        (
            "UPDATE pieces SET body = x'00' WHERE run = 'r1'",
            "UPDATE pieces SET body = '\\x00' WHERE run = 'r1'",
        ),
        ("UPDATE pieces SET body = 'text' WHERE run = 'r1'", ""),
        ("UPDATE pieces SET body = (SELECT body FROM pieces WHERE run = 'r2') WHERE run = 'r1'", ""),
        ("UPDATE pieces SET number = 7 WHERE run = 'r1'", ""),
        ("UPDATE pieces SET kind = 'call' WHERE run = 'r1'", ""),
        ("UPDATE runs SET principal = 'token:thief' WHERE id = 'r1'", ""),
    ],
    ids=["a byte", "cut", "a text", "another run's", "another place", "another kind", "another principal"],
)
def test_a_piece_is_readable_only_where_it_was_written(
    kept_in: Path | PostgresServer, in_file: str, shared: str, store: JournalStore
) -> None:
    for run in ("r1", "r2"):
        store.write(head(run), [Piece("facts", TEXT)])
    changed(kept_in, in_file, shared)
    with pytest.raises(WrongPiece, match="r1"):
        store.read("r1")
    assert store.read("r2") is not None


def test_with_another_key_old_runs_are_listed_and_new_ones_are_kept(
    store: JournalStore, open_store: Open
) -> None:
    store.write(head("r1"), [Piece("facts", TEXT)])
    store.close()
    store = open_store(OTHER_KEY)
    store.write(head("r2", began=NOW + 1), [Piece("facts", TEXT)])
    assert [one.id for one in store.heads()] == ["r2", "r1"]
    assert store.read("r2") is not None
    with pytest.raises(WrongPiece, match="another key"):
        store.read("r1")
    assert store.delete("r1")


def test_while_keys_change_two_are_accepted_and_each_run_has_one(
    store: JournalStore, open_store: Open
) -> None:
    for name in ("r1", "r2"):
        store.write(head(name, ended=None), [Piece("facts", TEXT)])
    store.close()
    store = open_store(OTHER_KEY, KEY)
    store.write(head("r1", ended=None), [Piece("call", TEXT)])
    store.write(head("r3"), [Piece("facts", TEXT)])
    store.close()
    # A broker that has not got the new one yet, but for reading.
    store = open_store(KEY, OTHER_KEY)
    for name, kinds in (("r1", ["facts", "call"]), ("r2", ["facts"]), ("r3", ["facts"])):
        read = store.read(name)
        assert read is not None and [piece.kind for piece in read[1]] == kinds
    store.close()
    store = open_store(OTHER_KEY)
    assert store.read("r3") is not None
    for name in ("r1", "r2"):
        with pytest.raises(WrongPiece, match="another key"):
            store.read(name)
    # One whose key is lost is written anew when it ends.
    store.write(head("r2"), [Piece("facts", TEXT)])
    assert store.read("r2") is not None


@pytest.mark.parametrize("trouble", ["max_page_count = 1", "query_only = ON"], ids=["full", "read-only"])
def test_what_cannot_be_written_is_an_error_and_loses_nothing(tmp_path: Path, trouble: str) -> None:
    store = opened_journals(tmp_path / JOURNALS, lambda: (KEY,), SETTINGS)
    store.write(head("r1"), [Piece("facts", TEXT)])
    cast("SqliteDatabase", store.database).connection.execute(f"PRAGMA {trouble}")
    with pytest.raises(StoreError, match=r"full|readonly"):
        store.write(head("r2"), [Piece("facts", b"x" * MIB)])
    assert [one.id for one in store.heads()] == ["r1"]
    assert store.read("r1") is not None
    store.close()


def test_two_processes_keep_runs_in_one_file(store: JournalStore, open_store: Open) -> None:
    def broker(name: str) -> None:
        store = open_store()
        for number in range(30):
            store.write(head(f"{name}{number}"), [Piece("facts", TEXT)])
            store.tidy(NOW)
        store.close()

    with ThreadPoolExecutor() as threads:
        assert len([*threads.map(broker, ("left", "right"))]) == 2
    assert len(store.heads()) == 60


def test_what_is_too_old_goes_a_page_at_a_time(open_store: Open) -> None:
    store = open_store(expire_ms=100_000)
    for number in range(2 * PAGE_RUNS + 10):
        store.write(head(f"old{number}"), [Piece("facts", TEXT)])
    later = NOW + 102
    store.write(head("young", began=NOW + 50), [Piece("facts", TEXT)])
    store.write(head("lives", ended=None, outcome=None), [Piece("recording", TEXT)])
    counts: list[int] = []
    while store.tidy(later):
        counts.append(len(store.heads()))
    assert counts == [PAGE_RUNS + 12, 12, 2]
    assert [one.id for one in store.heads()] == ["young", "lives"]
    assert store.tidy(NOW + UNENDED_SECONDS + 1) and not store.heads()
    assert store.database.rows("SELECT count(*) FROM pieces") == [(0,)]


def test_what_is_too_much_goes_and_the_disk_gets_its_space_back(
    kept_in: Path | PostgresServer, open_store: Open
) -> None:
    store = open_store(total_bytes=MIB)
    for number in range(40):
        store.write(
            head(f"r{number:02}", began=NOW + number), [Piece("recording", secrets.token_bytes(64 * 1024))]
        )
    store.write(head("lives", began=NOW - 1, ended=None, outcome=None), [Piece("recording", TEXT)])
    assert store.used_bytes > 2 * MIB
    while store.tidy(NOW + 100):
        pass
    kept = [one.id for one in store.heads()]
    assert kept[-1] == "lives" and 10 <= len(kept) <= 16
    assert kept[:-1] == [f"r{number:02}" for number in range(39, 40 - len(kept), -1)]
    assert store.used_bytes <= MIB
    with pytest.raises(TooLarge, match=r"journal\.total_bytes"):
        store.write(head("huge"), [Piece("recording", b"x" * (MIB + 1))])
    store.close()
    if isinstance(kept_in, Path):
        assert (kept_in / JOURNALS).stat().st_size <= MIB


def test_kept_runs_take_no_memory(store: JournalStore) -> None:
    body = secrets.token_bytes(20 * 1024)
    store.write(head("first"), [Piece("recording", body)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            store.write(head(f"r{number}"), [Piece("recording", body)])
        store.tidy(NOW)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store.heads()) == 301
    assert after - before < 64 * 1024 and peak - before < MIB
