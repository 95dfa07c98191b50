"""Journals at rest: encrypted, each piece in its place only, bounded by age and size. Of parked runs one broker gets
each, an answer stays, a round is good once, and retention leaves them alone.
"""

import contextlib
import itertools
import json
import secrets
import sqlite3
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cellblock.base.database import SqliteDatabase, StoreError
from cellblock.base.questions import Given, ParkedQuestion, QuestionId, pack_round
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import JOURNALS
from cellblock.fleet.postgresql import PostgresServer
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
from cellblock.record.store import MAX_ADOPTED, PAGE_RUNS, UNENDED_SECONDS, JournalStore
from cellblock.run.hook import Parked
from cellblock.tools.schemas.replies import WrongAnswer
from support.at_once import at_once
from support.opened_journals import opened_journals
from support.shared_rows import KEY, OTHER_KEY

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
    store: JournalStore,
    *asked: int | ParkedQuestion,
    of: Head | None = None,
    size: int = 10,
    owner: str | None = None,
) -> None:
    questions = tuple(question(one) if isinstance(one, int) else one for one in asked)
    parked = Parked(questions=questions, asked=len(asked), waited_ms=7, client="c")
    pieces = [Piece("recording", bytes(size)), Piece("parked", parked.pack())]
    store.park(replace(of or head(), owner=owner), pieces)


def answered(store: JournalStore, *given: Any, **more: Any) -> tuple[bool, dict[QuestionId, Given]] | None:
    """Answers what the run asks: whether all of it has an answer now, and which; None when nothing was taken."""
    found = store.answer("r", *given, **more)
    return found and (found[0].is_answered, found[2])


def end_of(store: JournalStore, run: str) -> tuple[str, str | None]:
    head = store.head(run)
    return head.state, head.outcome


def test_of_many_who_take_a_run_one_gets_it(store: JournalStore, open_store: Open) -> None:
    park(store, 1)

    def taker(name: str) -> str | None:
        return name if open_store().take("r", name) is not None else None

    (got,) = filter(None, at_once(taker, [f"broker-{number}" for number in range(10)]))
    assert store.owned() == [("r", got)]
    assert (store.head("r").state, store.head("r").resumed) == ("running", 1)


def test_answers_that_come_at_once_all_stay(store: JournalStore, open_store: Open) -> None:
    calls = range(1, 9)
    park(store, *calls)

    def answerer(call: int) -> None:
        open_store().answer("r", {of(call): "accepted"})

    at_once(answerer, calls)
    assert waiting_in(store.take("r", "b")[1])[1] == dict.fromkeys(map(of, calls), "accepted")


def test_an_answer_stays_and_those_to_what_is_not_asked_are_nothing(store: JournalStore) -> None:
    park(store, 1, 2)
    assert answered(store, {of(1): "accepted", of(9): "accepted"}, "token:ann") == (
        False,
        {of(1): "accepted"},
    )
    assert answered(store, {of(1): "declined", of(2): "declined"}, "token:bob") is None
    assert answered(store, "declined") == (True, {of(1): "accepted", of(2): "declined"})
    assert store.due(NOW) == (["r"], [])
    read = store.take("r", "broker-1")
    assert waiting_in(read[1])[1] == {of(1): "accepted", of(2): "declined"}
    assert parked_questions(*read) == ()
    assert answered(store, "accepted") is None and store.due(NOW + 1e6) == ([], [])
    with pytest.raises(WrongPiece):
        waiting_in([Piece("recording", b"")])


def test_a_round_is_good_once_and_for_its_principal(store: JournalStore) -> None:
    park(store, 1, of=head(turn=3))
    yes: dict[QuestionId, Given] = {of(1): "accepted"}
    for whose, turn in (("token:bob", 3), ("token:ann", 2), ("token:ann", 4)):
        assert answered(store, yes, whose, turn=turn) is None
    assert answered(store, yes, "token:ann", turn=3) == (True, yes)
    assert answered(store, yes, "token:ann", turn=3) is None, "the word of the last round"
    assert store.take("r", "b")[0].turn == 4
    park(store, 2, of=head(turn=5))
    # Others have answered: the client fetches what came of it once.
    assert answered(store, "accepted") == (True, {of(2): "accepted"})
    taken, _ = store.take("r", "b")
    assert store.end_round("r", 5, "token:ann") and not store.end_round("r", 5, "token:ann")
    # Whoever goes on with it writes its steps and its end, and knows nothing of that.
    for more in ({}, {"ended": NOW, "outcome": "ok"}):
        store.write(replace(taken, **more), [Piece("facts", b"")], "b")
        assert not store.end_round("r", 5, "token:ann"), more
    assert not store.end_round("r", 6, "token:bob")


def test_a_client_that_is_back_answers_the_run_and_has_dismissed_the_rest(store: JournalStore) -> None:
    park(store, 1, 2)
    assert answered(store, {of(7): "accepted"}, turn=1) is None, "it waits for something else"
    found = {of(1): "accepted", of(2): "cancelled"}
    assert answered(store, {of(1): "accepted", of(7): "accepted"}, turn=1) == (True, found)
    assert store.take("r", "b") is not None
    # They are written: whoever goes on after a death need not ask again.
    assert waiting_in(store.adopt("r", "b", "c")[1])[1] == found
    park(store, 3, of=head(turn=3))
    dismissed = answered(store, {}, turn=3)
    assert dismissed == (True, {of(3): "cancelled"}), "who says nothing has dismissed it"


def test_what_goes_on_is_taken_from_a_dead_broker_once(store: JournalStore) -> None:
    store.write(Head("r", "cli", NOW, state="running"), [Piece("recording", b"x")], "broker-dead")
    assert store.adopt("r", "broker-other", "b") is None
    assert store.adopt("r", "broker-dead", "b") is not None and store.adopt("r", "broker-dead", "c") is None
    assert store.owned() == [("r", "b")]
    # A run that kills its brokers does so a few times only.
    owners = ["b", *(f"b{number}" for number in range(MAX_ADOPTED - 1))]
    for before, after in itertools.pairwise(owners):
        assert store.adopt("r", before, after) is not None
    assert store.adopt("r", owners[-1], "last") is None
    assert end_of(store, "r") == ("ended", "CANNOT_GO_ON")
    store.write(Head("s", "cli", NOW, state="running"), [Piece("recording", b"x")], "b")
    assert not store.give_up("s", "c", "CANNOT_GO_ON"), "another broker has it"
    assert store.give_up("s", "b", "CANNOT_GO_ON")
    assert end_of(store, "s") == ("ended", "CANNOT_GO_ON")


def test_who_was_taken_for_dead_writes_nothing_more_of_what_others_have(store: JournalStore) -> None:
    under_way, call = Head("r", "token:ann", NOW, state="running"), [Piece("call", b"sent")]
    store.write(under_way, [Piece("recording", b"x")], "slow")
    taken = store.adopt("r", "slow", "b")
    for write in (
        lambda: store.write(under_way, call, "slow"),
        lambda: store.write(replace(under_way, ended=NOW, outcome="ok"), call, "slow"),
        lambda: store.park(head(), call, "slow"),
        lambda: store.park(head(owner="slow"), call, "slow"),
    ):
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
    tidied(store, NOW + 1e6)
    assert set(ids_of(store)) == {"r", "s"} == set(ids_of(store, state="parked"))
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
    assert ids_of(store, limit=10) == [*(f"r{11 - number}" for number in range(9)), "first"]
    with pytest.raises(TooLarge, match="the parked runs of token:ann are 12 already"):
        park(store, 1, of=head("more"))
    # What has ended of one that has more goes first, however old another's is.
    store.write(Head("old", "token:bob", NOW - 9, NOW - 9, "ok"), [Piece("facts", bytes(MIB))])
    for number in range(8):
        store.write(
            Head(f"x{number}", "token:ann", NOW + number, NOW + number, "ok"), [Piece("facts", bytes(MIB))]
        )
    tidied(store, NOW)
    kept = set(ids_of(store))
    assert {"old", "x7"} <= kept and "x0" not in kept


def test_retention_leaves_a_run_that_goes_on(open_store: Open) -> None:
    """However long ago it began, and however much is kept: it has waited for days, and somebody goes on with it."""
    store = open_store(expire_ms=1_000, total_bytes=MIB)
    park(store, 1, size=400_000)
    store.answer("r", "accepted")
    assert store.take("r", "b") is not None
    for number in range(5):
        store.write(Head(f"x{number}", "cli", NOW + 1e6, NOW + 1e6, "ok"), [Piece("facts", bytes(150_000))])
    tidied(store, NOW + 1e6)
    assert store.owned() == [("r", "b")] and len(store.heads()) == 5, "the oldest of those that are over went"
    tidied(store, NOW + 2e6)
    assert ids_of(store) == ["r"]
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
    _, pieces = store.take("r", "c")
    assert [piece.kind for piece in pieces] == ["recording", "parked", "call"]
    assert not store.add_answers("r", 0, "b", []) and not store.release("r", 0, "b")


def test_the_broker_that_goes_on_with_a_run_is_asked_to_end_it(store: JournalStore) -> None:
    store.write(Head("r", "token:ann", NOW, state="running"), [Piece("recording", b"x")], "b")
    assert not store.ask_to_end("r", "token:bob") and store.asked_to_end("b") == []
    assert store.ask_to_end("r", "token:ann")
    assert (
        store.asked_to_end("b") == ["r"] and store.asked_to_end("c") == [] and store.owned() == [("r", "b")]
    )
    # It is not forgotten when that broker dies first.
    assert [piece.kind for piece in store.adopt("r", "b", "c")[1]] == ["recording", "cancel"]
    assert store.asked_to_end("c") == ["r"] and store.give_up("r", "c", "CANCELLED")
    assert store.asked_to_end("c") == [] and not store.ask_to_end("r")
    park(store, of=head("s"), owner="b")
    assert not store.ask_to_end("s"), "it is parked: it ends at once"


def test_who_has_another_key_leaves_a_run_readable_for_those_who_go_on_with_it(
    store: JournalStore, open_store: Open
) -> None:
    store.write(Head("r", "token:ann", NOW, state="running"), [Piece("recording", b"x")], "b")
    with pytest.raises(Foreign, match="another key"):
        open_store(KEY[::-1]).ask_to_end("r")
    found, pieces = store.adopt("r", "b", "c")
    assert (found.adopted, pieces) == (1, [Piece("recording", b"x")])
    assert store.adopt("r", "c", "c")[0].adopted == 1, "only a run that somebody has lost counts as lost"


def test_a_run_that_waits_for_people_and_a_held_call_waits_for_both(store: JournalStore) -> None:
    park(store, 1, owner="b")
    assert answered(store, {of(1): "accepted"}) == (False, {of(1): "accepted"})
    assert store.head("r").owner == "b" and store.due(NOW) == ([], [])
    assert store.release("r", 0, "b") and store.due(NOW) == (["r"], [])
    park(store, 1, owner="b", of=head(turn=2))
    assert not store.release("r", 0, "b") and store.due(NOW) == ([], [])
    assert answered(store, {of(1): "accepted"}) == (True, {of(1): "accepted"})
    park(store, owner="b", of=head(turn=3))
    assert store.end("r", "CANCELLED") and store.held() == [] and not store.add_answers("r", 0, "b", [])


def test_a_run_that_loses_its_broker_at_work_too_often_ends(store: JournalStore) -> None:
    for turn in range(1, MAX_ADOPTED + 1):
        park(store, of=head(turn=turn, resumed=turn - 1), owner=f"dead-{turn}")
        assert store.release("r", turn - 1, f"dead-{turn}", is_lost=True) and store.take("r", "b") is not None
    park(store, of=head(turn=9, resumed=9), owner="dead")
    assert not store.release("r", 9, "dead", is_lost=True)
    assert end_of(store, "r") == ("ended", "CANNOT_GO_ON")


def test_what_a_server_asks_is_open_as_long_as_a_broker_has_its_call(store: JournalStore) -> None:
    form = {"requestedSchema": {"type": "object", "required": ["n"]}}
    asked = replace(question(1), kind="elicitation", nth=1, request=json.dumps(form))
    park(store, question(2), asked, owner="one")
    # A wrong answer takes the others of its request along.
    for wrong in ({of(2): "accepted", asked.id: {"action": "accept", "content": {}}}, "accepted"):
        with pytest.raises(WrongAnswer):
            store.answer("r", wrong)  # pyright: ignore[reportArgumentType]
    later = replace(asked, nth=2)
    assert store.add_answers("r", 0, "one", [asked_piece(later)])
    assert not store.add_answers("r", 0, "two", [asked_piece(replace(asked, nth=3))])
    given = {"action": "accept", "content": {"n": 1}}
    all_given = {asked.id: given, of(2): "accepted"}
    assert answered(store, all_given) == (False, all_given)
    assert parked_questions(*store.read("r", kinds=WAITING)) == (later,)
    assert store.take("r", "two") is None, "its broker has the call"
    # With its broker gone it needs no answer, and has none.
    assert store.release("r", 0, "one", is_lost=True)
    read = store.read("r", kinds=WAITING)
    assert read[0].is_answered and parked_questions(*read) == ()
    assert later.id not in answered(store, {later.id: given})[1]
    assert store.take("r", "two") is not None


def test_what_a_server_asks_in_a_round_outlives_its_broker_until_the_answers_are_sent(
    store: JournalStore,
) -> None:
    asked = replace(
        question(1), kind="roots", nth=1, request="{}", round=pack_round("who", {"requestState": "s1"})
    )
    park(store, asked, owner="one")
    assert not store.release("r", 0, "one", is_lost=True), "somebody is still to answer"
    assert store.due(NOW) == ([], [])
    assert answered(store, {asked.id: {"roots": []}}) == (True, {asked.id: {"roots": []}})
    assert store.due(NOW) == (["r"], [])
    # Whoever goes on with it writes that the answers are sent before it sends them.
    taken, _ = store.take("r", "two")
    store.write(replace(taken, state="running"), [sent_piece(1)], "two")
    _, pieces = store.adopt("r", "two", "three")
    assert [one.round for one in waiting_in(pieces)[0].questions] == [""]


TEXT = b"the script said hunter2-hunter2"
SETTINGS = JournalSettings(mode="all")


def ended_run(run: str = "r1", principal: str = "cli", began: float = NOW, **fields: Any) -> Head:
    return Head(run, principal, began, **{"ended": began + 1, "outcome": "ok", **fields})


def ids_of(store: JournalStore, *of: Any, **more: Any) -> list[str]:
    return [one.id for one in store.heads(*of, **more)]


def tidied(store: JournalStore, now: float) -> None:
    while store.tidy(now):
        pass


def test_what_was_written_is_there_after_opening_again(
    kept_in: Path | PostgresServer, open_store: Open
) -> None:
    written = [Piece("facts", TEXT), Piece("recording", b"")]
    before = open_store()
    before.write(ended_run(calls=3), written)
    before.close()
    store = open_store()
    found, pieces = store.read("r1")
    assert (found.calls, found.outcome, pieces) == (3, "ok", written)
    assert store.heads() == [found] and found.bytes > len(TEXT)
    assert store.read("r2") is None
    if isinstance(kept_in, Path):
        assert (kept_in / JOURNALS).stat().st_mode & 0o777 == 0o600


def test_nothing_that_a_script_saw_is_readable_in_the_files(tmp_path: Path) -> None:
    with contextlib.closing(opened_journals(tmp_path / JOURNALS, lambda: (KEY,), SETTINGS)) as store:
        store.write(ended_run(), [Piece("facts", TEXT * 100)])
        store.write(
            ended_run("r2", ended=None, outcome=None), [Piece("recording", TEXT), Piece("call", TEXT)]
        )
        assert (tmp_path / f"{JOURNALS}-wal").exists(), "what was just written is not looked at"
        assert all(b"hunter2" not in file.read_bytes() for file in tmp_path.iterdir())


def test_an_end_takes_the_place_of_what_was_written_on_the_way(store: JournalStore) -> None:
    steps = [Piece("recording", b"begun"), Piece("call", b"intent"), Piece("call", b"answer")]
    for step in steps:
        store.write(ended_run(ended=None, outcome=None), [step])
    under_way, pieces = store.read("r1")
    assert pieces == steps
    store.write(ended_run(), [Piece("recording", b"whole")])
    found, pieces = store.read("r1")
    assert pieces == [Piece("recording", b"whole")] and found.bytes < under_way.bytes


def test_a_run_is_its_principals_alone(store: JournalStore) -> None:
    odd = "stdio:\ud800"
    store.write(ended_run("r1", "token:a"), [Piece("facts", TEXT)])
    store.write(ended_run("r2", odd, NOW + 1), [Piece("facts", TEXT)])
    assert store.read("r1", "token:b") is None and not store.delete("r1", "token:b")
    assert ids_of(store, "token:a") == ["r1"]
    assert ids_of(store, odd) == ["r2"] and store.read("r2", odd) is not None
    assert ids_of(store) == ["r2", "r1"] and ids_of(store, limit=1) == ["r2"]
    assert store.delete("r1", "token:a") and store.read("r1") is None


@pytest.mark.parametrize(
    ("in_file", "shared"),
    [
        (
            "UPDATE pieces SET body = CAST(substr(body, 1, 20) || iif(substr(body, 21, 1) = x'78', 'y', 'x') "
            "|| substr(body, 22) AS BLOB) WHERE run = 'r1'",
            "UPDATE pieces SET body = set_byte(body, 20, get_byte(body, 20) # 1) WHERE run = 'r1'",
        ),
        (
            "UPDATE pieces SET body = x'00' WHERE run = 'r1'",
            "UPDATE pieces SET body = '\\x00' WHERE run = 'r1'",
        ),
        ("UPDATE pieces SET body = 'text' WHERE run = 'r1'", ""),
        ("UPDATE pieces SET body = (SELECT body FROM pieces WHERE run = 'r2') WHERE run = 'r1'", ""),
        ("UPDATE pieces SET number = 7 WHERE run = 'r1'", ""),
        ("UPDATE pieces SET kind = 'call' WHERE run = 'r1'", ""),
        ("UPDATE runs SET principal = 'token:thief' WHERE id = 'r1'", ""),
    ],
    ids=["a byte", "cut", "a text", "another run's", "another place", "another kind", "another principal"],
)
def test_a_piece_is_readable_only_where_it_was_written(
    kept_in: Path | PostgresServer, in_file: str, shared: str, store: JournalStore
) -> None:
    for run in ("r1", "r2"):
        store.write(ended_run(run), [Piece("facts", TEXT)])
    if isinstance(kept_in, Path):
        with contextlib.closing(sqlite3.connect(kept_in / JOURNALS)) as file, file:
            assert file.execute(in_file).rowcount > 0
    else:
        with kept_in.connection() as connection:
            assert connection.execute((shared or in_file).encode()).rowcount > 0
    with pytest.raises(WrongPiece, match="r1"):
        store.read("r1")
    assert store.read("r2") is not None


def test_with_another_key_old_runs_are_listed_and_new_ones_are_kept(
    store: JournalStore, open_store: Open
) -> None:
    store.write(ended_run("r1"), [Piece("facts", TEXT)])
    store.close()
    store = open_store(OTHER_KEY)
    store.write(ended_run("r2", began=NOW + 1), [Piece("facts", TEXT)])
    assert ids_of(store) == ["r2", "r1"] and store.read("r2") is not None
    with pytest.raises(WrongPiece, match="another key"):
        store.read("r1")
    assert store.delete("r1")


def test_while_keys_change_two_are_accepted_and_each_run_has_one(
    store: JournalStore, open_store: Open
) -> None:
    for name in ("r1", "r2"):
        store.write(ended_run(name, ended=None), [Piece("facts", TEXT)])
    store.close()
    store = open_store(OTHER_KEY, KEY)
    store.write(ended_run("r1", ended=None), [Piece("call", TEXT)])
    store.write(ended_run("r3"), [Piece("facts", TEXT)])
    store.close()
    # A broker that has not got the new one yet, but for reading.
    store = open_store(KEY, OTHER_KEY)
    for name, kinds in (("r1", ["facts", "call"]), ("r2", ["facts"]), ("r3", ["facts"])):
        assert [piece.kind for piece in store.read(name)[1]] == kinds
    store = open_store(OTHER_KEY)
    assert store.read("r3") is not None
    for name in ("r1", "r2"):
        with pytest.raises(WrongPiece, match="another key"):
            store.read(name)
    # One whose key is lost is written anew when it ends.
    store.write(ended_run("r2"), [Piece("facts", TEXT)])
    assert store.read("r2") is not None


@pytest.mark.parametrize("trouble", ["max_page_count = 1", "query_only = ON"], ids=["full", "read-only"])
def test_what_cannot_be_written_is_an_error_and_loses_nothing(tmp_path: Path, trouble: str) -> None:
    with contextlib.closing(opened_journals(tmp_path / JOURNALS, lambda: (KEY,), SETTINGS)) as store:
        store.write(ended_run("r1"), [Piece("facts", TEXT)])
        cast("SqliteDatabase", store.database).connection.execute(f"PRAGMA {trouble}")
        with pytest.raises(StoreError, match=r"full|readonly"):
            store.write(ended_run("r2"), [Piece("facts", b"x" * MIB)])
        assert ids_of(store) == ["r1"] and store.read("r1") is not None


def test_two_processes_keep_runs_in_one_file(store: JournalStore, open_store: Open) -> None:
    def broker(name: str) -> None:
        mine = open_store()
        for number in range(30):
            mine.write(ended_run(f"{name}{number}"), [Piece("facts", TEXT)])
            mine.tidy(NOW)

    at_once(broker, ("left", "right"))
    assert len(store.heads()) == 60


def test_what_is_too_old_goes_a_page_at_a_time(open_store: Open) -> None:
    store = open_store(expire_ms=100_000)
    for number in range(2 * PAGE_RUNS + 10):
        store.write(ended_run(f"old{number}"), [Piece("facts", TEXT)])
    store.write(ended_run("young", began=NOW + 50), [Piece("facts", TEXT)])
    store.write(ended_run("lives", ended=None, outcome=None), [Piece("recording", TEXT)])
    counts: list[int] = []
    while store.tidy(NOW + 102):
        counts.append(len(store.heads()))
    assert counts == [PAGE_RUNS + 12, 12, 2]
    assert ids_of(store) == ["young", "lives"]
    assert store.tidy(NOW + UNENDED_SECONDS + 1) and not store.heads()
    assert store.database.rows("SELECT count(*) FROM pieces") == [(0,)]


def test_what_is_too_much_goes_and_the_disk_gets_its_space_back(
    kept_in: Path | PostgresServer, open_store: Open
) -> None:
    store = open_store(total_bytes=MIB)
    for number in range(40):
        store.write(
            ended_run(f"r{number:02}", began=NOW + number),
            [Piece("recording", secrets.token_bytes(64 * 1024))],
        )
    store.write(ended_run("lives", began=NOW - 1, ended=None, outcome=None), [Piece("recording", TEXT)])
    assert store.used_bytes > 2 * MIB
    tidied(store, NOW + 100)
    kept = ids_of(store)
    assert kept[-1] == "lives" and 10 <= len(kept) <= 16
    assert kept[:-1] == [f"r{number:02}" for number in range(39, 40 - len(kept), -1)]
    assert store.used_bytes <= MIB
    with pytest.raises(TooLarge, match=r"journal\.total_bytes"):
        store.write(ended_run("huge"), [Piece("recording", b"x" * (MIB + 1))])
    store.close()
    if isinstance(kept_in, Path):
        assert (kept_in / JOURNALS).stat().st_size <= MIB


def test_kept_runs_take_no_memory(store: JournalStore) -> None:
    body = secrets.token_bytes(20 * 1024)
    store.write(ended_run("first"), [Piece("recording", body)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            store.write(ended_run(f"r{number}"), [Piece("recording", body)])
        store.tidy(NOW)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store.heads()) == 301
    assert after - before < 64 * 1024 and peak - before < MIB
