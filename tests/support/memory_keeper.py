"""Keeps runs as the broker does, with the journals' file in this thread: a test says when a park is written, whether it
is, and when the broker dies.

Real are the keeper, what it writes and when, the store, and the names of brokers.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.base.database import StoreError
from cellblock.base.questions import QuestionId
from cellblock.base.settings.state import JournalSettings
from cellblock.record.journal import Journal
from cellblock.record.journals import SMALL_BYTES, Journals
from cellblock.record.kept import Keeper
from cellblock.record.rows import Head, Owner, Piece, TakenAway, waiting_in
from cellblock.record.store import JournalStore
from cellblock.run.hook import KeptRun, Parked
from cellblock.run.policy.asking import Verdict
from cellblock.tools.catalog.model import Catalog
from support.opened_journals import opened_journals

AT_ONCE: Final = JournalSettings(mode="parked")
"""Has runs parked as soon as all that they wait for is people."""

ELSEWHERE: Final = "broker elsewhere"
"""Names a broker beside that of the test."""


def begin(journal: Journal) -> None:
    """Has a journal begin the run of an empty script."""
    journal.begin(
        made_by="",
        deno="",
        request={"code": ""},
        body=b"{}",
        conventions=True,
        limits={},
        message_bytes=1,
        catalog=Catalog(),
    )


@dataclass
class Park:
    """One run that is being parked, or is."""

    head: Head
    pieces: Sequence[Piece]
    written: Future[bool] = field(default_factory=Future[bool])
    is_taken: bool = False
    """Another broker has it: a person has accepted there what it asks."""

    @property
    def packed(self) -> bytes:
        """The recording."""
        return next(piece.body for piece in self.pieces if piece.kind == "recording")

    @property
    def parked(self) -> Parked:
        """What it waits for."""
        return waiting_in(self.pieces)[0]


class MemoryJournals(Journals):
    """Does at once what `Journals` has its thread do.

    Args:
        on_park: Hears of each run that is to be written down; what it does with `written` is the disk's answer.
        store: What is on the disk.

    Attributes:
        is_dead: Whether the broker is: nothing is written any more.
    """

    def __init__(self, on_park: Callable[[Park], None], store: JournalStore) -> None:
        self.on_park, self.store = on_park, store
        self.is_dead = False
        self._parks: list[Park] = []

    def write(
        self,
        head: Head,
        pieces: Callable[[], Sequence[Piece]],
        size: int = SMALL_BYTES,
        owner: str | None = None,
        *,
        client: str = "",
        refused: Callable[[str], object] = lambda why: None,
    ) -> Future[bool]:
        if head.state == "parked" and not self.is_dead:
            park = Park(head, pieces())

            def answered(written: Future[bool]) -> None:
                if written.result():
                    self.store.park(head, park.pieces, owner)

            park.written.add_done_callback(answered)
            self._parks.append(park)
            self.on_park(park)
            return park.written
        done: Future[bool] = Future()
        try:
            if not self.is_dead:
                self.store.write(head, pieces(), owner)
            done.set_result(not self.is_dead)
        except TakenAway:
            done.set_result(False)
        return done

    async def is_written(self, writing: Future[bool], bound: float = 0.0) -> bool:
        return await asyncio.shield(asyncio.wrap_future(writing))

    async def asked(self, ask: Callable[[JournalStore], Any], default: Any) -> Any:
        if self.is_dead:
            raise StoreError("the broker is dead")
        return ask(self.store)

    def do(self, work: Callable[[JournalStore], object]) -> Future[None] | None:
        done: Future[None] = Future()

        def behind(_: object = None) -> None:
            if not self.is_dead:
                work(self.store)
            done.set_result(None)

        # Behind what is to be written before.
        waits = [park.written for park in self._parks if not park.written.done()]
        if waits:
            waits[-1].add_done_callback(behind)
        else:
            behind()
        return done


class MemoryKeeper(Keeper):
    """Keeps runs of one broker. To be closed by the last one of those that share a store.

    Args:
        on_park: As for `MemoryJournals`.
        settings: Which runs are kept.
        before: The keeper of the broker that has died.
    """

    def __init__(
        self,
        on_park: Callable[[Park], None],
        settings: JournalSettings = AT_ONCE,
        before: "MemoryKeeper | None" = None,
    ) -> None:
        if before is None:
            self._stack = contextlib.ExitStack()
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            file = self._folder / "journals.sqlite3"
            self.store = opened_journals(file, lambda: [bytes(range(32))], settings)
            self._stack.callback(self.store.close)
        else:
            self._stack, self._folder, self.store = before._stack, before._folder, before.store
        self.owner = Owner(self._folder)
        self._stack.callback(self.owner.close)
        self.journals = MemoryJournals(on_park, self.store)
        super().__init__(self.journals, settings, self.owner)

    def taken_elsewhere(self, park: Park) -> None:
        """Has another broker take a parked run, as soon as it is written."""
        assert self.store.answer(park.head.id, "accepted") is not None
        assert self.store.take(park.head.id, ELSEWHERE) is not None
        park.is_taken = True

    def woken(self, park: Park, verdicts: Mapping[int, Verdict]) -> KeptRun:
        """Takes a parked run with its answers; one that another broker has taken when that one has died."""
        run, own = park.head.id, self.owner.name
        if park.is_taken:
            kept = self.taken(self.store, run, lambda store: store.adopt(run, ELSEWHERE, own))
        else:
            answers = {QuestionId(call): verdict.value for call, verdict in verdicts.items()}
            assert self.store.answer(run, answers) is not None
            kept = self.taken(self.store, run, lambda store: store.take(run, own))
        return kept

    def cpu_ms(self, park: Park) -> int:
        """What CPU time a run had used when it was parked."""
        return self.store.head(park.head.id).cpu_ms

    def adopted(self, dead: "MemoryKeeper") -> list[KeptRun]:
        """Takes the runs of a broker that has died, and lets its parked ones wait for people alone."""
        for run, owner, resumed in self.store.held():
            assert dead.owner.is_own(owner)
            self.store.release(run, resumed, owner, is_lost=True)
        dead_name, own = dead.owner.name, self.owner.name
        runs = [run for run, owner in self.store.owned() if owner == dead_name]
        kept = [
            self.taken(self.store, run, lambda store, run=run: store.adopt(run, dead_name, own))
            for run in runs
        ]
        return [run for run in kept if run is not None]

    async def die(self) -> None:
        """Writes nothing any more; its sessions, and the calls that they have, are gone."""
        self.journals.is_dead = True
        await self.held.close()

    def close(self) -> None:
        """Closes the store, and removes it."""
        self._stack.close()
