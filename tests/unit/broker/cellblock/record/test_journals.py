"""The thread of the journals: what fails is told once, runs go on, and it recovers. What becomes of a run of which
nobody knows whether it stands as parked.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.budget import Budget
from cellblock.base.database import Away, StoreError
from cellblock.base.questions import ParkedQuestion
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import JOURNALS
from cellblock.base.store import LocalStore
from cellblock.fleet.shared_state import SharedState
from cellblock.record.journals import Journals, open_store
from cellblock.record.kept import Keeper
from cellblock.record.rows import Head, Owner, Piece, WrongPiece, recording_in
from cellblock.record.store import JournalStore
from cellblock.run.events import RunFacts
from cellblock.run.hook import KeptRun, Parked
from support.memory_keeper import MemoryKeeper, begin
from support.opened_journals import delete_of, heads_of, opened_journals, read_of
from support.postgresql import Postgres
from support.waits import WAIT_BOUND_SECONDS, until

AUTH = AuthSettings(keyring="off")
PIECES = [Piece("facts", b"seen")]


def pieces() -> list[Piece]:
    return PIECES


def head(run: str = "r1", **fields: Any) -> Head:
    now = time.time()
    return Head(run, "cli", now, **{"ended": now, "outcome": "ok", **fields})


def another_store(folder: Path) -> contextlib.closing[JournalStore]:
    """The journals of the folder, with another key."""
    return contextlib.closing(opened_journals(folder / JOURNALS, lambda: (b"\1" * 32,), JournalSettings()))


@pytest.fixture
async def journals(tmp_path: Path) -> AsyncGenerator[Journals]:
    made = Journals(LocalStore(tmp_path), AUTH, JournalSettings(mode="all"))
    made.start()
    yield made
    await made.close()


async def test_a_look_makes_no_file(journals: Journals, tmp_path: Path) -> None:
    found = await heads_of(journals), await read_of(journals, "r1"), await delete_of(journals, "r1")
    assert found == ([], None, False)
    assert not (tmp_path / JOURNALS).exists()


async def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    kept = Journals(LocalStore(tmp_path), AUTH, JournalSettings(mode="all"))
    writing = [kept.write(head(f"r{number}"), pieces) for number in range(50)]
    await kept.close()
    assert all(one.result() for one in writing)
    assert not await kept.is_written(kept.write(head("late"), pieces))
    with pytest.raises(StoreError, match="stopping"):
        await heads_of(kept)
    with contextlib.closing(open_store(LocalStore(tmp_path), AUTH, JournalSettings())) as store:
        assert len(store.heads()) == 50


async def test_a_failing_disk_is_told_once_and_tried_again_later(
    journals: Journals, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journals.sqlite3").mkdir()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            assert not await journals.is_written(journals.write(head(f"r{number}"), pieces))
    assert caplog.text.count("runs are not kept for now") == 1
    assert "a folder, not a file of Cellblock's" in caplog.text and "not affected" in caplog.text
    (tmp_path / "journals.sqlite3").rmdir()
    assert not await journals.is_written(journals.write(head("too early"), pieces))
    # A run that somebody goes on with does not wait: its next call would be refused.
    assert await journals.is_written(journals.write(head("r8", ended=None, outcome=None), pieces, owner="b"))
    journals._next_try = 0.0
    assert await journals.is_written(journals.write(head("r9"), pieces))
    assert {one.id for one in await heads_of(journals)} == {"r8", "r9"}


async def test_a_file_that_is_damaged_while_it_is_in_use_is_set_aside(
    journals: Journals, tmp_path: Path
) -> None:
    for number in range(20):
        assert await journals.is_written(
            journals.write(head(f"r{number}"), lambda: [Piece("recording", b"x" * 50_000)])
        )
    assert await delete_of(journals, "r0")  # the log is short: what is damaged below is read from the file
    file = tmp_path / JOURNALS
    with file.open("r+b") as opened:
        opened.truncate(8192)
    for name in ("-wal", "-shm"):
        file.with_name(file.name + name).unlink(missing_ok=True)
    await journals.is_written(journals.write(head("r30"), pieces))
    journals._next_try = 0.0
    assert await journals.is_written(journals.write(head("r31"), pieces))
    assert (await heads_of(journals))[0].id == "r31"


async def test_one_run_that_is_too_large_is_no_reason_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Journals(LocalStore(tmp_path), AUTH, JournalSettings(mode="all", total_bytes=MIB))
    assert not await kept.is_written(kept.write(head("huge"), lambda: [Piece("recording", b"x" * (2 * MIB))]))
    assert "journal.total_bytes" in caplog.text
    assert await kept.is_written(kept.write(head(), pieces))
    await kept.close()


async def test_a_disk_that_hangs_holds_nobody_and_takes_no_more_than_its_room(
    journals: Journals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, is_there = threading.Event(), threading.Event()

    def hang(self: JournalStore, *_: object) -> None:
        is_there.set()
        hangs.wait(WAIT_BOUND_SECONDS)

    monkeypatch.setattr(JournalStore, "write", hang)
    monkeypatch.setattr(journals, "_waiting", Budget(90, 100, "one client", "runs that wait for the disk"))
    first = journals.write(head(), pieces, 80)
    await until(is_there.is_set, "it hangs")
    assert not await journals.is_written(first, 0.01)
    # Nobody else waits in vain: this would take the test's bound.
    behind = journals.write(head("r4"), pieces, 1)
    assert not await journals.is_written(behind, 10 * WAIT_BOUND_SECONDS)
    assert not await journals.is_written(journals.write(head("r2"), pieces, 80, client="other"))
    assert "wait for the disk of all together" in caplog.text
    # One client does not take what there is for others.
    assert journals.write(head("r5"), pieces, 15).done()
    other = journals.write(head("r6"), pieces, 15, client="other")
    assert not other.done()
    hangs.set()
    await until(behind.done, "it goes on")
    assert await journals.is_written(first) and await journals.is_written(other)
    assert await journals.is_written(journals.write(head("r3"), pieces, 80))


async def test_a_wrong_key_is_told_of_one_run_and_others_are_read(journals: Journals, tmp_path: Path) -> None:
    with another_store(tmp_path) as store:
        store.write(head("theirs"), PIECES)
    assert await journals.is_written(journals.write(head("ours"), pieces))
    with pytest.raises(WrongPiece):
        await read_of(journals, "theirs")
    assert await read_of(journals, "ours") is not None


async def test_what_is_too_old_goes_also_when_nothing_is_written(tmp_path: Path) -> None:
    long_ago = time.time() - 1_000_000
    with another_store(tmp_path) as store:
        for number in range(120):
            store.write(Head(f"r{number}", "cli", long_ago, long_ago, "ok"), PIECES)
    kept = Journals(LocalStore(tmp_path), AUTH, JournalSettings())
    kept.start()

    while await heads_of(kept):
        pass
    await kept.close()


async def test_a_shorter_time_counts_for_what_is_kept_already(journals: Journals) -> None:
    now = time.time()
    assert await journals.is_written(journals.write(Head("r1", "cli", now - 60, now - 60, "ok"), pieces))
    journals.use(JournalSettings(mode="all", expire_ms=10_000))
    assert await journals.is_written(journals.write(head("r2"), pieces))
    while [one.id for one in await heads_of(journals)] != ["r2"]:
        pass


@pytest.fixture
async def shared(shared_state: SharedState) -> AsyncGenerator[Journals]:
    shared_state.start(())
    made = Journals(shared_state, AUTH, JournalSettings(mode="all"))
    made.start()
    yield made
    await made.close()


async def test_while_postgresql_is_away_writes_wait_and_whoever_asks_is_told(
    shared: Journals, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    assert await shared.is_written(shared.write(head("before"), pieces), WAIT_BOUND_SECONDS)
    postgres.stop()
    await until(lambda: shared._state.trouble is not None, "it is seen")
    waiting = [shared.write(head(f"r{number}"), pieces) for number in range(20)]
    parking = shared.write(head("parked", ended=None, outcome=None, state="parked"), pieces)
    assert not await shared.is_written(waiting[0], 10 * WAIT_BOUND_SECONDS), "nobody waits in vain"
    with pytest.raises(Away, match="PostgreSQL"):
        await heads_of(shared)
    with pytest.raises(TimeoutError):
        # Long enough for several tries.
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(waiting[0])), 1.0)
    assert "PostgreSQL is away" in caplog.text
    postgres.start()
    await until(lambda: parking.done() and all(one.done() for one in waiting), "it is written")
    assert all(one.result() for one in waiting)
    await until(lambda: shared._state.trouble is None, "it is seen that it is back")
    assert {one.id for one in await heads_of(shared)} >= {"before", *(f"r{number}" for number in range(20))}
    assert "PostgreSQL is there again" in caplog.text


async def test_what_waits_for_a_postgresql_that_stays_away_holds_no_end_up(
    shared_state: SharedState, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    presence = shared_state.start(())
    made = Journals(shared_state, AUTH, JournalSettings(mode="all"))
    assert await made.is_written(made.write(head("before"), pieces), WAIT_BOUND_SECONDS)
    with postgres.away():
        writing = made.write(head("late"), pieces)
        await until(lambda: presence.trouble is not None, "it is seen")
        await made.close()
        assert not await made.is_written(writing)
        assert "the last runs are not kept: PostgreSQL" in caplog.text


QUESTION = ParkedQuestion(call=1, server="s", tool="t", destructive=True, input="{}", bytes=2)


def started(keeper: Keeper | MemoryKeeper, *, durable: bool = False) -> KeptRun:
    """A run that the keeper keeps, begun and with a worker."""
    kept = keeper.opened("cli", client="c", may_park=True, durable=durable, may_leave=True)
    assert kept is not None
    begin(kept.journal)
    kept.run_accepted(facts())
    kept.run_started(facts())
    return kept


def facts() -> RunFacts:
    return RunFacts("r1", "c", "1", time.time(), 0.0)


async def ends_of(journals: Journals) -> list[tuple[str, str | None]]:
    return [(head.state, head.outcome) for head in await heads_of(journals)]


async def test_a_park_that_was_to_be_written_while_postgresql_went_away_is_none(
    shared_state: SharedState, postgres: Postgres
) -> None:
    presence = shared_state.start(())
    journals = Journals(shared_state, AUTH, JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), presence))
    await kept.before_call(1)
    assert await heads_of(journals) == []
    with postgres.away():
        await until(lambda: presence.trouble is not None, "it is seen")
        assert not await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    await until(lambda: presence.trouble is None, "it is back")
    assert all(state == "ended" for state, _ in await ends_of(journals))
    await journals.close()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_park_that_a_slow_disk_writes_too_late_is_ended_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, journals: Journals
) -> None:
    """Nobody is asked for a run whose client was told that it has ended."""
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)), durable=durable)
    written = Journals.is_written

    async def too_late(journals: Journals, writing: Any, bound: float = 0.0) -> bool:
        await written(journals, writing)
        return False

    with monkeypatch.context() as slow:
        slow.setattr(Journals, "is_written", too_late)
        assert not await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    assert await ends_of(journals) == [("ended", "RUN_NOT_PARKED")]
    kept.run_ended(facts())
    assert [state for state, _ in await ends_of(journals)] == ["ended"]


async def test_a_park_is_taken_back_of_a_run_whose_client_has_gone(
    tmp_path: Path, journals: Journals
) -> None:
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)))
    assert await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    kept.take_back("CANCELLED")
    assert await ends_of(journals) == [("ended", "CANCELLED")]


async def test_a_run_that_goes_on_holds_its_recording_once(tmp_path: Path, journals: Journals) -> None:
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)), durable=True)
    first = kept.journal
    first.ask(1, "call", "s", "t", b"x" * 1000, None)
    kept.goes_on()
    assert (first.size, kept.journal.size, kept.journal.lost) == (0, 1000, None)


async def test_a_run_that_its_client_leaves_is_written_down_from_there_unless_it_holds_too_much(
    tmp_path: Path, journals: Journals
) -> None:
    keeper = Keeper(journals, JournalSettings(), Owner(tmp_path))
    kept = started(keeper)
    assert kept.journal.ask(1, "call", "s", "t", b"{}", None) is None
    await kept.before_call(1)
    kept.journal.note("t1")
    assert await heads_of(journals) == [] and not await keeper.leave("another")
    assert await keeper.leave("r1") and await keeper.leave("r1")
    kept.journal.note("t2")
    kept.journal.answered(1, True, b"7")
    assert kept.journal.ask(2, "call", "s", "t", b"{}", None) is None
    await kept.before_call(2)
    assert await ends_of(journals) == [("running", None)]
    recording = recording_in((await read_of(journals, "r1"))[1])
    assert recording.events == "t1t2"
    assert [(call.id, call.answer, call.certainty.value) for call in recording.calls] == [
        (1, b"7", "not_started"),
        (2, b"", "may_have_run"),
    ]
    kept.run_ended(facts())
    other = Keeper(journals, JournalSettings(), Owner(tmp_path))
    lost = started(other)
    lost.journal.most_bytes = 1
    lost.journal.note("t1")
    assert lost.journal.lost and not await other.leave("r1")
