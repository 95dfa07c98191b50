"""The books of runs find what they look for: a measurement that says "nothing was lost" has looked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cellblock.record.rows import Head
from soak.run_books import RunBooks


@pytest.fixture
def books() -> RunBooks:
    return RunBooks()


def ended(told: dict[str, str] | None = None, *codes: str) -> dict[str, Any]:
    return {
        "result": None if told is None else {"run": 7, "told": told},
        "diagnostics": [{"severity": "error", "code": code} for code in codes],
        "usage": {"runId": "r"},
    }


RIGHT = ended({"0": "made", "1": "may_have_run", "2": "may_have_run", "3": "not_started"})
LEDGER = Counter({"7/0": 1, "7/1": 1})


@pytest.mark.parametrize(
    ("response", "made", "said"),
    [
        (RIGHT, LEDGER, None),
        (ended(None, "HOST_LOST"), LEDGER, None),
        (RIGHT, LEDGER + Counter({"7/0": 1}), "told made of call 7/0, which was made 2 times"),
        (RIGHT, Counter({"7/1": 1}), "told made of call 7/0, which was made 0 times"),
        (RIGHT, LEDGER + Counter({"7/2": 2}), "told may_have_run of call 7/2, which was made 2 times"),
        (RIGHT, LEDGER + Counter({"7/3": 1}), "told not_started of call 7/3, which was made 1 times"),
        (ended({"0": "completed", "1": "made"}), LEDGER, "told completed of call 7/0"),
        (RIGHT, LEDGER + Counter({"7/4": 1}), "call 7/4 was made, and its script knows nothing of it"),
        (ended(None, "REPLAY_DIVERGED"), LEDGER, "it has ended so"),
        (ended(None), LEDGER, "it has ended so"),
    ],
)
def test_what_scripts_were_told_is_held_against_the_ledger(
    books: RunBooks, response: dict[str, Any], made: Counter[str], said: str | None
) -> None:
    books.judge(response, made)
    assert [line.startswith(said or "") for line in books.wrong] == ([] if said is None else [True])


def test_a_second_answer_and_an_unknown_error_are_told(books: RunBooks) -> None:
    answer = {"result": {"structuredContent": RIGHT}}
    books.take(answer)
    refused = (
        "There is no run that waits for this answer: it came too late, or came twice. Run the script again."
    )
    books.take({"error": {"message": refused}})
    assert books.wrong == []
    books.take(answer)
    books.take({"error": {"message": "Internal error"}})
    assert [line.split(":")[0] for line in books.wrong] == ["two answers for run r", "an answer"]


def head(run_id: str, outcome: str) -> Head:
    return Head(run_id, "token", 1.0, ended=2.0, outcome=outcome, state="ended")


@pytest.mark.parametrize(
    ("had_gone", "code", "wrong"),
    [(False, "CANCELLED", 1), (True, "CANCELLED", 0), (True, "TIMEOUT", 1), (False, "HOST_LOST", 0)],
)
def test_only_who_had_gone_may_be_told_that_the_run_was_cancelled(
    had_gone: bool, code: str, wrong: int
) -> None:
    books, response = RunBooks(unheard={"CANCELLED"}), ended(None, code)
    books.answered(response, had_gone=had_gone)
    books.settle([], [head("r", code)], lambda _: response)
    assert len(books.wrong) == wrong, books.wrong


def test_calls_that_were_made_twice_and_runs_that_are_lost_are_told() -> None:
    books = RunBooks(unheard={"CANCELLED"})
    books.written.add("lost")
    call = {"event": "call", "arguments": {"id": "1/0"}}
    books.settle([call, call], [head("gone", "CANCELLED"), head("odd", "ok")], lambda _: None)
    assert [line.partition(" Head")[0] for line in books.wrong] == [
        "call 1/0 was made 2 times",
        "run lost waited, and is lost",
        "run",
    ]


@pytest.mark.parametrize(
    ("word", "said", "came", "is_right"),
    [
        ("made", "accept N1", ["accept N1"], True),
        ("made", "accept N1", ["accept N2"], False),
        ("made", "accept N1", ["accept N1", "accept N1"], False),
        ("made", "accept N1", [], False),
        ("may_have_run", None, [], True),
        ("may_have_run", None, ["accept N1"], True),
        ("may_have_run", None, ["accept N1", "accept N2"], False),
    ],
)
def test_what_came_to_a_server_is_held_against_what_its_script_was_told(
    books: RunBooks, word: str, said: str | None, came: list[str], is_right: bool
) -> None:
    response = ended({"4": word})
    response["result"]["said"] = said
    books.came["7/4"] = came
    books.judge(response, Counter({"7/4": 1}))
    assert [line.startswith("to the server of call 7/4 came") for line in books.wrong] == (
        [] if is_right else [True]
    )


def test_an_answer_that_came_twice_or_to_another_call_is_told(books: RunBooks) -> None:
    books.given["accept N1"], books.given["accept N2"] = "7/4", "8/4"
    books.came.update({"7/4": ["accept N1", "refused -32601: no"], "8/4": ["accept N2"]})
    books.judge_answers()
    assert books.wrong == []
    books.came.update({"9/4": ["accept N2"]})
    books.judge_answers()
    assert [line.split(",")[0] for line in books.wrong] == [
        "accept N2 came to the server 2 times",
        "to the server of call 9/4 came accept N2",
    ]
