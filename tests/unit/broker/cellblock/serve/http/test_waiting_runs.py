"""What the dashboard says of runs that wait, and which decisions it takes."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import pytest

from cellblock.base.database import StoreError
from cellblock.base.questions import Answer, QuestionId
from cellblock.serve.http.refusal import Refused
from cellblock.serve.http.waiting_runs import NotAnswered, WaitingRuns

SEES = "browser 01"


class Waiting(WaitingRuns):
    """One run, `a1`, whose calls 1 and 2 wait."""

    def __init__(self, *, fails: bool = False, shows: bool = False) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, nothing, shows_inputs=shows)
        self.done: list[Any] = []
        self.fails = fails

    async def waiting(self, *, inputs: bool) -> list[dict[str, Any]]:
        if self.fails:
            raise StoreError("the disk is full")
        return [{"id": "a1", "inputs": inputs}]

    async def answer(
        self,
        run_id: str,
        answer: Answer,
        calls: Sequence[QuestionId] | None,
        by: str,
        form: Any = None,
    ) -> Any:
        if self.fails:
            raise StoreError("the disk is full")
        if run_id != "a1":
            return None
        if calls is not None and not {call.call for call in calls} <= {1, 2}:
            raise Refused(HTTPStatus.CONFLICT)
        if form == {}:
            raise NotAnswered("It does not fit: <name>.")
        self.done.append((answer, calls, by, *([] if form is None else [form])))
        return {"id": run_id}

    async def cancel(self, run_id: str, by: str) -> bool:
        self.done.append(("cancel", by))
        return run_id == "a1"


def decided(runs: Waiting, path: str, body: bytes = b"") -> int:
    """The status of a decision."""
    try:
        assert asyncio.run(runs.decided(path, SEES, body)) == {"id": "a1"}
    except Refused as refused:
        return refused.status_code
    return 200


@pytest.mark.parametrize(
    ("shows", "by", "inputs"), [(False, None, False), (False, SEES, True), (True, None, True)]
)
async def test_inputs_are_for_who_may_decide_or_for_all(shows: bool, by: str | None, inputs: bool) -> None:
    assert await Waiting(shows=shows).listed(by) == {
        "runs": [{"id": "a1", "inputs": inputs}],
        "decides": by is not None,
    }


async def test_a_list_that_cannot_be_read_says_why() -> None:
    assert await Waiting(fails=True).listed(SEES) == {
        "runs": [],
        "decides": True,
        "error": "the disk is full",
    }


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
        ("a1/approve", b'{"calls": [2], "always": true}', ("always", [QuestionId(2)], SEES)),
        ("a1/deny", b'{"always": true}', ("declined", None, SEES)),
    ],
)
def test_what_is_decided(path: str, body: bytes, done: Any) -> None:
    runs = Waiting()
    assert decided(runs, path, body) == 200
    assert runs.done == [done]


def test_an_answer_that_is_not_written_down_is_not_taken() -> None:
    assert decided(Waiting(fails=True), "a1/approve") == 503


def test_a_form_that_does_not_fit_says_why() -> None:
    with pytest.raises(NotAnswered, match="It does not fit: <name>"):
        decided(Waiting(), "a1/approve", b'{"calls": [1], "form": {}}')


NO_CHOICE = [
    b"x",
    b"[]",
    b"null",
    b'"calls"',
    b'{"call": [1]}',
    b'{"calls": []}',
    b'{"calls": null}',
    b'{"always": 1}',
    b'{"calls": 1}',
    b'{"calls": ["one"]}',
    b'{"calls": [true]}',
    b'{"calls": [1.0]}',
    b'{"calls": [-1]}',
    b'{"calls": [1e400]}',
    b'{"calls": [' + b"9" * 5000 + b"]}",
    b"[" * 16_000,
    b"\xff",
]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        *((f"a1/{word}", body, 400) for word in ("approve", "deny", "cancel") for body in NO_CHOICE),
        *(("a1/approve", body, 400) for body in (b'{"form": []}', b'{"form": 1, "calls": [1]}')),
        ("a1/cancel", b'{"form": {"n": 1}}', 400),
        # To cancel single calls would end the others.
        ("a1/cancel", b'{"calls": [1]}', 400),
        # A call that does not wait.
        ("a1/approve", b'{"calls": [1, 3]}', 409),
        *((path, b"", 404) for path in ("a2/approve", "a1/allow", "a1", "/approve", "a1/approve/")),
    ],
)
def test_anything_else_decides_nothing(path: str, body: bytes, status: int) -> None:
    runs = Waiting()
    assert decided(runs, path, body) == status
    assert runs.done == []


def test_a_run_that_is_not_there_is_not_cancelled() -> None:
    assert decided(Waiting(), "a2/cancel") == 404
