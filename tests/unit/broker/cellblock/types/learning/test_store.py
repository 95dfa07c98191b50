"""The store: what goes in comes out, through kills, full disks, and several brokers at once."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cellblock.base.database import SqliteDatabase, StoreError
from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.types.learning.observation import (
    MAX_WINDOW,
    NOT_FADING,
    WINDOW,
    Forms,
    Observation,
    ToolKey,
    fingerprint,
    tool_key,
)
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import shape_of
from cellblock.types.learning.store import (
    MAX_DEFINITIONS,
    MAX_VERSIONS,
    TABLES,
    Memory,
    Observations,
    decoded,
    encoded,
)
from support.params import mostly
from support.postgresql import Cutting, Postgres
from support.shared_rows import KEY as KEY_BYTES, AnyStore

KEY = ToolKey("files", "read", "0" * 16)


def seen(value: Any, at: float = 1.0, texts: bool = False, **fields: Any) -> Observation:
    return Observation(
        Forms(shape_of([value]), texts=texts), samples=1, first_seen=at, last_seen=at, **fields
    )


def observations(store: AnyStore) -> Observations:
    """As one more broker has them."""
    return Observations(store.database(TABLES))


@pytest.fixture
def store(store_of_broker: Callable[[], AnyStore]) -> Iterator[Observations]:
    with closing(observations(store_of_broker())) as made:
        yield made


def test_what_was_merged_is_there_after_opening_again(
    store_of_broker: Callable[[], AnyStore], store: Observations
) -> None:
    store.merge({KEY: seen({"id": 1}, 5.0, disagreement="at /x", disagreements=1, sample='{"id":1}')})
    merged = store.merge({KEY: seen({"id": "a"}, 3.0, texts=True)})[KEY]
    assert (merged.samples, merged.first_seen, merged.last_seen, merged.version) == (2, 3.0, 5.0, 2)
    assert to_schema(merged.shape.value)["properties"]["id"] == {"type": ["string", "integer"]}
    with closing(observations(store_of_broker())) as again:
        assert again.load() == {KEY: merged}
        [(version, _, older)] = again.versions("files", "read")
    assert (version, older.shape.value) == (1, shape_of([{"id": 1}]))
    if isinstance(store := store_of_broker(), LocalStore):
        assert (store.state_dir / TABLES.file).stat().st_mode & 0o777 == 0o600


def test_versions_and_definitions_are_bounded(store: Observations) -> None:
    for number in range(MAX_VERSIONS + 5):
        store.merge({KEY: seen({f"k{number}": 1})})
    assert len(store.versions("files", "read")) == MAX_VERSIONS
    for number in range(MAX_DEFINITIONS + 3):
        store.merge({ToolKey("files", "read", f"{number}"): seen(1, 10.0 + number)})
    assert {key.fingerprint for key in store.load()} == {
        str(number) for number in range(3, MAX_DEFINITIONS + 3)
    }
    assert store.versions("files", "read") == []


def test_clear(store: Observations) -> None:
    others = [ToolKey("files", "write", "0"), ToolKey("mail", "read", "0")]
    store.merge(dict.fromkeys([KEY, *others], seen(1)))
    assert store.clear("files", "read") == 1
    assert set(store.load()) == set(others)
    assert store.clear("files") == 1
    assert store.clear() == 1
    assert store.load() == {}


WRITER = """
import sys
from pathlib import Path
from cellblock.types.learning.shape import shape_of
from cellblock.types.learning.observation import Forms, Observation, ToolKey
from cellblock.base.store import SqliteDatabase
from cellblock.types.learning.store import TABLES, Observations

store, key, number = Observations(SqliteDatabase(Path(sys.argv[1]), TABLES)), ToolKey("files", "read", "0" * 16), 0
while True:
    # Its shape grows for a while, so that versions are written, too.
    value = {"id": number, f"key_{number % 676}": "x"}
    seen = Observation(Forms(shape_of([value])), samples=1, first_seen=1.0, last_seen=1.0)
    print(store.merge({key: seen})[key].samples, flush=True)
    number += 1
"""


def killed_while_it_writes(folder: Path, delay: float) -> tuple[int, int]:
    """The samples that a writer has committed for certain before it was killed, and those in the file."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder / TABLES.file)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(delay)  # when it dies is chance
        writer.kill()
        lines += writer.stdout.read().splitlines()
    # The last line may be cut off by the kill: it counts only when it is whole.
    said = max((int(line) for line in lines if line.strip().isdigit()), default=0)
    with closing(sqlite3.connect(folder / TABLES.file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    with closing(observations(LocalStore(folder))) as store:
        found = store.load()
    assert not list(folder.glob("*.damaged-*")), "the store was set aside"
    return said, found[KEY].samples if found else 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", mostly([5], [5, 40]))
def test_kills_while_it_writes(tmp_path: Path, kills: int) -> None:
    chance = Random(0)
    before = 0
    for _ in range(kills):
        said, held = killed_while_it_writes(tmp_path, chance.uniform(0.0, 0.02))
        assert said > before, "the writer wrote nothing, so the kill proves nothing"
        assert said <= held <= said + 1, "more than the last write is lost, or one was written twice"
        before = held


@pytest.mark.parametrize("body", ['{"value": {"o": 1}}', '{"skipped": 1e999}', '{"fading": {"count": "x"}}'])
def test_a_row_that_cannot_be_read_is_forgotten(tmp_path: Path, body: str) -> None:
    mail = ToolKey("mail", "read", "0")
    with closing(observations(LocalStore(tmp_path))) as store:
        store.merge({KEY: seen(1), mail: seen(2)})
        with closing(sqlite3.connect(tmp_path / TABLES.file, isolation_level=None)) as other:
            other.execute("UPDATE observed SET body = ? WHERE server = 'mail'", [body])
        assert list(store.load()) == [KEY]
        assert store.merge({mail: seen(3)})[mail].samples == 1


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    wide = {
        ToolKey("files", f"t{number}", "0"): seen({f"k{i}": i for i in range(100)}) for number in range(50)
    }
    with closing(observations(LocalStore(tmp_path))) as store:
        database = cast("SqliteDatabase", store.database)
        store.merge({KEY: seen({"id": 1})})
        database.connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match="full"):
            store.merge(wide)
        assert list(store.load()) == [KEY]
        database.connection.execute("PRAGMA max_page_count = 100000")
        assert len(store.merge(wide)) == 50


def test_two_brokers_write_one_store(store_of_broker: Callable[[], AnyStore], store: Observations) -> None:
    def broker(name: str) -> None:
        with closing(observations(store_of_broker())) as one:
            for number in range(40):
                one.merge({KEY: seen({name: number})})

    with ThreadPoolExecutor() as threads:
        assert len([*threads.map(broker, ("left", "right"))]) == 2
    merged = store.load()[KEY]
    assert merged.samples == 80
    assert set(to_schema(merged.shape.value)["properties"]) == {"left", "right"}


def test_a_fingerprint_is_of_the_definition() -> None:
    one = fingerprint({"type": "object", "properties": {"a": True}}, None)
    assert one == fingerprint({"properties": {"a": True}, "type": "object"}, None)
    assert one != fingerprint({"type": "object", "properties": {"b": True}}, None)
    assert fingerprint(object(), None) == fingerprint(object(), None)


def test_what_others_have_changed_is_seen_and_ones_own_is_not(
    store_of_broker: Callable[[], AnyStore], store: Observations
) -> None:
    with closing(observations(store_of_broker())) as other:
        assert not store.changed()
        store.merge({KEY: seen(1)})
        assert not store.changed() and other.changed() and not other.changed()
        other.clear()
        assert store.changed() and not store.changed() and not other.changed()


@pytest.mark.parametrize(
    ("odd", "kept"),
    [
        (tool_key("files", "re\0ad", "0"), ToolKey("files", "re\\x00ad", "0")),
        (tool_key("s", "\ud800", "0"), tool_key("s", "\ud800", "0")),
    ],
    ids=["no text in PostgreSQL", "no UTF-8 form"],
)
def test_a_name_that_is_no_text_stops_no_other(store: Observations, odd: ToolKey, kept: ToolKey) -> None:
    for _ in range(2):
        merged = store.merge({odd: seen(1), KEY: seen({"id": "a\0b"})})
    assert (merged[odd].samples, merged[KEY].samples) == (2, 2)
    assert set(store.load()) == {kept, KEY}


def test_a_memory_writes_all_once_when_postgresql_is_back(
    shared_state: SharedState, postgres: Postgres
) -> None:
    memory = Memory(shared_state, lambda key: None)
    with postgres.away():
        memory.open()
        memory.add(KEY, seen({"a": 1}))
        assert memory.is_shared and not memory.write() and memory.has_unwritten
    assert memory.write() and not memory.has_unwritten
    memory.add(KEY, seen({"a": 1}))
    memory.add(KEY, seen({"b": 1}))
    with postgres.away():
        assert not memory.write()
        memory.add(KEY, seen({"c": 1}))
    assert memory.write()
    with closing(observations(shared_state)) as store:
        found = store.load()[KEY]
    assert found.samples == 4 and set(to_schema(found.shape.value)["properties"]) == {"a", "b", "c"}
    assert memory.known[KEY] == found
    memory.close()


@pytest.mark.parametrize("is_back_soon", [True, False])
def test_a_merge_whose_answer_is_lost_counts_once(
    postgres_url: str, short_path: Path, monkeypatch: pytest.MonkeyPatch, is_back_soon: bool
) -> None:
    cutting = Cutting(postgres_url, short_path, after=True)
    cutting.cuts = False
    shared = SharedState(PostgresServer(cutting.url), (KEY_BYTES,))
    memory = Memory(shared, lambda key: None)
    memory.open()
    memory.add(KEY, seen({"a": 1}))
    cutting.cuts = True
    if not is_back_soon:
        monkeypatch.setattr("cellblock.fleet.postgresql.UNSURE_SECONDS", 0.0)
    assert memory.write() == is_back_soon and not cutting.cuts
    memory.add(KEY, seen({"a": 1}))
    assert memory.write()
    assert observations(shared).load()[KEY].samples == 2 == memory.known[KEY].samples
    shared.close()
    cutting.close()


# ---- old shapes fade: the type is that of the newer results, and what takes turns settles ----------------


A: dict[str, Any] = {"title": "x", "due": None, "rows": [{"n": 1}]}
B: dict[str, Any] = {"name": "x", "id": 1, "rows": []}


def after(values: Iterable[Any], known: Any = None) -> tuple[Observation, list[int]]:
    """What is known after results, and at which of them the type changed."""
    changed: list[int] = []
    for number, value in enumerate(values, start=1):
        newer = value if isinstance(value, Observation) else seen(value)
        before, known = known, newer.begun() if known is None else known.merged(newer)
        if before is not None and before.version != known.version:
            changed.append(number)
    return known, changed


LEFT = [{**B, "rows": A["rows"]}, B]
"""What is left when A has faded: empty arrays say nothing of what was in them."""


@pytest.mark.parametrize(
    ("results", "changed", "left", "window"),
    [
        ([A, *[B] * 426], [2, 2 * WINDOW], LEFT, 2 * WINDOW),
        # However often it was seen, and also after turns.
        ([*[A] * 400, *[B] * WINDOW], [401, 400 + WINDOW], LEFT, 2 * WINDOW),
        ([*[A, B] * 10, *[B] * 2 * WINDOW], [2, 2 * WINDOW], LEFT, 2 * WINDOW),
        # What takes turns does not flap.
        ([A, B] * 300, [2], [A, B], WINDOW),
        ([A, A, A, B] * 150, [4], [A, B], WINDOW),
        ([A, *[B] * 20] * 28, [2], [A, B], WINDOW),
        ([*[A] * 40, *[B] * 9] * 12, [41], [A, B], WINDOW),
        ([B, *[A] * 49] * 12, [2], [A, B], WINDOW),
    ],
    ids=[
        *("one odd result", "many of before", "turns that have ended"),
        *("one after the other", "three and one", "one and twenty", "forty and nine", "one and a window"),
    ],
)
def test_a_shape_fades_with_the_window_after_its_last(
    results: list[Any], changed: list[int], left: list[Any], window: int
) -> None:
    known, found = after(results)
    assert found == changed
    assert known.shape.value == shape_of(left)
    assert (known.samples, known.version, known.fading.window) == (len(results), 1 + len(changed), window)


def test_fields_stay_in_the_order_in_which_they_came() -> None:
    """What is printed of a type does not change with the result that a window happens to begin with."""
    known, changed = after([A, *[B, A] * (4 * WINDOW)])
    assert changed == [2], "windows have ended, and changed nothing"
    assert list(to_schema(known.shape.value)["properties"]) == [*A, "name", "id"]


def test_turns_that_take_longer_than_a_window_settle() -> None:
    known, changed = after([*[A] * 60, *[B] * 60] * 20)
    assert len(changed) <= 4 and changed[-1] <= 8 * WINDOW and known.fading.window <= 4 * WINDOW
    for _ in range(10):
        turn = 2 * known.fading.window
        known, _ = after([replace(seen(A), samples=turn), replace(seen(B), samples=turn)], known)
    assert known.fading.window == MAX_WINDOW


def test_what_is_not_in_the_way_stays() -> None:
    """Null, an empty list, a wider text; a field for errors once in a hundred is met before a later window ends."""
    rare = {"error": "x", "due": "soon", "rows": [1.5], "at": "now"}
    often = {"due": None, "rows": [1], "at": "2026-11-01"}
    _, changed = after([*[often] * 99, rare] * 20)
    assert len(changed) <= 4 and changed[-1] <= 400
    known, changed = after([rare, *[often] * 3 * WINDOW])
    left = [often, {key: value for key, value in rare.items() if key != "error"}]
    assert known.shape.value == shape_of(left), "a window had no error"


def test_kinds_of_results_fade() -> None:
    """One text among JSON texts costs the type no more than fifty results."""
    text = Observation(Forms(texts=True), samples=1, first_seen=1e9, last_seen=1e9)
    rows = replace(text, shape=Forms(document=shape_of([[{"id": 1}]])))
    known, changed = after([rows, text, *[rows] * 3])
    assert known.shape.texts and changed == [2]
    known, changed = after([rows, text, *[rows] * WINDOW * 2])
    assert not known.shape.texts and known.shape.document == rows.shape.document


def test_a_window_ends_however_much_is_new() -> None:
    known, _ = after([A, *({**B, f"k{number}": 1} for number in range(2 * WINDOW))])
    assert "title" not in to_schema(known.shape.value)["properties"]


def test_what_was_stored_before_there_was_fading_is_kept_and_fades(tmp_path: Path) -> None:
    path = tmp_path / "schemas.sqlite3"
    with closing(Observations(SqliteDatabase(path, TABLES))) as store:
        store.merge({KEY: seen(A)})
        store.merge({KEY: seen(B)})
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:  # as it was written before
        [(body,)] = plain.execute("SELECT body FROM observed").fetchall()
        older = {key: part for key, part in json.loads(body).items() if key != "fading"}
        plain.execute("UPDATE observed SET body = ?", [json.dumps(older)])
    with closing(Observations(SqliteDatabase(path, TABLES))) as store:
        assert set(to_schema(store.load()[KEY].shape.value)["properties"]) == {*A, *B}
        for _ in range(2 * WINDOW):
            store.merge({KEY: seen(B)})
        known = store.load()[KEY]
        assert "title" not in to_schema(known.shape.value)["properties"] and known.samples == 2 + 2 * WINDOW
        assert [version for version, _, _ in store.versions(KEY.server, KEY.tool)] == [1, 2]


def test_what_is_stored_stays_small_and_comes_back_the_same() -> None:
    for known in (after([A, *[B] * count])[0] for count in (1, 10, WINDOW, 426)):
        assert decoded(encoded(known)).fading == known.fading
    steady = after([A] * 10)[0]
    assert len(encoded(steady)) < len(encoded(replace(steady, fading=NOT_FADING))) + 60
    with pytest.raises(ValueError, match="Expected `object"):
        decoded('{"fading": 7}')
