"""What becomes of a run of which nobody knows whether it stands as parked."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.questions import ParkedQuestion
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.base.store import LocalStore
from cellblock.fleet.shared_state import SharedState
from cellblock.record.journal import Journal
from cellblock.record.journals import Journals
from cellblock.record.kept import Keeper
from cellblock.record.rows import Owner, recording_in
from cellblock.run.events import RunFacts
from cellblock.run.hook import KeptRun, Parked
from support.memory_keeper import MemoryKeeper, begin
from support.opened_journals import heads_of
from support.postgresql import Postgres
from support.waits import until

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


def written_too_late(patch: pytest.MonkeyPatch) -> None:
    """Has nothing count as written that is, as on a slow disk."""
    written = Journals.is_written

    async def in_vain(journals: Journals, writing: Any, bound: float = 0.0) -> bool:
        await written(journals, writing)
        return False

    patch.setattr(Journals, "is_written", in_vain)


@pytest.fixture
async def journals(tmp_path: Path) -> AsyncIterator[Journals]:
    made = Journals(LocalStore(tmp_path), AuthSettings(keyring="off"), JournalSettings())
    yield made
    await made.close()


async def test_a_park_that_was_to_be_written_while_postgresql_went_away_is_none(
    shared_state: SharedState, postgres: Postgres
) -> None:
    presence = shared_state.start(())
    journals = Journals(shared_state, AuthSettings(keyring="off"), JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), presence))
    await kept.before_call(1)
    assert await heads_of(journals) == []
    with postgres.away():
        await until(lambda: presence.trouble is not None, "it is seen")
        assert not await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    await until(lambda: presence.trouble is None, "it is back")
    assert [head.state for head in await heads_of(journals) if head.state != "ended"] == []
    await journals.close()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_park_that_a_slow_disk_writes_too_late_is_ended_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, journals: Journals
) -> None:
    """Nobody is asked for a run whose client was told that it has ended."""
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)), durable=durable)
    with monkeypatch.context() as slow:
        written_too_late(slow)
        assert not await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    (head,) = await heads_of(journals)
    assert (head.state, head.outcome) == ("ended", "RUN_NOT_PARKED")
    kept.run_ended(facts())
    assert [head.state for head in await heads_of(journals)] == ["ended"]


async def test_a_park_is_taken_back_of_a_run_whose_client_has_gone(
    tmp_path: Path, journals: Journals
) -> None:
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)))
    assert await kept.park(Parked(questions=(QUESTION,)), 0, (), ())
    kept.take_back("CANCELLED")
    (head,) = await heads_of(journals)
    assert (head.state, head.outcome) == ("ended", "CANCELLED")


async def test_a_run_that_goes_on_holds_its_recording_once(tmp_path: Path, journals: Journals) -> None:
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)), durable=True)
    first = kept.journal
    assert first.ask(1, "call", "s", "t", b"x" * 1000, None) is None
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
    (head,) = await heads_of(journals)
    assert head.state == "running"
    found = await journals.asked(lambda store: store.read("r1"), None)
    recording = None if found is None else recording_in(found[1])
    assert recording is not None and recording.events == "t1t2"
    assert [(call.id, call.answer, call.certainty.value) for call in recording.calls] == [
        (1, b"7", "not_started"),
        (2, b"", "may_have_run"),
    ]
    kept.run_ended(facts())
    other = Keeper(journals, JournalSettings(), Owner(tmp_path))
    lost = started(other)
    assert isinstance(lost.journal, Journal)
    lost.journal.most_bytes = 1
    lost.journal.note("t1")
    assert lost.journal.lost and not await other.leave("r1")
