"""The learner: looks at results off their way, keeps what it saw, stops when nothing is new, survives its store."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.database import SqliteDatabase
from cellblock.base.settings.settings import SchemaSettings
from cellblock.tools.catalog.model import Given, ResultKind, ToolEntry
from cellblock.types.learning.learner import Learner, Turns
from cellblock.types.learning.observation import Forms, Observation
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.sample import (
    LEARNT_BYTES,
    MAX_DOCUMENT_DEPTH,
    TooDeep,
    observe,
    parse_document,
)
from cellblock.types.learning.shape import shape_of
from cellblock.types.learning.store import TABLES, Observations
from support.waits import until

from .conftest import BOUND, learning

TOOL = ToolEntry("read", "read", input_schema={"type": "object"})
DECLARED = ToolEntry(
    "read", "read", output_schema={"type": "object", "properties": {"id": {"type": "string"}}}
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.types.learning.learner.LINGER_SECONDS", 0.01)
    monkeypatch.setattr("cellblock.types.learning.learner.WRITE_EVERY_SECONDS", 0.01)


@pytest.fixture
async def made() -> AsyncIterator[Learner]:
    """One that keeps what it learns to itself."""
    async with learning(None) as learner:
        yield learner


def stored(state_dir: Path) -> closing[Observations]:
    """What the learner has stored."""
    return closing(Observations(SqliteDatabase(state_dir / TABLES.file, TABLES)))


def paced(monkeypatch: pytest.MonkeyPatch, stable_after: int, sample_every: int) -> None:
    """Has a tool count as stable after other numbers of results."""
    monkeypatch.setattr("cellblock.types.learning.learner.STABLE_AFTER", stable_after)
    monkeypatch.setattr("cellblock.types.learning.learner.SAMPLE_EVERY", sample_every)


def known(made: Learner, tool: ToolEntry = TOOL) -> Observation:
    found = made.known("files", tool)
    assert found is not None
    return found


async def seen(made: Learner, value: Any, kind: ResultKind = "value", tool: ToolEntry = TOOL) -> Observation:
    made.offer("files", tool, kind, json.dumps(value).encode())
    await made.wait_for_writes(BOUND)
    return known(made, tool)


async def test_texts_and_json_in_texts_are_learnt_apart(made: Learner) -> None:
    row = shape_of([{"id": 1}])
    assert (await seen(made, '{"id": 1}', "text")).shape == Forms(document=row)
    assert (await seen(made, "3", "text")).shape == Forms(document=row, texts=True)
    assert (await seen(made, {"id": 2}, "json")).samples == 3
    assert (await seen(made, {"content": []}, "result")).shape == Forms(
        document=row, texts=True, results=True
    )


async def test_a_stable_tool_is_looked_at_now_and_then_until_it_changes(
    made: Learner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced(monkeypatch, 2, 4)
    for _ in range(11):
        await seen(made, {"id": 1})
    assert known(made).samples == 1 + 2 + 2
    with caplog.at_level(logging.INFO, logger="cellblock.schemas"):
        for _ in range(4):
            await seen(made, {"id": "x"})
    changed = await seen(made, {"id": "x"})
    assert (changed.version, changed.samples) == (2, 8), "after a change every result is looked at again"
    assert "/id: was integer, is string or integer" in caplog.text


async def offered(made: Learner, values: Iterable[Any]) -> Observation:
    for number, value in enumerate(values):
        made.offer("files", TOOL, "value", json.dumps(value).encode())
        if number % 20 == 19:
            await made.wait_until_learnt(BOUND)
    await made.wait_for_writes(BOUND)
    return known(made)


async def test_old_shapes_fade_and_the_type_outlives_the_process(tmp_path: Path) -> None:
    older, newer = {"title": "x"}, {"name": "x", "id": 1}
    async with learning(tmp_path) as made:
        await offered(made, [older, *[newer] * 48])
        before = made.revision
        found = await offered(made, [newer] * 700)
        assert made.revision > before, "who has asked for the type asks again"
        assert found.shape.value == shape_of([newer]) and found.version == 3
    async with learning(tmp_path) as made:
        assert made.known("files", TOOL) == found
    with stored(tmp_path) as store:
        assert [version for version, _, _ in store.versions("files", "read")] == [1, 2]


@pytest.mark.parametrize("turns", [[{"title": 1}, {"name": 1}], [*[{"title": 1}] * 7, {"name": 1}]])
async def test_shapes_that_take_turns_do_not_fade_while_few_are_looked_at(
    made: Learner, turns: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paced(monkeypatch, 4, 4)
    found = await offered(made, turns * (3_200 // len(turns)))
    assert (found.version, found.shape.value) == (2, shape_of(turns))
    assert found.samples < 3_200


async def test_results_that_were_not_looked_at_make_nothing_stable(
    made: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced(monkeypatch, 2, 100)
    await seen(made, {"id": 1})
    for _ in range(5):
        made.offer("files", TOOL, "value", b" " * LEARNT_BYTES + b"1")
        await made.wait_for_writes(BOUND)
    found = await seen(made, {"id": "x"})
    assert (found.samples, found.skipped, found.version) == (2, 5, 2)


async def test_settings_turn_it_off_by_server() -> None:
    async with learning(None, learn={"*": False, "files": True}) as made:
        made.offer("mail", TOOL, "value", b"1")
        assert (await seen(made, 1)).samples == 1
        assert made.known("mail", TOOL) is None


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.iterdir()]


async def test_no_value_is_kept_unless_asked_for(tmp_path: Path) -> None:
    secret = {"type": "invoice", "name": "a secret", "n": 4711_4711_4711}
    async with learning(tmp_path) as made:
        assert (await seen(made, secret)).sample is None
    words = [str(value).encode() for value in secret.values()]
    assert not any(word in content for content in contents(tmp_path) for word in words)
    async with learning(None, learn={"files": "samples"}) as made:
        assert json.loads((await seen(made, {"name": "a secret"})).sample or "") == {"name": "a secret"}
        assert (await seen(made, "x" * 10_000, "text")).sample == '{"name": "a secret"}'


async def test_a_result_that_does_not_fit_what_is_declared_is_reported_and_logged_once(
    made: Learner, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await seen(made, {"id": "x"}, tool=DECLARED)).disagreements == 0
    found = await seen(made, {"id": 4711}, tool=DECLARED)
    assert (found.disagreements, found.samples) == (1, 2)
    assert "/id" in found.disagreement and "4711" not in found.disagreement
    assert "no structured content" in (await seen(made, "text", "text", DECLARED)).disagreement
    (told,) = [record.getMessage() for record in caplog.records]
    assert "files.'read'" in told and "at /id: declared string" in told


async def test_what_is_given_is_held_against_results_and_counted_anew_when_it_changes(tmp_path: Path) -> None:
    one, other, text = (
        replace(TOOL, given=Given(output_schema={"type": kind}, json_text=json_text))
        for kind, json_text in (("object", False), ("array", False), ("array", True))
    )
    async with learning(tmp_path) as made:
        assert (await seen(made, {"id": 4711}, tool=one)).given.misfits == 0
        found = await seen(made, '{"id": 4711}', "text", one)
        assert (found.given.checked, found.given.misfits) == (2, 1)
        assert found.given.newest == "at the root: given object" and found.disagreements == 0
    async with learning(tmp_path) as made:
        assert made.known("files", one) == found
        found = await seen(made, [1], tool=other)
        assert (found.given.checked, found.given.misfits, found.samples) == (1, 0, 3)
        assert (await seen(made, "[1]", "text", text)).given.misfits == 0
        for kind, value in (("text", "prose"), ("value", [1]), ("text", "{}"), ("result", {"content": []})):
            found = await seen(made, value, kind, text)
        assert (found.given.checked, found.given.misfits) == (5, 4)
        assert (await seen(made, [1], tool=TOOL)).given == found.given, "where nothing is given it stays"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.parent.rmdir()])
async def test_without_a_store_it_learns_for_this_process(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / TABLES.file
    path.parent.mkdir()
    make(path)
    async with learning(path.parent) as made:
        await seen(made, {"id": 1})
        assert (await seen(made, {"id": 2})).samples == 2
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "not remembered" in warnings[0].message


async def test_what_comes_too_fast_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.types.learning.learner.MAX_WAITING_BYTES", 100)
    made = Learner(SchemaSettings(), None)  # its thread does not run yet
    for _ in range(10):
        made.offer("files", TOOL, "value", b" " * 39 + b"1")
    made.start()
    await made.wait_for_writes(BOUND)
    await made.close()
    assert known(made).samples == 2


def test_guards_before_parsing() -> None:
    assert observe("value", b"not json", 1.0).skipped == 1
    deep, deeper = ("[" * depth + "]" * depth for depth in (MAX_DOCUMENT_DEPTH, MAX_DOCUMENT_DEPTH + 1))
    assert parse_document(deep) is not None
    with pytest.raises(TooDeep):
        parse_document(deeper)
    for kind, body in (("text", json.dumps(deeper)), ("json", deeper)):
        found = observe(kind, body.encode(), 1.0)
        assert (found.samples, found.skipped, found.shape.texts) == (0, 1, False), (
            "it says nothing of the type"
        )
    assert observe("text", json.dumps(deep).encode(), 1.0, keep_sample=True).sample == deep
    assert parse_document(json.dumps(["[{" * 500, '"\\' * 99])) == ["[{" * 500, '"\\' * 99]


@pytest.mark.parametrize(
    "text", ["", "1", "null", '"a"', "true", "{", "{'a': 1}", "[1,]", "NaN", "[NaN]", "- a\n- b"]
)
def test_texts_that_are_no_document(text: str) -> None:
    assert parse_document(text) is None


async def test_the_revision_counts_other_shapes_and_no_counts(made: Learner) -> None:
    revisions: list[int] = []
    for one in (1, 2, 3, "x"):
        await seen(made, {"id": one})
        revisions.append(made.revision)
    # Of one result alone less is certain.
    assert revisions[0] < revisions[1] == revisions[2] < revisions[3]


async def test_what_another_process_learns_or_forgets_reaches_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cellblock.types.learning.learner.REFRESH_SECONDS", 0.02)
    async with learning(tmp_path) as one, learning(tmp_path) as other:
        await seen(one, {"id": 1})
        await until(lambda: other.known("files", TOOL) is not None, "the other broker has heard of it")
        before = other.revision
        with stored(tmp_path) as store:
            assert store.clear() == 1
        await until(lambda: one.known("files", TOOL) is None, "the first one forgets")
        await until(lambda: other.known("files", TOOL) is None, "and so does the other")
        assert other.revision > before
        assert (await seen(one, {"id": "anew"})).samples == 1


ROWS = [{"id": number, "name": f"row {number}"} for number in range(200)]


async def test_results_that_add_nothing_are_counted_and_what_is_new_is_still_seen(tmp_path: Path) -> None:
    changed = [*ROWS, {"id": 1, "name": None}]
    async with learning(tmp_path) as made:
        first = await seen(made, ROWS)
        for _ in range(2):
            made.offer("files", TOOL, "value", json.dumps(ROWS).encode())
            made.offer("files", TOOL, "text", json.dumps(json.dumps(ROWS)).encode())
        await made.wait_for_writes(BOUND)
        same = known(made)
        assert same.shape == Forms(value=first.shape.value, document=first.shape.value)
        assert (same.samples, same.version) == (5, 2), "JSON in a text is another shape, once"
        await seen(made, changed)
    async with learning(tmp_path) as made:
        found = known(made)
    assert (found.samples, found.version) == (6, 3)
    assert to_schema(found.shape.value)["items"]["properties"]["name"] == {"type": ["string", "null"]}


async def test_looking_makes_way_for_runs_unless_someone_asks(
    made: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.types.learning.learner.BUSY_SHARE", 1e-9)
    monkeypatch.setattr("cellblock.types.learning.learner.MAX_PAUSE_SECONDS", 3600.0)
    busy = True
    made.make_way_for(lambda: busy)
    for _ in range(3):
        made.offer("files", TOOL, "value", b'{"id": 1}')
    await until(lambda: made.known("files", TOOL), "the first one has its share of the time")
    assert known(made).samples == 1
    await made.wait_until_learnt(BOUND)
    assert known(made).samples == 3, "who asks gets the rest"
    for _ in range(2):
        made.offer("files", TOOL, "value", b'{"id": 1}')
    await asyncio.to_thread(made._closing.wait, 0.5)  # pyright: ignore[reportPrivateUsage]
    assert known(made).samples == 3, "the share is used up"
    busy = False
    await until(lambda: known(made).samples == 5, "between runs there is time")


async def test_changes_that_are_written_together_are_versions_of_their_own(tmp_path: Path) -> None:
    async with learning(tmp_path) as made:
        await offered(made, ({"id": 1}, {"id": 2}, {"id": "x"}, {"id": 3}, {"id": 3, "due": None}))
    with stored(tmp_path) as store:
        (found,) = store.load().values()
        older = store.versions("files", "read")
    assert (found.samples, found.version) == (5, 3)
    assert [(version, seen.shape.changes_to(found.shape)) for version, _, seen in older] == [
        (1, ["/id: was integer, is string or integer", "/due: new"]),
        (2, ["/due: new"]),
    ]


# ---- whose turn it is: looks wait for runs, within their share, and not when someone asks -------------


def test_a_wait_ends_with_the_run_and_with_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.types.learning.learner.TURN_SECONDS", 0.01)
    turns, answers = Turns(), [False, *[True] * 4]
    turns.busy = answers.pop
    turns.took(100.0)
    turns.wait()
    assert answers == []
    monkeypatch.setattr("cellblock.types.learning.learner.MAX_PAUSE_SECONDS", 0.01)
    turns.busy = lambda: True
    turns.took(100.0)
    turns.wait()
