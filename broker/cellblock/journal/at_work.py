"""At_work has the calls of parked runs whose tools are at work: the sessions are this broker's, which goes on with
them.

What they come to is written down with the run, and so is what their servers ask meanwhile; what is said to that is
read there. If this broker dies first, they are calls that may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from cellblock.base.database import StoreError
from cellblock.base.tasks import at_most
from cellblock.journal.journals import Journals
from cellblock.journal.owner import RunOwner
from cellblock.journal.parked import Given, ParkedQuestion
from cellblock.journal.rows import (
    WAITING,
    OneRunFailed,
    Piece,
    answers_piece,
    asked_piece,
    sent_piece,
    waiting_in,
)
from cellblock.journal.store import JournalStore

logger = logging.getLogger("cellblock.journal")

AGAIN_SECONDS: Final = 2.0
"""Passes before an answer that could not be written is written again: the disk may have room by then."""

LEAVE_BOUND_SECONDS: Final = 2.0
"""Bounds the wait for tools when the broker stops, as for those of runs that have a process."""

CANCEL_BOUND_SECONDS: Final = 2.0
"""Bounds the time from cancelling calls to giving up on their tasks; the SDK sends its cancel notice in this time."""

CLAIM_SECONDS: Final = 10.0
"""Bounds the wait for a client that has not yet heard that its run is parked, when the tools have answered already."""


@dataclass(eq=False, slots=True)
class OpenQuestion:
    """Describes a question of a server that waits in its session for an answer."""

    asked: ParkedQuestion
    answer: asyncio.Future[Given | None]
    """Holds the answer when it is there; None where the call is over."""

    def over(self) -> None:
        """Hears that the call of the question is over: there is no answer."""
        if not self.answer.done():
            self.answer.set_result(None)

    def answered(self, given: Given) -> None:
        """Takes an answer to what a tool at work asks; the first one counts."""
        if not self.answer.done():
            self.answer.set_result(given)


@dataclass(eq=False, slots=True)
class _Held:
    """Holds one run's calls; `pieces` are not written yet, `questions` by their numbers not answered."""

    run: str
    turn: int
    calls: set[asyncio.Task[None]]
    asks: bool
    pieces: list[Piece] = field(default_factory=list[Piece])
    questions: dict[int, OpenQuestion] = field(default_factory=dict[int, OpenQuestion])
    is_asking: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiters: int = 0
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    carrying: asyncio.Task[None] | None = None


class CallsAtWork:
    """Owns the tasks of calls whose runs have no process meanwhile.

    Args:
        journals: Where the runs are written down.
        owner: Names this broker.

    Attributes:
        on_ready: Is told of each run that waits for nobody any more, and for which nobody waits here.
    """

    def __init__(self, journals: Journals, owner: RunOwner) -> None:
        self.on_ready: Callable[[str], None] = lambda run_id: None
        self.is_closed = False
        self._journals = journals
        self._owner = owner
        self._held: dict[str, _Held] = {}
        self._beside: set[asyncio.Task[None]] = set()

    def hold(
        self, run_id: str, turn: int, calls: Sequence[asyncio.Task[None]], *, asks: bool, is_waited_for: bool
    ) -> None:
        """Takes over the calls of a parked run whose tools are at work.

        Args:
            run_id: Their run.
            turn: As it is parked.
            calls: Their tasks.
            asks: Whether it waits for people, too.
            is_waited_for: Whether somebody here will wait until they are `done`.
        """
        held = self._held[run_id] = _Held(run_id, turn, set(calls), asks)
        if not is_waited_for:
            held.claimed.set()
        held.carrying = asyncio.create_task(self._carry(held), name="calls of a parked run")

    def came(self, run_id: str, call_id: int, piece: Piece) -> None:
        """Takes the answer of a call, before its task ends; what its server still asks needs none."""
        if (held := self._held.get(run_id)) is not None:
            held.pieces.append(piece)
            for question in [*held.questions.values()]:
                if question.asked.call == call_id:
                    self._is_over(held, question)

    def asks(self, run_id: str, question: OpenQuestion, *, is_written: bool) -> None:
        """Takes a question of a server; one that came when the run was parked is written down."""
        if (held := self._held.get(run_id)) is not None:
            held.questions[question.asked.number] = question
            held.is_asking.set()
            if not is_written:
                held.pieces.append(asked_piece(question.asked))
                self._do(self._write(held))

    def asks_no_more(self, run_id: str, question: OpenQuestion) -> None:
        """Hears that a question needs no answer any more; nobody is asked it from now on."""
        held = self._held.get(run_id)
        if held is not None and question.asked.number in held.questions:
            self._is_over(held, question)
            self._do(self._write(held))

    async def sends(self, run_id: str, call_id: int) -> None:
        """Waits until the journal says that a call goes on with its answers: its server may do what it is to do."""
        if (held := self._held.get(run_id)) is not None:
            held.pieces.append(sent_piece(call_id))
            await self._write(held)

    def told(self, run_id: str, answers: Mapping[int, Given]) -> None:
        """Gives servers their answers, by the numbers of the questions; they are written down."""
        if (held := self._held.get(run_id)) is not None:
            for number in [number for number in held.questions if number in answers]:
                held.questions.pop(number).answered(answers[number])
            self._note_asking(held)

    def holds(self, run_id: str) -> bool:
        """Says whether calls of a run are at work here."""
        return run_id in self._held

    @property
    def carrying(self) -> list[asyncio.Task[None]]:
        """Returns the tasks that end when the tools of a run have answered, and that is written."""
        return [held.carrying for held in self._held.values() if held.carrying is not None]

    def is_all(self, run_id: str | None) -> bool:
        """Says whether a run waits for nothing but calls that are at work here."""
        held = None if run_id is None else self._held.get(run_id)
        return held is not None and not held.asks and not held.questions

    @contextlib.asynccontextmanager
    async def done(self, run_id: str) -> AsyncGenerator[bool]:
        """Waits until no call of a run is at work here; the run is this broker's to take inside the block. Gives
        whether a server asks something before that: then it is not."""
        held = self._held.get(run_id)
        if held is None or held.carrying is None:
            yield False
            return
        held.waiters += 1
        held.claimed.set()
        asking = asyncio.create_task(held.is_asking.wait())
        try:
            await asyncio.wait([held.carrying, asking], return_when=asyncio.FIRST_COMPLETED)
            yield not held.carrying.done()
        finally:
            asking.cancel()
            held.waiters -= 1
            if not held.waiters and held.carrying.done():
                # Of a run that was taken, nothing is left to release.
                self._do(self._release(held))

    def cancel(self, run_id: str) -> None:
        """Cancels the calls of a run that has been ended; their servers are told."""
        if (held := self._held.get(run_id)) is not None:
            # Nothing of it is written: another broker may go on with what is asked in rounds.
            while held.questions:
                held.questions.popitem()[1].over()
            for call in held.calls:
                # A second cancellation would cut off the SDK while it sends that notification.
                if not call.cancelling():
                    call.cancel()

    async def look(self) -> None:
        """Cancels the calls of runs that others have ended, and gives servers what others have answered. Raises
        StoreError."""
        if self._held:
            rows = await self._journals.asked(lambda store: store.held(), [])
            waiting = {(run, turn) for run, owner, turn in rows if self._owner.is_own(owner)}
            for held in list(self._held.values()):
                if (held.run, held.turn) not in waiting:
                    self.cancel(held.run)
                elif held.questions:
                    with contextlib.suppress(OneRunFailed):
                        self.told(held.run, await self._journals.asked(partial(_answers, held.run), {}))

    async def close(self) -> None:
        """Gives the tools a moment, and cancels what is left: who goes on with a run is told that it may have run."""
        self.is_closed = True
        if calls := [call for held in self._held.values() for call in held.calls]:
            await asyncio.wait(calls, timeout=LEAVE_BOUND_SECONDS)
        carrying = self.carrying
        for run_id in list(self._held):
            self._held[run_id].claimed.set()
            self.cancel(run_id)
        if carrying:
            await asyncio.wait(carrying, timeout=CANCEL_BOUND_SECONDS)
        for task in (*carrying, *self._beside):
            task.cancel()

    # ---- inside --------------------------------------------------------------------------------------

    async def _carry(self, held: _Held) -> None:
        while held.calls:
            _, held.calls = await asyncio.wait(held.calls, return_when=asyncio.FIRST_COMPLETED)
            await self._write(held)
        async with at_most(CLAIM_SECONDS):
            await held.claimed.wait()
        if not held.waiters:
            await self._release(held)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _is_over(self, held: _Held, question: OpenQuestion) -> None:
        """Ends a question, of which whoever looks at the run is told that it was dismissed."""
        del held.questions[question.asked.number]
        question.over()
        held.pieces.append(answers_piece({question.asked.number: "cancelled"}))
        self._note_asking(held)

    def _note_asking(self, held: _Held) -> None:
        if not held.questions:
            held.is_asking.clear()

    async def _write(self, held: _Held) -> None:
        """Writes the answers that have come; as often as it takes, since they are nowhere else."""
        # One at a time: who lets the run go on must know that all is written.
        async with held.writing:
            await self._write_all(held)

    async def _write_all(self, held: _Held) -> None:
        while pieces := held.pieces:
            held.pieces = []
            try:
                if not await self._journals.asked(partial(self._added, held, pieces), default=False):
                    self.cancel(held.run)
            except OneRunFailed as error:
                logger.warning("an answer for run %s is lost: %s", held.run, error)
            except StoreError as error:
                logger.warning("an answer for run %s cannot be written yet: %s", held.run, error)
                held.pieces[:0] = pieces
                await asyncio.sleep(AGAIN_SECONDS)

    def _added(self, held: _Held, pieces: Sequence[Piece], store: JournalStore) -> bool:
        return store.add_answers(held.run, held.turn, self._owner.name, pieces)

    async def _release(self, held: _Held) -> None:
        if self._held.get(held.run) is held:
            del self._held[held.run]
        # As often as it takes: nobody else lets it go on while this broker lives. One that is held anew was taken.
        while held.run not in self._held:
            try:
                is_ready = await self._journals.asked(
                    lambda store: store.release(held.run, held.turn, self._owner.name), default=False
                )
            except OneRunFailed as error:
                logger.warning("run %s cannot go on: %s", held.run, error)
                return
            except StoreError as error:
                logger.warning("run %s cannot go on yet: %s", held.run, error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if is_ready and not self.is_closed:
                self.on_ready(held.run)
            return


def _answers(run_id: str, store: JournalStore) -> Mapping[int, Given]:
    found = store.read(run_id, kinds=WAITING)
    return {} if found is None or found[0].state != "parked" else waiting_in(found[1])[1]
