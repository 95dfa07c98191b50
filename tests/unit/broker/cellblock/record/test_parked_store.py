"""Parked runs in the file: one gets each, an answer stays, a round is good once, and retention leaves them alone."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.questions import Given, ParkedQuestion, QuestionId, pack_round
from cellblock.base.settings.sections import MIB
from cellblock.record.rows import (
    WAITING,
    Foreign,
    Head,
    OneRunFailed,
    Owner,
    Piece,
    TakenAway,
    TooLarge,
    WrongPiece,
    asked_piece,
    parked_questions,
    sent_piece,
    waiting_in,
)
from cellblock.record.store import MAX_ADOPTED, JournalStore
from cellblock.run.hook import Parked
from cellblock.tools.schemas.replies import WrongAnswer
from support.at_once import at_once
from support.shared_rows import KEY

NOW = 1_000_000_000.0
Open = Callable[..., JournalStore]


def of(call: int) -> QuestionId:
    return QuestionId(call)


def question(call: int) -> ParkedQuestion:
    return ParkedQuestion(call=call, server="s", tool="t", destructive=True, input="{}", bytes=2)


def head(run: str = "r", turn: int = 1, **fields: Any) -> Head:
    more: dict[str, Any] = {"principal": "token:ann", "began": NOW, "expires": NOW + 100, **fields}
    return Head(run, state="parked", turn=turn, **more)


def park(
    store: JournalStore, *calls: int, of: Head | None = None, size: int = 10, owner: str | None = None
) -> None:
    parked = Parked(questions=tuple(map(question, calls)), asked=len(calls), waited_ms=7, client="c")
    pieces = [Piece("recording", bytes(size)), Piece("parked", parked.pack())]
    store.park(replace(of or head(), owner=owner), pieces)


def test_of_many_who_take_a_run_one_gets_it(store: JournalStore, open_store: Open) -> None:
    park(store, 1)

    def taker(name: str) -> str | None:
        with contextlib.closing(open_store()) as mine:
            return name if mine.take("r", name) is not None else None

    got = [name for name in at_once(taker, [f"broker-{number}" for number in range(10)]) if name]
    assert len(got) == 1 and store.owned() == [("r", got[0])]
    found = store.head("r")
    assert found is not None and (found.state, found.resumed) == ("running", 1)


def test_answers_that_come_at_once_all_stay(store: JournalStore, open_store: Open) -> None:
    calls = range(1, 9)
    park(store, *calls)

    def answerer(call: int) -> None:
        with contextlib.closing(open_store()) as mine:
            mine.answer("r", {of(call): "accepted"})

    at_once(answerer, calls)
    read = store.take("r", "b")
    assert read is not None and waiting_in(read[1])[1] == dict.fromkeys(map(of, calls), "accepted")


def test_an_answer_stays_and_those_to_what_is_not_asked_are_nothing(store: JournalStore) -> None:
    park(store, 1, 2)
    found = store.answer("r", {of(1): "accepted", of(9): "accepted"}, "token:ann")
    assert found is not None and found[2] == {of(1): "accepted"} and not found[0].is_answered
    assert store.answer("r", {of(1): "declined", of(2): "declined"}, "token:bob") is None
    found = store.answer("r", "declined")
    assert found is not None and found[2] == {of(1): "accepted", of(2): "declined"} and found[0].is_answered
    assert store.due(NOW) == (["r"], [])
    read = store.take("r", "broker-1")
    assert read is not None and waiting_in(read[1])[1] == {of(1): "accepted", of(2): "declined"}
    assert parked_questions(*read) == ()
    assert store.answer("r", "accepted") is None and store.due(NOW + 1e6) == ([], [])
    with pytest.raises(WrongPiece):
        waiting_in([Piece("recording", b"")])


def test_a_round_is_good_once_and_for_its_principal(store: JournalStore) -> None:
    park(store, 1, of=head(turn=3))
    yes: dict[QuestionId, Given] = {of(1): "accepted"}
    for whose, turn in (("token:bob", 3), ("token:ann", 2), ("token:ann", 4)):
        assert store.answer("r", yes, whose, turn=turn) is None
    found = store.answer("r", yes, "token:ann", turn=3)
    assert found is not None and found[0].turn == 4 and found[0].is_answered
    assert store.answer("r", yes, "token:ann", turn=3) is None, "the word of the last round"
    taken = store.take("r", "b")
    assert taken is not None and taken[0].turn == 4
    park(store, 2, of=head(turn=5))
    # Others have answered: the client fetches what came of it once.
    assert store.answer("r", "accepted") is not None
    taken = store.take("r", "b")
    assert taken is not None
    assert store.end_round("r", 5, "token:ann") and not store.end_round("r", 5, "token:ann")
    # Whoever goes on with it writes its steps and its end, and knows nothing of that.
    for more in ({}, {"ended": NOW, "outcome": "ok"}):
        store.write(replace(taken[0], **more), [Piece("facts", b"")], "b")
        assert not store.end_round("r", 5, "token:ann"), more
    assert not store.end_round("r", 6, "token:bob")


def test_a_client_that_is_back_answers_the_run_and_has_dismissed_the_rest(store: JournalStore) -> None:
    park(store, 1, 2)
    assert store.answer("r", {of(7): "accepted"}, turn=1) is None, "it waits for something else"
    found = store.answer("r", {of(1): "accepted", of(7): "accepted"}, turn=1)
    assert found is not None and found[2] == {of(1): "accepted", of(2): "cancelled"}
    taken = store.take("r", "b")
    # They are written: whoever goes on after a death need not ask again.
    again = store.adopt("r", "b", "c")
    assert taken is not None and again is not None and waiting_in(again[1])[1] == found[2]
    park(store, 3, of=head(turn=3))
    found = store.answer("r", {}, turn=3)
    assert found is not None and found[2] == {of(3): "cancelled"}, "who says nothing has dismissed it"


def test_what_goes_on_is_taken_from_a_dead_broker_once(store: JournalStore) -> None:
    store.write(Head("r", "cli", NOW, state="running"), [Piece("recording", b"x")], "broker-dead")
    assert store.adopt("r", "broker-other", "b") is None
    assert store.adopt("r", "broker-dead", "b") is not None and store.adopt("r", "broker-dead", "c") is None
    assert store.owned() == [("r", "b")]
    # A run that kills its brokers does so a few times only.
    owner = "b"
    for number in range(MAX_ADOPTED - 1):
        assert store.adopt("r", owner, f"b{number}") is not None
        owner = f"b{number}"
    assert store.adopt("r", owner, "last") is None
    found = store.head("r")
    assert found is not None and (found.state, found.outcome) == ("ended", "CANNOT_GO_ON")
    store.write(Head("s", "cli", NOW, state="running"), [Piece("recording", b"x")], "b")
    assert not store.give_up("s", "c", "CANNOT_GO_ON"), "another broker has it"
    assert store.give_up("s", "b", "CANNOT_GO_ON")
    found = store.head("s")
    assert found is not None and (found.state, found.outcome) == ("ended", "CANNOT_GO_ON")


def test_who_was_taken_for_dead_writes_nothing_more_of_what_others_have(store: JournalStore) -> None:
    under_way, call = Head("r", "token:ann", NOW, state="running"), [Piece("call", b"sent")]
    store.write(under_way, [Piece("recording", b"x")], "slow")
    taken = store.adopt("r", "slow", "b")
    assert taken is not None
    late = [
        lambda: store.write(under_way, call, "slow"),
        lambda: store.write(replace(under_way, ended=NOW, outcome="ok"), call, "slow"),
        lambda: store.park(head(), call, "slow"),
        lambda: store.park(head(owner="slow"), call, "slow"),
    ]
    for write in late:
        with pytest.raises(TakenAway):
            write()
    assert store.read("r") == taken, "nothing of it has changed"
    store.park(head(), call, "b")
    # It may be anybody's from now on.
    with pytest.raises(TakenAway):
        store.write(under_way, call, "b")
    assert store.take("r", "c") is not None


def test_nobody_waits_for_ever_and_retention_leaves_those_who_wait(open_store: Open) -> None:
    store = open_store(expire_ms=1_000, total_bytes=MIB)
    park(store, 1, size=250_000)
    park(store, 1, of=head("s", expires=NOW + 1e9), size=250_000)
    for number in range(8):
        store.write(Head(f"x{number}", "cli", NOW, NOW + 1, "ok"), [Piece("facts", bytes(100_000))])
    while store.tidy(NOW + 1e6):
        pass
    assert {one.id for one in store.heads()} == {"r", "s"} == {one.id for one in store.heads(state="parked")}
    with pytest.raises(TooLarge, match=r"the parked runs of token:ann would take .* of journal\.total_bytes"):
        park(store, 1, of=head("t"), size=50_000)
    park(store, 1, of=head("u", principal="token:bob"), size=200_000)
    assert store.end("u", "CANCELLED")
    assert store.due(NOW + 101) == ([], ["r"])
    assert not store.end("r", "PARKED_EXPIRED", expired=NOW + 99)
    assert store.end("r", "PARKED_EXPIRED", expired=NOW + 101)
    assert store.end("s", "CANCELLED", "token:ann") and not store.end("s", "CANCELLED")
    assert store.take("s", "b") is None


def test_a_principal_fills_no_list_and_not_the_store(
    monkeypatch: pytest.MonkeyPatch, open_store: Open
) -> None:
    monkeypatch.setattr("cellblock.record.store.MAX_PARKED", 12)
    store = open_store(total_bytes=8 * MIB)
    park(store, 1, of=head("first", principal="token:bob", began=NOW - 1))
    for number in range(12):
        park(store, 1, of=head(f"r{number}", began=NOW + number))
    assert {one.principal for one in store.heads(limit=2, state="parked")} == {"token:ann", "token:bob"}
    listed = store.heads(limit=10)
    assert [one.id for one in listed] == [*(f"r{11 - number}" for number in range(9)), "first"]
    with pytest.raises(TooLarge, match="the parked runs of token:ann are 12 already"):
        park(store, 1, of=head("more"))
    # What has ended of one that has more goes first, however old another's is.
    store.write(Head("old", "token:bob", NOW - 9, NOW - 9, "ok"), [Piece("facts", bytes(MIB))])
    for number in range(8):
        store.write(
            Head(f"x{number}", "token:ann", NOW + number, NOW + number, "ok"), [Piece("facts", bytes(MIB))]
        )
    while store.tidy(NOW):
        pass
    assert store.head("old") is not None and store.head("x7") is not None and store.head("x0") is None


def test_retention_leaves_a_run_that_goes_on(open_store: Open) -> None:
    """However long ago it began, and however much is kept: it has waited for days, and somebody goes on with it."""
    store = open_store(expire_ms=1_000, total_bytes=MIB)
    park(store, 1, size=400_000)
    store.answer("r", "accepted")
    assert store.take("r", "b") is not None
    for number in range(5):
        store.write(Head(f"x{number}", "cli", NOW + 1e6, NOW + 1e6, "ok"), [Piece("facts", bytes(150_000))])
    while store.tidy(NOW + 1e6):
        pass
    assert store.owned() == [("r", "b")] and len(store.heads()) == 5, "the oldest of those that are over went"
    while store.tidy(NOW + 2e6):
        pass
    assert [one.id for one in store.heads()] == ["r"]
    assert store.adopt("r", "b", "c") is not None, "nor when its broker has died"


def test_a_call_of_a_run_that_is_gone_is_not_written_in_silence(store: JournalStore) -> None:
    """Whoever is to make the call would make one of which no later owner knows."""
    under_way = Head("r", "token:ann", NOW, state="running")
    store.write(under_way, [Piece("recording", b"x")], "b")
    assert store.delete("r")
    with pytest.raises(OneRunFailed, match="deleted"):
        store.write(under_way, [Piece("call", b"sent")], "b")
    assert store.heads() == []


def test_an_owner_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    one, other = Owner(tmp_path), Owner(tmp_path)
    assert not (tmp_path / "run").exists(), "nothing is made before it is needed"
    name = one.name
    assert one.is_own(name) and one.lives(name) and other.lives(name) and not other.is_own(name)
    assert not other.lives("broker-00000000") and not other.lives("../x")
    other.close()
    one.close()
    assert not other.lives(name) and [*(tmp_path / "run").iterdir()] == []


def test_a_run_with_a_held_call_is_its_brokers_until_that_has_its_answer(store: JournalStore) -> None:
    park(store, owner="b")
    assert store.held() == [("r", "b", 0)] and store.due(NOW) == ([], [])
    assert store.take("r", "c") is None, "another broker"
    assert not store.add_answers("r", 2, "b", []) and not store.add_answers("r", 0, "c", [])
    assert store.add_answers("r", 0, "b", [Piece("call", b"x")])
    assert not store.release("r", 2, "b") and not store.release("r", 0, "c")
    assert store.release("r", 0, "b") and store.due(NOW) == (["r"], []) and store.held() == []
    taken = store.take("r", "c")
    assert taken is not None and [piece.kind for piece in taken[1]] == ["recording", "parked", "call"]
    assert not store.add_answers("r", 0, "b", []) and not store.release("r", 0, "b")


def test_the_broker_that_goes_on_with_a_run_is_asked_to_end_it(store: JournalStore) -> None:
    store.write(Head("r", "token:ann", NOW, state="running"), [Piece("recording", b"x")], "b")
    assert not store.ask_to_end("r", "token:bob") and store.asked_to_end("b") == []
    assert store.ask_to_end("r", "token:ann")
    assert (
        store.asked_to_end("b") == ["r"] and store.asked_to_end("c") == [] and store.owned() == [("r", "b")]
    )
    # It is not forgotten when that broker dies first.
    adopted = store.adopt("r", "b", "c")
    assert adopted is not None and [piece.kind for piece in adopted[1]] == ["recording", "cancel"]
    assert store.asked_to_end("c") == ["r"] and store.give_up("r", "c", "CANCELLED")
    assert store.asked_to_end("c") == [] and not store.ask_to_end("r")
    park(store, of=head("s"), owner="b")
    assert not store.ask_to_end("s"), "it is parked: it ends at once"


def test_who_has_another_key_leaves_a_run_readable_for_those_who_go_on_with_it(
    store: JournalStore, open_store: Open
) -> None:
    store.write(Head("r", "token:ann", NOW, state="running"), [Piece("recording", b"x")], "b")
    stranger = open_store(KEY[::-1])
    with pytest.raises(Foreign, match="another key"):
        stranger.ask_to_end("r")
    stranger.close()
    found = store.adopt("r", "b", "c")
    assert found is not None and found[1] == [Piece("recording", b"x")]
    # Only a run that somebody has lost counts as lost.
    assert found[0].adopted == 1
    again = store.adopt("r", "c", "c")
    assert again is not None and again[0].adopted == 1


def test_a_run_that_waits_for_people_and_a_held_call_waits_for_both(store: JournalStore) -> None:
    park(store, 1, owner="b")
    found = store.answer("r", {of(1): "accepted"})
    assert found is not None and not found[0].is_answered and found[0].owner == "b"
    assert store.due(NOW) == ([], []) and store.release("r", 0, "b") and store.due(NOW) == (["r"], [])
    park(store, 1, owner="b", of=head(turn=2))
    assert not store.release("r", 0, "b") and store.due(NOW) == ([], [])
    found = store.answer("r", {of(1): "accepted"})
    assert found is not None and found[0].is_answered
    park(store, owner="b", of=head(turn=3))
    assert store.end("r", "CANCELLED") and store.held() == [] and not store.add_answers("r", 0, "b", [])


def test_a_run_that_loses_its_broker_at_work_too_often_ends(store: JournalStore) -> None:
    for turn in range(1, MAX_ADOPTED + 1):
        park(store, of=head(turn=turn, resumed=turn - 1), owner=f"dead-{turn}")
        assert store.release("r", turn - 1, f"dead-{turn}", is_lost=True) and store.take("r", "b") is not None
    park(store, of=head(turn=9, resumed=9), owner="dead")
    assert not store.release("r", 9, "dead", is_lost=True)
    found = store.head("r")
    assert found is not None and (found.state, found.outcome) == ("ended", "CANNOT_GO_ON")


def test_what_a_server_asks_is_open_as_long_as_a_broker_has_its_call(store: JournalStore) -> None:
    form = {"requestedSchema": {"type": "object", "required": ["n"]}}
    asked = replace(question(1), kind="elicitation", nth=1, request=json.dumps(form))
    parked = Parked(questions=(question(2), asked))
    store.park(head(owner="one"), [Piece("recording", b"{}"), Piece("parked", parked.pack())])
    # A wrong answer takes the others of its request along.
    for wrong in ({of(2): "accepted", asked.id: {"action": "accept", "content": {}}}, "accepted"):
        with pytest.raises(WrongAnswer):
            store.answer("r", wrong)  # pyright: ignore[reportArgumentType]
    later = replace(asked, nth=2)
    assert store.add_answers("r", 0, "one", [asked_piece(later)])
    assert not store.add_answers("r", 0, "two", [asked_piece(replace(asked, nth=3))])
    given = {"action": "accept", "content": {"n": 1}}
    found = store.answer("r", {asked.id: given, of(2): "accepted"})
    assert found is not None and not found[0].is_answered
    assert found[2] == {asked.id: given, of(2): "accepted"}
    read = store.read("r", kinds=WAITING)
    assert read is not None and parked_questions(*read) == (later,)
    assert store.take("r", "two") is None, "its broker has the call"
    # With its broker gone it needs no answer, and has none.
    assert store.release("r", 0, "one", is_lost=True)
    read = store.read("r", kinds=WAITING)
    assert read is not None and read[0].is_answered and parked_questions(*read) == ()
    found = store.answer("r", {later.id: given})
    assert found is not None and later.id not in found[2]
    assert store.take("r", "two") is not None


def test_what_a_server_asks_in_a_round_outlives_its_broker_until_the_answers_are_sent(
    store: JournalStore,
) -> None:
    packed = pack_round("who", {"requestState": "s1"})
    asked = replace(question(1), kind="roots", nth=1, request="{}", round=packed)
    parked = Parked(questions=(asked,))
    store.park(head(owner="one"), [Piece("recording", b"{}"), Piece("parked", parked.pack())])
    assert not store.release("r", 0, "one", is_lost=True), "somebody is still to answer"
    assert store.due(NOW) == ([], [])
    found = store.answer("r", {asked.id: {"roots": []}})
    assert found is not None and found[0].is_answered and store.due(NOW) == (["r"], [])
    # Whoever goes on with it writes that the answers are sent before it sends them.
    taken = store.take("r", "two")
    assert taken is not None
    store.write(replace(taken[0], state="running"), [sent_piece(1)], "two")
    again = store.adopt("r", "two", "three")
    assert again is not None and [one.round for one in waiting_in(again[1])[0].questions] == [""]
