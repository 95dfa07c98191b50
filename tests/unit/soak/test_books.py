"""The books of the soak: each invariant is seen to break, so that a soak which says "held" has looked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from soak.books import GIVEN_TO_THE_ATTACKER, INVARIANTS, Books, Record
from soak.load import Load, Planned, call_numbers, equals

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
        books.answered(record, planned, 2.0, answer() if message is None else message)
    books.settle({REQUEST: answers} if answers else {}, {REQUEST: record}, ledger)
    return set(books.broken)


def test_books_that_balance() -> None:
    assert judged() == set()
    assert judged(message=answer(entry(), entry()), ledger=((RUN, 0), (RUN, 1))) == set()
    told = "Tool calls: 1 completed, 1 in flight (may have run), 0 not started."
    lost = answer(
        entry(), entry(False, "in flight when the run ended: may have run"), code="HOST_LOST", message=told
    )
    for ledger in [((RUN, 0),), ((RUN, 0), (RUN, 1))]:
        assert judged(message=lost, ledger=ledger) == set()
    assert judged(Planned("cancelled", {}, frozenset({"*"}), cancel_after=0.1), answers=0) == set()
    assert judged(Planned("bad", {}, malformed=True), {"id": REQUEST, "error": {"code": -32602}}) == set()


@pytest.mark.parametrize(
    ("broken", "case"),
    [
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
            {"message": answer(entry(False, "never sent: …")), "ledger": ((RUN, 0),)},
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
def test_each_breach_is_seen(broken: str, case: dict[str, Any]) -> None:
    assert broken in INVARIANTS
    assert judged(**case) == {broken}


def test_an_answer_to_nothing_is_seen() -> None:
    books = Books()
    books.settle({99: 1}, {}, [])
    assert set(books.broken) == {"one response for each run"}


def test_a_seed_fixes_the_load_and_every_kind_comes_once_in_the_warm_up() -> None:
    first, second = Load(5), Load(5)
    assert [first.next() for _ in range(50)] != [Load(6).next() for _ in range(50)]
    kinds = [planned.kind for _, planned in Load(5).one_of_each()]
    assert len(kinds) == len(set(kinds))
    numbers = [number for number, _ in (second.next() for _ in range(50))]
    assert numbers == list(range(1, 51))


def test_the_ledger_gives_calls_with_ids_only() -> None:
    events = [
        {"event": "start", "pid": 1},
        {"event": "call", "id": 1, "tool": "echo", "arguments": {"id": "12/3"}},
        {"event": "answer", "id": 1},
        {"event": "call", "id": 2, "tool": "echo", "arguments": {}},
    ]
    assert call_numbers([json.dumps(event) for event in events]) == [(12, 3)]


def test_latency_is_only_of_answered_runs() -> None:
    assert Record(1, "trivial", 1.0, cancelled=False).latency is None
    assert Record(1, "trivial", 1.0, cancelled=False, answered=3.0).latency == 2.0


def test_a_run_that_the_attacker_got_is_no_honest_ones() -> None:
    books = Books()
    planned = Planned("trivial", {}, must_fail=True, result=equals(1))
    record = books.sent(RUN, planned, 1.0)
    books.answered(record, planned, 2.0, answer(result=["no program"]))
    assert (record.kind, set(books.broken)) == (GIVEN_TO_THE_ATTACKER, set())
    # Anything else is judged as before.
    assert judged(planned, answer(result=["no"])) == {"right ending", "right result"}
