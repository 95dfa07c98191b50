"""The soak's books and figures."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from cellblock.record.rows import Head
from soak.books import GIVEN_TO_THE_ATTACKER, Books
from soak.fleet.shared import COUNTED, breaches, script
from soak.load import Load, Planned, call_numbers, equals
from soak.run_books import RunBooks
from soak.watch import Sample, growth, memory_breaches


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


RUN = 7
REQUEST = 3


def entry(ok: bool = True, error: str | None = None) -> dict[str, Any]:
    return {
        "serverId": "red",
        "toolName": "echo",
        "durationMs": 1,
        "ok": ok,
        **({"error": error} if error else {}),
    }


def answer(
    *trace: dict[str, Any], result: Any = None, code: str | None = None, message: str = "m"
) -> dict[str, Any]:
    found = [{"severity": "error", "code": code, "message": message}] if code else []
    response = {"logs": [], "result": result, "diagnostics": found, "toolTrace": list(trace)}
    return {"id": REQUEST, "result": {"structuredContent": response}}


PLANNED = Planned("calls", {}, calls_most=2, counted=True)


def judged(
    planned: Planned = PLANNED,
    message: dict[str, Any] | None = None,
    ledger: tuple[tuple[int, int], ...] = (),
    answers: int = 1,
) -> set[str]:
    """The invariants that one run breaks."""
    books = Books()
    record = books.sent(RUN, planned, 1.0)
    if answers:
        books.answered(record, planned, answer() if message is None else message)
    books.settle({REQUEST: answers} if answers else {}, {REQUEST: record}, ledger)
    return set(books.broken)


LOST = answer(
    entry(),
    entry(False, "in flight when the run ended: may have run"),
    code="HOST_LOST",
    message="Tool calls: 1 completed, 1 in flight (may have run), 0 not started.",
)
FIRST, BOTH = ((RUN, 0),), ((RUN, 0), (RUN, 1))


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (None, {}),
        (None, {"message": answer(entry(), entry()), "ledger": BOTH}),
        (None, {"message": LOST, "ledger": FIRST}),
        (None, {"message": LOST, "ledger": BOTH}),
        (None, {"planned": Planned("cancelled", {}, frozenset({"*"}), cancel_after=0.1), "answers": 0}),
        (
            None,
            {
                "planned": Planned("bad", {}, malformed=True),
                "message": {"id": REQUEST, "error": {"code": -32602}},
            },
        ),
        ("one response for each run", {"answers": 0}),
        ("one response for each run", {"answers": 2}),
        ("structured response", {"message": {"id": REQUEST, "error": {"code": -32603}}}),
        ("right ending", {"message": answer(code="PROTOCOL_VIOLATION")}),
        ("right ending", {"planned": Planned("bomb", {}, must_fail=True)}),
        ("right ending", {"planned": Planned("bad", {}, malformed=True)}),
        ("right result", {"planned": Planned("sum", {}, result=equals(2)), "message": answer(result=3)}),
        (
            "each call at most once",
            {"message": answer(entry()), "ledger": ((RUN, 0), (RUN, 0))},
        ),
        ("told completed: once", {"message": answer(entry())}),
        ("told completed: once", {"message": answer(entry(False, "x"), result=[[0, "completed"]])}),
        (
            "told not started: never",
            {"message": answer(entry(False, "not called: …")), "ledger": ((RUN, 0),)},
        ),
        (
            "told not started: never",
            {"message": answer(entry(False, "x"), result=[[0, "not_started"]]), "ledger": ((RUN, 0),)},
        ),
        ("every call is in its trace", {"message": answer(entry()), "ledger": ((RUN, 0), (RUN, 1))}),
        (
            "counts of the diagnostic",
            {
                "message": answer(
                    entry(False, "x"),
                    code="HOST_LOST",
                    message="Tool calls: 0 completed, 0 in flight (may have run), 1 not started.",
                ),
                "ledger": ((RUN, 0),),
            },
        ),
        (
            "maxToolCalls",
            {"message": answer(entry(), entry(), entry()), "ledger": ((RUN, 0), (RUN, 1), (RUN, 2))},
        ),
    ],
)
def test_each_breach_is_seen_and_books_that_balance_have_none(
    broken: str | None, case: dict[str, Any]
) -> None:
    assert judged(**case) == ({broken} if broken else set())


def test_an_answer_to_nothing_is_seen() -> None:
    books = Books()
    books.settle({99: 1}, {}, [])
    assert set(books.broken) == {"one response for each run"}


def test_a_seed_fixes_the_load_and_every_kind_comes_once_in_the_warm_up() -> None:
    first, second = Load(5), Load(5)
    assert [first.next() for _ in range(50)] != [Load(6).next() for _ in range(50)]
    kinds = [planned.kind for _, planned in Load(5).one_of_each()]
    assert len(kinds) == len(set(kinds))
    assert [number for number, _ in (second.next() for _ in range(50))] == list(range(1, 51))


def test_the_ledger_gives_calls_with_ids_only() -> None:
    events = [
        {"event": "start", "pid": 1},
        {"event": "call", "id": 1, "tool": "echo", "arguments": {"id": "12/3"}},
        {"event": "answer", "id": 1},
        {"event": "call", "id": 2, "tool": "echo", "arguments": {}},
    ]
    assert call_numbers([json.dumps(event) for event in events]) == [(12, 3)]


def test_a_run_that_the_attacker_got_is_no_honest_ones() -> None:
    books = Books()
    planned = Planned("trivial", {}, must_fail=True, result=equals(1))
    record = books.sent(RUN, planned, 1.0)
    books.answered(record, planned, answer(result=["no program"]))
    assert (record.kind, set(books.broken)) == (GIVEN_TO_THE_ATTACKER, set())
    # Anything else is judged as before.
    assert judged(planned, answer(result=["no"])) == {"right ending", "right result"}


MIB = 1 << 20
RUNS = 10_000


def samples(broker: list[int]) -> list[Sample]:
    """With noise."""
    chance = random.Random(3)
    sizes = [size + chance.randrange(MIB) for size in broker]
    return [Sample(float(at), rss, 30, 5, 40 * MIB, 20, 10, 0) for at, rss in enumerate(sizes)]


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ([100 * MIB] * 600, None),
        ([60 * MIB] * 100 + [100 * MIB] * 250 + [150 * MIB] * 250, None),
        ([100 * MIB + at * MIB // 10 for at in range(600)], "grows steadily"),
        ([100 * MIB] * 599 + [600 * MIB], "holds"),
    ],
    ids=["level", "steps", "leak", "too much"],
)
def test_a_leak_is_told_from_a_high_water_mark(broker: list[int], said: str | None) -> None:
    _, found = memory_breaches(samples(broker), RUNS)
    assert [said in one for one in found] == ([] if said is None else [True]), found


def test_short_series_have_no_growth() -> None:
    assert growth([1, 2, 3]) == growth([]) == (0, 0, 0)


def call(run: int, number: int) -> dict[str, Any]:
    return {"event": "call", "tool": "echo", "arguments": {"id": f"{run}/{number}"}}


GOOD = [{"event": "start", "pid": 1}, call(1, 0), *(call(1, COUNTED + n) for n in range(3))]


@pytest.mark.parametrize(
    ("more", "found"),
    [([], []), ([call(3, COUNTED)], ["4 calls were made of a quota of 3"])],
    ids=["used up", "over it"],
)
def test_more_calls_than_a_quota_has_are_a_breach(more: list[dict[str, Any]], found: list[str]) -> None:
    counts = Counter[str]()
    assert breaches([*GOOD, *more], 3, counts) == found
    assert counts == {"quota_calls": 3 + len(more)}


def test_a_script_makes_as_many_counted_calls_as_it_is_told() -> None:
    text = script(7, times=4)
    assert f"n < {COUNTED} + 4" in text and '"7/" + n' in text
    assert not {"RUN", "TIMES", "COUNTED"} & set(text.split())
