"""Held_calls has the calls of parked runs whose servers wait in their sessions for an answer: these are this broker's.

What they come to is written down with the run, and so is what their servers ask next; what is said to that is read
there. If this broker dies first, they are calls that may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.questions import Given, QuestionId
from cellblock.base.tasks import TaskSet, at_most
from cellblock.record.journals import Journals
from cellblock.record.rows import (
    WAITING,
    Head,
    OneRunFailed,
    Piece,
    RunOwner,
    answers_piece,
    asked_piece,
    waiting_in,
)
from cellblock.record.store import JournalStore
from cellblock.run.hook import OpenQuestion

logger = logging.getLogger("cellblock.journal")

AGAIN_SECONDS: Final = 2.0
"""Passes before what could not be written is written again: the disk may have room by then."""

LEAVE_BOUND_SECONDS: Final = 2.0
"""Bounds the wait for tools when the broker stops, as for those of runs that have a process."""

CANCEL_BOUND_SECONDS: Final = 2.0
"""Bounds the time from cancelling calls to giving up on their tasks; the SDK sends its cancel notice in this time."""


@dataclass(eq=False, slots=True)
class _Held:
    """Holds one run's calls, and the questions that are not answered."""

    run: str
    resumed: int
    calls: set[asyncio.Task[None]]
    questions: dict[QuestionId, OpenQuestion]
    pieces: list[Piece] = field(default_factory=list[Piece])
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class HeldCalls:
    """Owns the tasks of calls whose runs have no process meanwhile.

    Args:
        journals: Where the runs are written down.
        owner: Names this broker.

    Attributes:
        on_ready: Is told of each run that waits for nobody any more.
        on_change: Is told when something was written of one.
        carrying: The tasks that end when the calls of a run have ended, and that is written.
    """

    def __init__(self, journals: Journals, owner: RunOwner) -> None:
        self.on_ready: Callable[[str], None] = lambda run_id: None
        self.on_change: Callable[[], None] = lambda: None
        self.is_closed = False
        self._journals = journals
        self._owner = owner
        self._held: dict[str, _Held] = {}
        self.carrying, self._writing = TaskSet(), TaskSet()

    def hold(
        self,
        run_id: str,
        resumed: int,
        calls: Sequence[asyncio.Task[None]],
        questions: Sequence[OpenQuestion],
    ) -> None:
        """Takes over the calls of a run that is being parked, and what their servers ask."""
        asked = {question.asked.id: question for question in questions}
        held = self._held[run_id] = _Held(run_id, resumed, set(calls), asked)
        self.carrying.start(self._carry(held), name="calls of a parked run")

    def came(self, run_id: str, call_id: int, piece: Piece) -> None:
        """Takes the answer of a call, before its task ends; what its server still asks needs none."""
        if (held := self._held.get(run_id)) is not None:
            held.pieces.append(piece)
            for question in [one for one in held.questions if one.call == call_id]:
                self._is_over(held, question)

    def asks(self, run_id: str, question: OpenQuestion) -> None:
        """Takes a question of a server; one that came when the run was parked is written down."""
        held = self._held.get(run_id)
        if held is not None and question.asked.id not in held.questions and not question.answer.done():
            held.questions[question.asked.id] = question
            held.pieces.append(asked_piece(question.asked))
            self._writing.start(self._write(held))

    def asks_no_more(self, run_id: str, question: OpenQuestion) -> None:
        """Hears that a question needs no answer any more; nobody is asked it from now on."""
        held = self._held.get(run_id)
        if held is not None and question.asked.id in held.questions:
            self._is_over(held, question.asked.id)
            self._writing.start(self._write(held))

    def told(self, run_id: str, answers: Mapping[QuestionId, Given]) -> None:
        """Gives servers their answers, which are written down."""
        if (held := self._held.get(run_id)) is not None:
            for question in [question for question in held.questions if question in answers]:
                held.questions.pop(question).answered(answers[question])

    def cancel(self, run_id: str) -> None:
        """Cancels the calls of a run that has been ended; their servers are told."""
        if (held := self._held.get(run_id)) is not None:
            for call in held.calls:
                # A second cancellation would cut off the SDK while it sends that notification.
                if not call.cancelling():
                    call.cancel()
            # Nothing of it is written. Behind the calls: their servers are not to take it for an answer.
            while held.questions:
                held.questions.popitem()[1].answered(None)

    async def look(self) -> None:
        """Cancels the calls of runs that others have ended, and gives servers what others have answered. Raises
        StoreError."""
        if self._held:
            rows = await self._journals.asked(lambda store: store.held(), [])
            waiting = {(run, resumed) for run, owner, resumed in rows if self._owner.is_own(owner)}
            for held in list(self._held.values()):
                if (held.run, held.resumed) not in waiting:
                    self.cancel(held.run)
                elif held.questions:
                    with contextlib.suppress(OneRunFailed):
                        self.told(
                            held.run, await self._journals.read(held.run, _answers, kinds=WAITING) or {}
                        )

    async def close(self) -> None:
        """Gives the tools a moment, and cancels what is left: who goes on with a run is told that it may have run."""
        self.is_closed = True
        if calls := [call for held in self._held.values() for call in held.calls]:
            await asyncio.wait(calls, timeout=LEAVE_BOUND_SECONDS)
        for run_id in list(self._held):
            self.cancel(run_id)
        async with at_most(CANCEL_BOUND_SECONDS):
            await self.carrying.ended()
        self.carrying.cancel()
        self._writing.cancel()

    # ---- inside --------------------------------------------------------------------------------------

    async def _carry(self, held: _Held) -> None:
        while held.calls:
            _, held.calls = await asyncio.wait(held.calls, return_when=asyncio.FIRST_COMPLETED)
            await self._write(held)
        if self._held.get(held.run) is held:
            del self._held[held.run]
        is_ready = await self._patiently(
            held, lambda store: store.release(held.run, held.resumed, self._owner.name)
        )
        if is_ready and not self.is_closed:
            self.on_ready(held.run)

    def _is_over(self, held: _Held, question: QuestionId) -> None:
        """Ends a question, of which whoever looks at the run is told that it was dismissed."""
        held.questions.pop(question).answered(None)
        held.pieces.append(answers_piece({question: "cancelled"}))

    async def _write(self, held: _Held) -> None:
        # One at a time: who lets the run go on must know that all is written.
        async with held.writing:
            while pieces := held.pieces:
                held.pieces = []
                if not await self._patiently(held, partial(self._added, held, pieces)):
                    self.cancel(held.run)
                self.on_change()

    async def _patiently(self, held: _Held, work: Callable[[JournalStore], bool]) -> bool:
        """Does work with the store, as often as it takes: nobody else does it while this broker lives."""
        while True:
            try:
                return await self._journals.asked(work, default=False)
            except OneRunFailed as error:
                logger.warning("run %s cannot go on: %s", held.run, error)
                return False
            except StoreError as error:
                logger.warning("run %s cannot go on yet: %s", held.run, error)
                await asyncio.sleep(AGAIN_SECONDS)

    def _added(self, held: _Held, pieces: Sequence[Piece], store: JournalStore) -> bool:
        return store.add_answers(held.run, held.resumed, self._owner.name, pieces)


def _answers(head: Head, pieces: list[Piece]) -> Mapping[QuestionId, Given]:
    return waiting_in(pieces)[1] if head.state == "parked" else {}
