"""What the dashboard says of runs that wait, and which decisions it takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.responses import Response

from cellblock.base.database import StoreError
from cellblock.base.questions import Answer, QuestionId
from cellblock.serve.http.parked_pages import ParkedPages
from cellblock.serve.http.waiting_runs import NotAnswered, NotAsked

SEES = "browser 01"


@dataclass
class Waiting:
    """One run, `a1`, whose calls 1 and 2 wait."""

    done: list[Any] = field(default_factory=list[Any])
    fails: bool = False

    async def waiting(self, *, inputs: bool) -> list[dict[str, Any]]:
        if self.fails:
            raise StoreError("the disk is full")
        return [{"id": "a1", "inputs": inputs}]

    async def answer(
        self, run_id: str, answer: Answer, calls: Sequence[QuestionId] | None, by: str, form: Any = None
    ) -> Any:
        if self.fails:
            raise StoreError("the disk is full")
        if run_id != "a1":
            return None
        if calls is not None and not {call.call for call in calls} <= {1, 2}:
            raise NotAsked
        if form == {}:
            raise NotAnswered("It does not fit: <name>.")
        self.done.append((answer, calls, by) if form is None else (answer, calls, by, form))
        return {"id": run_id}

    async def cancel(self, run_id: str, by: str) -> bool:
        self.done.append(("cancel", by))
        return run_id == "a1"


def decided(runs: Waiting, path: str, body: bytes = b"", by: str | None = SEES) -> Response:
    return asyncio.run(ParkedPages(runs).decided(path, by, body))


@pytest.mark.parametrize(
    ("shows", "by", "inputs"), [(False, None, False), (False, SEES, True), (True, None, True)]
)
def test_inputs_are_for_who_may_decide_or_for_all(shows: bool, by: str | None, inputs: bool) -> None:
    page = asyncio.run(ParkedPages(Waiting(), shows).listed(by))
    assert json.loads(page.body) == {"runs": [{"id": "a1", "inputs": inputs}], "decides": by is not None}


def test_a_list_that_cannot_be_read_says_why() -> None:
    page = asyncio.run(ParkedPages(Waiting(fails=True)).listed(SEES))
    assert json.loads(page.body) == {"runs": [], "decides": True, "error": "the disk is full"}


@pytest.mark.parametrize(
    ("path", "body", "done"),
    [
        ("a1/approve", b"", ("accepted", None, SEES)),
        ("a1/approve", b"{}", ("accepted", None, SEES)),
        ("a1/approve", b'{"calls": [2]}', ("accepted", [QuestionId(2)], SEES)),
        ("a1/approve", b'{"calls": ["2.1001"]}', ("accepted", [QuestionId(2, 1001)], SEES)),
        ("a1/deny", b'{"calls": [1, 2]}', ("declined", [QuestionId(1), QuestionId(2)], SEES)),
        ("a1/cancel", b"{}", ("cancel", SEES)),
        ("a1/approve", b'{"calls": [2], "form": {"n": 1}}', ("accepted", [QuestionId(2)], SEES, {"n": 1})),
    ],
)
def test_what_is_decided(path: str, body: bytes, done: Any) -> None:
    runs = Waiting()
    assert decided(runs, path, body).status_code == 200
    assert runs.done == [done]


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"[]",
        b"null",
        b'"calls"',
        b'{"call": [1]}',
        b'{"calls": []}',
        b'{"calls": null}',
        b'{"calls": 1}',
        b'{"calls": ["one"]}',
        b'{"calls": [true]}',
        b'{"calls": [1.0]}',
        b'{"calls": [-1]}',
        b'{"calls": [1e400]}',
        b'{"calls": [' + b"9" * 5000 + b"]}",
        b"[" * 16_000,
        b"\xff",
    ],
)
@pytest.mark.parametrize("word", ["approve", "deny", "cancel"])
def test_a_body_that_says_something_else_does_nothing(word: str, body: bytes) -> None:
    runs = Waiting()
    assert decided(runs, f"a1/{word}", body).status_code == 400
    assert runs.done == []


def test_to_cancel_single_calls_would_end_the_others() -> None:
    runs = Waiting()
    assert decided(runs, "a1/cancel", b'{"calls": [1]}').status_code == 400
    assert runs.done == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("a2/approve", 404),
        ("a2/cancel", 404),
        ("a1/allow", 404),
        ("a1", 404),
        ("/approve", 404),
        ("a1/approve/", 404),
    ],
)
def test_what_is_not_there(path: str, status: int) -> None:
    assert decided(Waiting(), path).status_code == status


def test_a_call_that_does_not_wait_is_not_answered_for() -> None:
    runs = Waiting()
    assert decided(runs, "a1/approve", b'{"calls": [1, 3]}').status_code == 409
    assert runs.done == []


def test_who_only_looks_decides_nothing() -> None:
    runs = Waiting()
    assert decided(runs, "a1/approve", by=None).status_code == 403
    assert decided(runs, "a1/cancel", by=None).status_code == 403
    assert runs.done == []


def test_an_answer_that_is_not_written_down_is_not_taken() -> None:
    assert decided(Waiting(fails=True), "a1/approve").status_code == 503


def test_a_form_that_does_not_fit_says_why_and_one_that_is_none_is_refused() -> None:
    page = decided(Waiting(), "a1/approve", b'{"calls": [1], "form": {}}')
    assert (page.status_code, page.body) == (422, b"It does not fit: <name>.")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    for body in (b'{"form": []}', b'{"form": 1, "calls": [1]}'):
        assert decided(Waiting(), "a1/approve", body).status_code == 400
    assert decided(Waiting(), "a1/cancel", b'{"form": {"n": 1}}').status_code == 400
