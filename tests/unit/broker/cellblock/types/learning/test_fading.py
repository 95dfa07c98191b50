"""Old shapes fade: the type is that of the newer results, what is merely rare stays, and what takes turns settles."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.store import opened_file
from cellblock.types.learning.inference import shape_of
from cellblock.types.learning.observation import (
    MAX_NEWS,
    MAX_PATIENCE,
    PATIENCE,
    STEADY,
    WEEK_SECONDS,
    Forms,
    Observation,
    ToolKey,
)
from cellblock.types.learning.record import decoded, encoded
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import MAX_SHAPES
from cellblock.types.learning.store import TABLES, Observations

A: dict[str, Any] = {"title": "x", "due": None, "rows": [{"n": 1}]}
B: dict[str, Any] = {"name": "x", "id": 1, "rows": []}
KEY = ToolKey("files", "read", "0" * 16)


def seen(value: Any, at: float = 1e9) -> Observation:
    return Observation(value=shape_of([value]), samples=1, first_seen=at, last_seen=at)


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


def test_one_odd_result_fades_after_fifty_others() -> None:
    known, changed = after([A, *[B] * 426])
    assert changed == [2, 1 + PATIENCE]
    assert known.value == shape_of([{**B, "rows": A["rows"]}, B]), (
        "empty arrays say nothing of what was in them"
    )
    assert set(known.fading.ever.changes_to(known.shape)) == {
        "/title: gone", "/due: gone", "/name: always there", "/id: always there"
    }  # fmt: skip
    assert (known.samples, known.version) == (427, 3)


def test_however_often_it_was_seen() -> None:
    known, changed = after([*[A] * 400, *[B] * PATIENCE])
    assert changed == [401, 400 + PATIENCE]
    assert "title" not in to_schema(known.value)["properties"]


@pytest.mark.parametrize(
    "turns", [[A, B], [A, A, A, B], [A, *[B] * 20], [*[A] * 40, *[B] * 40], [B, *[A] * 49]]
)
def test_shapes_that_take_turns_do_not_flap(turns: list[Any]) -> None:
    known, changed = after(turns * (600 // len(turns)))
    assert len(changed) == 1
    assert set(to_schema(known.value)["properties"]) == {*A, *B} and known.fading.ever == Forms()


def test_fields_stay_in_the_order_in_which_they_came() -> None:
    """What is printed of a type does not change with the result that a window happens to begin with."""
    turns = [A, *[B, A] * (STEADY * PATIENCE)]
    known, changed = after(turns)
    assert changed == [2], "a window has ended, and changed nothing"
    assert known.fading.news == 0 and list(to_schema(known.value)["properties"]) == [*A, "name", "id"]


def test_what_comes_back_is_given_twice_the_time() -> None:
    """Turns of sixty: once too early, and never again."""
    known, changed = after([*[A] * 60, *[B] * 60] * 20)
    assert changed == [61, 60 + PATIENCE, 121] and known.fading.patience == 2 * PATIENCE
    for _ in range(10):
        turn = 2 * STEADY * known.fading.patience
        known, _ = after([replace(seen(A), samples=turn), replace(seen(B), samples=turn), B, A], known)
    assert known.fading.patience == MAX_PATIENCE


def test_turns_that_end_fade_too() -> None:
    _, changed = after([*[A, B] * 10, *[B] * 2 * STEADY * PATIENCE])
    assert len(changed) == 2 and changed[1] <= 20 + STEADY * PATIENCE + STEADY * PATIENCE


def test_what_is_rare_and_not_in_the_way_stays() -> None:
    """A field for errors once in a hundred, null, an empty list, a wider number."""
    rare = {"error": "x", "due": "soon", "rows": [1.5], "at": "now"}
    often = {"due": None, "rows": [1], "at": "2026-11-01"}
    known, changed = after([*[often] * 99, rare] * 5)
    assert len(changed) == 1, "it is met before it could fade"
    known, changed = after([rare, *[often] * 3 * PATIENCE])
    schema = to_schema(known.value)
    assert set(schema["properties"]) == set(often), "fifty results had no error"
    assert schema["properties"]["due"] == {"type": ["string", "null"]} | schema["properties"]["due"] | {
        "type": ["string", "null"]
    }
    assert schema["properties"]["rows"]["items"] == {"type": "number"}
    assert schema["properties"]["at"] == {"type": "string"}


def test_kinds_of_results_fade() -> None:
    """One text among JSON texts costs the type no more than fifty results."""
    text = Observation(texts=True, samples=1, first_seen=1e9, last_seen=1e9)
    rows = replace(text, texts=False, document=shape_of([[{"id": 1}]]))
    known, changed = after([rows, text, *[rows] * 3])
    assert known.texts and changed == [2]
    known, changed = after([rows, text, *[rows] * STEADY * PATIENCE * 2])
    assert not known.texts and known.document == rows.document
    assert known.fading.ever.changes_to(known.shape) == ["a text that is no JSON no more"]


def test_a_window_ends_however_much_is_new() -> None:
    news = [{**B, f"k{number}": 1} for number in range(PATIENCE + MAX_NEWS + 1)]
    known, _ = after([A, *news])
    assert "title" not in to_schema(known.value)["properties"]


def test_time_counts_too() -> None:
    """Once a week, sixteen results are enough; within a day it is fifty."""
    weekly = [seen(B, 1e9 + number * WEEK_SECONDS) for number in range(PATIENCE)]
    _, changed = after([seen(A, 1e9), *weekly])
    assert changed[0] == 2 and 10 <= changed[1] <= 16
    _, changed = after([seen(A, 1e9 - 60 * WEEK_SECONDS), *[B] * 5])
    assert changed == [2], "time alone tells nothing"


def test_what_was_stored_before_there_was_fading_is_kept_and_fades(tmp_path: Path) -> None:
    path = tmp_path / "schemas.sqlite3"
    store = Observations(opened_file(path, TABLES))
    store.merge({KEY: seen(A)})
    store.merge({KEY: seen(B)})
    store.close()
    with sqlite3.connect(path) as plain:  # as it was written before
        [(body,)] = plain.execute("SELECT body FROM observed").fetchall()
        older = {key: part for key, part in json.loads(body).items() if key != "fading"}
        plain.execute("UPDATE observed SET body = ?", [json.dumps(older)])
    plain.close()
    store = Observations(opened_file(path, TABLES))
    assert set(to_schema(store.load()[KEY].value)["properties"]) == {*A, *B}
    for _ in range(STEADY * PATIENCE):
        store.merge({KEY: seen(B)})
    known = store.load()[KEY]
    assert "title" not in to_schema(known.value)["properties"] and known.samples == 2 + STEADY * PATIENCE
    assert [version for version, _, _ in store.versions(KEY.server, KEY.tool)] == [1, 2]
    assert known.fading.ever.changes_to(known.shape), "what it was is a note, and a version"
    store.close()


def test_what_is_stored_stays_small_and_comes_back_the_same() -> None:
    for known in (after([A, *[B] * count])[0] for count in (1, 10, PATIENCE, 426)):
        assert decoded(encoded(known)).fading == known.fading
    steady = after([A] * 10)[0]
    assert len(encoded(steady)) < len(encoded(replace(steady, fading=seen(A).fading))) + 100
    inside = {f"n{number}": 1 for number in range(12)}
    wide = [{f"k{start + number}": inside for number in range(60)} for start in (0, 60)]
    whole = after([wide[0], replace(seen(wide[1]), samples=PATIENCE)])[0]
    assert whole.fading.faded and whole.value == shape_of([wide[1]]), "both together were cut"
    assert len(encoded(whole)) < 3 * 40 * MAX_SHAPES
    assert (
        decoded(json.dumps({"fading": {"recent": 1, "weight": "x", "news": 99, "patience": -5}})).fading.news
        == MAX_NEWS
    )
    with pytest.raises(ValueError, match="no object"):
        decoded('{"fading": 7}')
