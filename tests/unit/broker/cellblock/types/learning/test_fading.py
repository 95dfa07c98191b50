"""Old shapes fade: the type is that of the newer results, and what takes turns settles."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cellblock.base.store import opened_file
from cellblock.types.learning.observation import MAX_WINDOW, NOT_FADING, WINDOW, Forms, Observation, ToolKey
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import shape_of
from cellblock.types.learning.store import TABLES, Observations, decoded, encoded

A: dict[str, Any] = {"title": "x", "due": None, "rows": [{"n": 1}]}
B: dict[str, Any] = {"name": "x", "id": 1, "rows": []}
KEY = ToolKey("files", "read", "0" * 16)


def seen(value: Any, at: float = 1e9) -> Observation:
    return Observation(Forms(shape_of([value])), samples=1, first_seen=at, last_seen=at)


def after(values: Iterable[Any], known: Observation | None = None) -> tuple[Observation, list[int]]:
    """What is known after results, and at which of them the type changed."""
    changed: list[int] = []
    for number, value in enumerate(values, start=1):
        newer = value if isinstance(value, Observation) else seen(value)
        before, known = known, newer.begun() if known is None else known.merged(newer)
        if before is not None and before.version != known.version:
            changed.append(number)
    assert known is not None
    return known, changed


def test_one_odd_result_fades_with_the_window_after_its_own() -> None:
    known, changed = after([A, *[B] * 426])
    assert changed == [2, 2 * WINDOW]
    assert known.shape.value == shape_of([{**B, "rows": A["rows"]}, B]), (
        "empty arrays say nothing of what was in them"
    )
    assert (known.samples, known.version) == (427, 3)


def test_however_often_it_was_seen() -> None:
    known, changed = after([*[A] * 400, *[B] * WINDOW])
    assert changed == [401, 400 + WINDOW]
    assert "title" not in to_schema(known.shape.value)["properties"]


@pytest.mark.parametrize(
    "turns", [[A, B], [A, A, A, B], [A, *[B] * 20], [*[A] * 40, *[B] * 9], [B, *[A] * 49]]
)
def test_shapes_that_take_turns_do_not_flap(turns: list[Any]) -> None:
    known, changed = after(turns * (600 // len(turns)))
    assert len(changed) == 1
    assert set(to_schema(known.shape.value)["properties"]) == {*A, *B} and known.fading.window == WINDOW


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


def test_turns_that_end_fade_too() -> None:
    _, changed = after([*[A, B] * 10, *[B] * 2 * WINDOW])
    assert len(changed) == 2 and changed[1] <= 20 + 2 * WINDOW


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
    with closing(Observations(opened_file(path, TABLES))) as store:
        store.merge({KEY: seen(A)})
        store.merge({KEY: seen(B)})
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:  # as it was written before
        [(body,)] = plain.execute("SELECT body FROM observed").fetchall()
        older = {key: part for key, part in json.loads(body).items() if key != "fading"}
        plain.execute("UPDATE observed SET body = ?", [json.dumps(older)])
    with closing(Observations(opened_file(path, TABLES))) as store:
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
