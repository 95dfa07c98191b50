"""What a run may do of which nobody knows whether it stands as parked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.shared_state import SharedState
from cellblock.base.store import LocalStore
from cellblock.config.auth import AuthSettings
from cellblock.config.journal import JournalSettings
from cellblock.durable.keeper import Keeper
from cellblock.execution.events import RunFacts
from cellblock.execution.keeping import KeptRun
from cellblock.journal.journals import Journals
from cellblock.journal.owner import Owner
from cellblock.journal.parked import Parked, ParkedQuestion
from cellblock.journal.place import Place
from cellblock.journal.recording import Recording
from cellblock.journal.rows import OneRunFailed
from cellblock.journal.store import JournalStore
from support.memory_host import turns
from support.memory_keeper import MemoryKeeper, Park, begin
from support.postgresql import Postgres
from support.waits import until

RECORDING = Recording(
    made_by="x",
    deno="",
    started_at=0.0,
    request={"code": "1"},
    body=b'{"code":"1"}',
    conventions=True,
    limits={},
    message_bytes=1,
    catalog={},
    seed="0" * 64,
)
QUESTION = ParkedQuestion(call=1, server="s", tool="t", destructive=True, input="{}", bytes=2)


def started(keeper: Keeper | MemoryKeeper, *, durable: bool = False) -> KeptRun:
    """A run that the keeper keeps, begun and with a worker."""
    kept = keeper.opened("cli", client="c", may_park=True, durable=durable)
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


async def test_a_run_makes_no_call_until_its_park_is_certainly_taken_back(
    shared_state: SharedState, postgres: Postgres
) -> None:
    presence = shared_state.start(())
    journals = Journals(Place(shared_state, AuthSettings(keyring="off")), JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), presence))
    await kept.before_call(1)
    assert await journals.heads() == []
    postgres.stop()
    try:
        await until(lambda: presence.trouble is not None, "it is seen")
        assert not await kept.park(RECORDING, Parked(questions=(QUESTION,)), 1)
        with pytest.raises(ToolCallError, match="goes on here after all") as refused:
            await kept.before_call(1)
        assert refused.value.certainty is Certainty.NOT_STARTED
    finally:
        postgres.start()
    await until(lambda: presence.trouble is None, "it is back")
    await kept.before_call(1)
    assert await journals.heads() == [], "it stands as parked"
    await journals.close()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_park_that_could_not_be_taken_back_is_before_the_next_call_or_at_the_end(
    shared_state: SharedState, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Others may take it as long as it stands: the call would be made twice."""
    presence = shared_state.start(())
    journals = Journals(Place(shared_state, AuthSettings(keyring="off")), JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), presence))

    def fails(store: JournalStore, *of: Any) -> bool:
        raise OneRunFailed("the connection is cut")

    with monkeypatch.context() as away:
        away.setattr(JournalStore, "unpark", fails)
        with monkeypatch.context() as slow:
            written_too_late(slow)
            assert not await kept.park(RECORDING, Parked(questions=(QUESTION,)), 1)
        for _ in range(2):
            with pytest.raises(ToolCallError, match="goes on here after all"):
                await kept.before_call(1)
    assert [head.state for head in await journals.heads()] == ["parked"]
    if ends:
        kept.run_ended(facts())
    else:
        await kept.before_call(1)
    assert await journals.heads() == []
    await journals.close()


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("elsewhere", ["answered", "taken", "parked again"])
async def test_a_run_whose_late_park_others_have_taken_makes_no_call_more(
    shared_state: SharedState, monkeypatch: pytest.MonkeyPatch, elsewhere: str, durable: bool
) -> None:
    presence = shared_state.start(())
    journals = Journals(Place(shared_state, AuthSettings(keyring="off")), JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), presence), durable=durable)
    unpark, told = JournalStore.unpark, list[str]()
    kept.on_taken = lambda: told.append("taken")

    def too_late(store: JournalStore, *of: Any) -> bool:
        assert store.answer("r1", "accepted") is not None
        taken = None if elsewhere == "answered" else store.take("r1", "another broker")
        assert elsewhere == "answered" or taken is not None
        if taken is not None and elsewhere == "parked again":
            # Answered by somebody who is no client of it, it is in the same round still.
            assert taken[0].turn == 1
            store.park(replace(taken[0], owner=None), taken[1], "another broker")
        return unpark(store, *of)

    with monkeypatch.context() as slow:
        written_too_late(slow)
        slow.setattr(JournalStore, "unpark", too_late)
        assert not await kept.park(RECORDING, Parked(questions=(QUESTION,)), 1)
        await until(lambda: told, "the run is told", 5)
    with pytest.raises(ToolCallError, match="another broker"):
        await kept.before_call(1)
    assert told == ["taken"]
    (head,) = await journals.heads()
    assert (head.state, head.owner) == (
        ("running", "another broker") if elsewhere == "taken" else ("parked", None)
    )
    await journals.close()


async def test_a_run_that_goes_on_holds_its_recording_once(tmp_path: Path) -> None:
    place = Place(LocalStore(tmp_path), AuthSettings(keyring="off"))
    journals = Journals(place, JournalSettings())
    kept = started(Keeper(journals, JournalSettings(), Owner(tmp_path)), durable=True)
    first = kept.journal
    assert first.ask(1, "call", "s", "t", b"x" * 1000, None) is None
    kept.goes_on(first.snapshot())
    assert (first.size, kept.journal.size, kept.journal.lost) == (0, 1000, None)
    await journals.close()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_run_makes_no_call_while_it_is_being_parked(durable: bool, is_taken: bool) -> None:
    """A person has answered its client, and may answer others, who take it as soon as it is written."""
    parks: list[Park] = []
    keeper = MemoryKeeper(parks.append)
    kept = started(keeper, durable=durable)
    assert kept.journal.ask(1, "call", "s", "t", b"{}", None) is None
    parking = asyncio.create_task(kept.park(kept.journal.snapshot(), Parked(questions=(QUESTION,)), 1))
    await turns()
    calling = asyncio.create_task(kept.before_call(1))
    await turns()
    assert not calling.done()
    (park,) = parks
    park.written.set_result(True)
    assert await parking
    if is_taken:
        keeper.taken_elsewhere(park)
    assert await kept.unpark() is not is_taken
    await turns()
    assert calling.done() is not is_taken
    if is_taken:
        calling.cancel()
    await asyncio.wait([calling])
    assert is_taken or calling.exception() is None
    keeper.close()
