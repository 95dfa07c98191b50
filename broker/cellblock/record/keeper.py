"""Keeper keeps runs that have ended, as their clients' setting says: what a person looks at, and what replays.

A run counts from when it has a place: one that is refused before has done nothing, and its response says all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cellblock.base.offload.budget import OverBudget
from cellblock.base.questions import Given, QuestionId, Round, unpack_round
from cellblock.base.settings.journal import JournalSettings
from cellblock.record import pieces
from cellblock.record.held_calls import HeldCalls
from cellblock.record.journal import Journal
from cellblock.record.journals import Journals
from cellblock.record.kept import Kept
from cellblock.record.owner import RunOwner
from cellblock.record.recording import UnreadableRecording
from cellblock.record.room import ROOM, NoRoom
from cellblock.record.rows import WAITING, Foreign, Head, Piece, waiting_in
from cellblock.record.store import JournalStore
from cellblock.record.views import head_data, shown
from cellblock.run.board import Data
from cellblock.run.hook import KeptRun
from cellblock.run.parked import LOST, Parked
from cellblock.run.policy.asking import EarlierQuestions, Verdict

logger = logging.getLogger("cellblock.journal")

MAX_SHOWN: Final = 100
"""Bounds the kept runs that the dashboard lists."""


class Keeper:
    """Opens the watchers of runs that may be kept, and gives those runs that are.

    Args:
        journals: Where they are kept.
        settings: Whose runs are.
        owner: Names the broker, for those who look whether it lives.
        knows: Says whether the broker has a server, connected or not, and a tool of it; an empty tool is any.
    """

    def __init__(
        self,
        journals: Journals,
        settings: JournalSettings,
        owner: RunOwner,
        knows: Callable[[str, str], bool] = lambda server, tool: True,
    ) -> None:
        self._journals = journals
        self.settings = settings
        self._owner = owner
        self._knows = knows
        self.held = HeldCalls(journals, owner)

    def use(self, settings: JournalSettings) -> None:
        """Takes over other settings, for runs that begin from now on."""
        self.settings = settings
        self._journals.use(settings)

    def opened(self, principal: str, *, client: str, may_park: bool, durable: bool) -> KeptRun | None:
        """Gives what watches a new run of a client; None where it is not to be written down. See `RunKeeper`."""
        mode = self.settings.for_client(principal)
        if mode == "off" or (mode == "parked" and not (may_park or durable)):
            return None
        kept = self._kept(principal, Journal.recording(client))
        kept.keeps, kept.client = mode, client
        kept.is_durable = durable or mode == "all"
        kept.parks = may_park or durable
        return kept

    def taken(
        self,
        store: JournalStore,
        run_id: str,
        take: Callable[[JournalStore], tuple[Head, list[Piece]] | None],
    ) -> Kept | None:
        """Takes a run to go on with, and reads it, in the journals' thread: it may have megabytes.

        Args:
            store: Where it is.
            run_id: The run.
            take: Takes it, and gives what was written of it; None where there is nothing to take.

        Returns:
            What watches it; None where it was not taken, or cannot go on and is ended.

        Raises:
            NoRoom: It was not taken; it can be when others hold less.
            Foreign: It was not taken; it needs what this broker does not have.
            StoreError: As `take`.
        """
        waiting = store.read(run_id, kinds=WAITING)
        if waiting is None:
            return None
        head, kept = waiting
        parked = waiting_in(kept)[0] if kept else None
        client = (parked.client if parked is not None else "") or head.principal
        try:
            with ROOM.holding(client, head.bytes):
                self._refuse_without(pieces.needed_in(store.read(run_id, kinds=("recording",)), parked))
                found = take(store)
                if found is None:
                    return None
                head, kept = found
                recording = pieces.recording_in(kept)
            if recording is None:
                raise UnreadableRecording(
                    "The run was written down without a recording.", hint="Run the script again."
                )
            return self._reopened(head, kept, Journal.resuming(recording, client))
        except OverBudget as error:
            raise NoRoom(str(error)) from None
        except UnreadableRecording as error:
            logger.warning("run %s cannot go on: %s", run_id, error)
            store.give_up(run_id, self._owner.name, LOST)
            return None

    def _refuse_without(self, needed: Iterable[tuple[str, str]]) -> None:
        for server, tool in needed:
            if not self._knows(server, tool):
                what = f"its tool {tool}" if tool and self._knows(server, "") else "it"
                raise Foreign(f"it needs the server {server}, and this process does not have {what}")

    def _reopened(self, head: Head, kept: Sequence[Piece], journal: Journal) -> Kept:
        """Gives the watcher of a run that goes on from its journal; the run is written down as it goes."""
        run = self._kept(head.principal, journal, head)
        run.keeps = self.settings.for_client(head.principal)
        run.is_durable = run.parks = True
        run.turn, run.resumed, run.adopted = head.turn, head.resumed, head.adopted
        run.earlier_cpu_ms = head.cpu_ms
        if any(piece.kind == "parked" for piece in kept):
            parked, answers = waiting_in(kept)
            run.earlier = _earlier(parked, answers)
            run.client, run.losses = parked.client, parked.losses
        return run

    def _kept(self, principal: str, journal: Journal, head: Head | None = None) -> Kept:
        return Kept(self._journals, self.settings, principal, self._owner, journal, self.held, head)

    async def recent(self) -> list[Data]:
        """Returns the newest kept runs of everybody, in short. Raises StoreError."""
        return [head_data(head) for head in await self._journals.heads(limit=MAX_SHOWN)]

    async def run(self, run_id: str) -> Data | None:
        """Returns a kept run as `Board.run` does, with its script and owner; None when there is none.

        Raises:
            StoreError: It cannot be read.
            UnreadableRecording: Another release has made it.
        """

        def look(store: JournalStore) -> Data | None:
            found = store.read(run_id)
            return None if found is None else shown(*found)

        return await self._journals.asked(look, None)


def _earlier(parked: Parked, answers: Mapping[QuestionId, Given]) -> EarlierQuestions:
    """Returns what became of the questions of a run that goes on: those before calls that were not made."""
    verdicts, logins = dict.fromkeys(parked.allowed, Verdict.ACCEPTED), dict[int, Verdict]()
    for question in parked.questions:
        given = answers.get(question.id)
        if isinstance(given, str) and not question.is_of_server:
            (logins if question.kind == "login" else verdicts)[question.call] = Verdict(given)
    rounds: dict[int, Round] = {}
    for question in parked.questions:
        if question.round:
            key, result = unpack_round(question.round)
            if question.call not in rounds or rounds[question.call].result != result:
                rounds[question.call] = Round(result, {})
            if question.id in answers:
                rounds[question.call].answers[key] = answers[question.id]
    waited = frozenset(question.call for question in parked.questions)
    return EarlierQuestions(parked.asked, parked.waited_ms, verdicts, logins, rounds, waited)
