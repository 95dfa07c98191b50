"""Kept watches one run, and has the journals write it down on its way, when it is parked, and at its end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from cellblock.apart.raw import RawJson
from cellblock.base.database import StoreError
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.config.journal import JournalMode, JournalSettings
from cellblock.execution.events import CallFacts, RunFacts
from cellblock.execution.keeping import REFUSED_FOR_NOW, KeptRun
from cellblock.execution.outcome import end_not_written
from cellblock.execution.response import RunResponse
from cellblock.journal import pieces
from cellblock.journal.at_work import CallsAtWork, OpenQuestion
from cellblock.journal.journal import Journal
from cellblock.journal.journals import SMALL_BYTES, Journals
from cellblock.journal.owner import RunOwner
from cellblock.journal.parked import CANCELLED, LOST, Parked
from cellblock.journal.recording import RecordedCall, Recording
from cellblock.journal.rows import AnyPiece, Head, Piece
from cellblock.journal.steps import Steps
from cellblock.journal.store import JournalStore
from cellblock.telemetry.board import LiveRun, whole_run

logger = logging.getLogger("cellblock.journal")


class Kept(KeptRun):
    """Watches one run, and has it written at its end, when it is parked, and, where it is durable, on its way."""

    keeps: JournalMode = "all"

    def __init__(
        self,
        journals: Journals,
        settings: JournalSettings,
        principal: str,
        owner: RunOwner,
        journal: Journal,
        at_work: CallsAtWork,
        head: Head | None = None,
    ) -> None:
        self._journals = journals
        self._settings = settings
        self._use(journal)
        self.principal = principal
        self._owner = owner
        self._at_work = at_work
        self._asks = self._client_waits = False
        self._head = head
        self._is_written = self._was_written = head is not None
        self.run_id = "" if head is None else head.id
        self._begun: Future[bool] | None = None
        self._writing: Future[bool] | None = None
        self._events = 0
        self._steps = Steps()
        self._is_here = asyncio.Event()
        self._is_here.set()
        self._take_back: Callable[[JournalStore], None] | None = None
        self._taking_back: Future[None] | None = None
        self._is_taken = False

    def run_accepted(self, run: RunFacts) -> None:
        self.run_id = run.id
        if self._head is None:
            self._head = Head(run.id, self.principal, run.accepted_at, state="running")

    def run_started(self, run: RunFacts) -> None:
        # Of one that is written down already, others are told before its next call that they cannot go on with it.
        if self.is_durable and (self._is_written or self.journal.lost is None):
            if not self._is_written:
                begun = self.journal.snapshot()
                self._write(lambda: _recorded(lambda: begun), len(begun.body))
                self._begun = self._writing
            self._is_written = True
            self.journal.on_change = self._changed

    def run_ended(self, run: RunFacts) -> None:
        self.journal.on_change = None
        # What is still to be written of it has them; a large input would stay as long as anybody knows of the run.
        self._steps = Steps()
        is_parked = run.response is not None and run.response.parked
        is_kept = self.keeps == "all" or (self.keeps == "failed" and run.outcome != "ok")
        is_nothing = not self._is_written and (run.leased is None or not is_kept)
        if self._take_back is not None and not is_parked:
            # Else its park might be answered later, of a run that is over.
            self._journals.do(self._take_back)
        if is_parked or self._head is None or self.is_left or is_nothing:
            self.journal.forget()
            return
        if self._was_written and run.outcome in REFUSED_FOR_NOW:
            # It is tried again: by this broker, or by another one when this dies first.
            return
        calls = len(run.calls)
        self._head = replace(
            self._head, ended=time.time(), outcome=run.outcome, calls=calls, state="ended", expires=None
        )
        # What is large is made in the thread.
        size = self.journal.size + len(run.code)
        if run.response is not None and isinstance(run.response.result, RawJson):
            size += len(run.response.result.raw)
        journal = self.journal
        writing = self._write(partial(_of_ended, run, self.principal, journal), size)
        writing.add_done_callback(lambda _: journal.forget())

    async def before_call(self, call_id: int) -> None:
        # While it is being parked, it may be others' to make: `park` and `unpark`, which are bounded, end the wait.
        await self._is_here.wait()
        if self._take_back is not None:
            # It may stand as parked, and be taken by others: a call might be made twice.
            if self._taking_back is None or self._taking_back.done():
                # Nobody knows it even now: the store was away.
                self._taking_back = self._journals.do(self._take_back)
            if self._taking_back is not None:
                await self._journals.is_over(self._taking_back)
            if self._take_back is not None:
                raise _not_written("it could not be written down that it goes on here after all")
            self._say_taken()
        if self._is_taken:
            raise _not_written("another broker goes on with the run")
        if self.journal.on_change is None:
            return
        if self.journal.lost is None:
            self._write_steps(partial(pieces.sending_piece, call_id))
            if await self._is_done():
                return
            if self._begun is not None and self._begun.done() and not self._begun.result():
                # Nothing of it is in the file, so nobody goes on with it.
                self._end_journal()
                return
        elif await self._is_given_up():
            # It holds too much to be recorded: it ends with its process from now on.
            self._end_journal()
            return
        raise _not_written("the run is durable, and it could not be written down that the call is made")

    def _end_journal(self) -> None:
        self.is_durable, self.journal.on_change, self._steps = False, None, Steps()

    async def _is_given_up(self) -> bool:
        """Says whether no broker goes on with the run from its journal, in which it then counts as lost."""
        try:
            return await self._journals.asked(
                lambda store: store.give_up(self.run_id, self._owner.name, LOST), default=True
            )
        except StoreError:
            return False

    async def named(self, response: RunResponse) -> RunResponse:
        head = self._head
        if head is None or not (response.parked or head.ended is not None):
            return response
        if response.parked or await self._is_done():
            usage = response.usage.model_copy(update={"run_id": head.id})
            return response.model_copy(update={"usage": usage})
        began = self._begun is None or not self._begun.done() or self._begun.result()
        if self.is_durable and self._is_written and began:
            told = [*response.diagnostics, end_not_written(head.id)]
            return response.model_copy(update={"diagnostics": told})
        return response

    async def park(self, recording: Recording, parked: Parked, turn: int) -> bool:
        assert self._head is not None
        # Is in the recording; what is noted from now on comes behind it, should the run go on here after all.
        events, self._events = self.journal.events_from(self._events)
        self._steps.add(partial(pieces.events_piece, events), len(events))
        known = self._steps.last
        self.turn = turn
        self._is_here.clear()
        # What servers ask is known where their calls are.
        self._asks = any(not question.is_of_server for question in parked.questions)
        self._client_waits = self.is_waited_for and not parked.questions
        expires = time.time() + self._settings.expire_ms / 1000
        self._head = replace(
            self._head,
            state="parked",
            turn=turn,
            expires=expires,
            calls=len(recording.calls),
            is_answered=False,
        )
        try:
            self._head = replace(self._head, owner=self._owner.name if parked.working else None)
            self._write(
                lambda: [*_recorded(lambda: recording), Piece("parked", parked.pack())],
                self.journal.size + len(recording.body),
            )
        except OSError as error:
            logger.warning("a run cannot be parked while its tools are at work: %s", error)
            self._running()
            self._is_here.set()
            return False
        if await self._is_done():
            self._steps.written(known)
            return True
        # A slow disk may write it later; what stands behind the write takes it back.
        head, owner = self._running(), self._unparked_owner()

        def take_back(store: JournalStore) -> None:
            if store.unpark(head, owner):
                self._steps.written(known)
            # Somebody may have been faster: the park was there for all to see.
            found = store.head(head.id)
            self._is_taken = found is not None and (found.state, found.owner) != ("running", owner)
            self._take_back = None

        self._take_back = take_back
        self._taking_back = self._journals.do(take_back)
        if self._taking_back is not None:
            loop = asyncio.get_running_loop()
            self._taking_back.add_done_callback(lambda _: loop.call_soon_threadsafe(self._say_taken))
        self._is_here.set()
        return False

    def _say_taken(self) -> None:
        """Tells the run, once, that it goes on elsewhere: somebody was faster than what was to take its park back."""
        if self._is_taken and self.on_taken is not None:
            on_taken, self.on_taken = self.on_taken, None
            on_taken()

    def hold(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._at_work.hold(
            self.run_id,
            self.turn,
            tasks,
            asks=self._asks,
            is_waited_for=self._client_waits,
        )

    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        self._at_work.came(self.run_id, call_id, pieces.late_answer_piece(call_id, call, body, ok=ok))

    def asks(self, question: OpenQuestion, *, is_written: bool) -> None:
        self._at_work.asks(self.run_id, question, is_written=is_written)

    async def sends(self, call_id: int) -> None:
        await self._at_work.sends(self.run_id, call_id)

    def asks_no_more(self, question: OpenQuestion) -> None:
        self._at_work.asks_no_more(self.run_id, question)

    def given_up(self) -> None:
        if self.is_waited_for and self._at_work.is_all(self.run_id):
            run_id = self.run_id
            self._journals.do(lambda store: store.end(run_id, CANCELLED))
            self._at_work.cancel(run_id)

    async def unpark(self) -> bool:
        head, owner = self._running(), self._unparked_owner()
        try:
            is_here = await self._journals.asked(lambda store: store.unpark(head, owner), default=True)
            if is_here:
                self._is_here.set()
            return is_here
        except StoreError as error:
            # It may have been taken elsewhere, and a call must not be made twice.
            logger.warning("a run that was to be parked ends: %s", error)
            return False

    def _running(self) -> Head:
        """Makes the run one that goes on here, and gives its row so."""
        assert self._head is not None
        self._head = replace(self._head, state="running", expires=None)
        self._is_written = self.is_durable
        return self._head

    def _unparked_owner(self) -> str | None:
        return self._owner.name if self.is_durable else None

    def goes_on(self, recording: Recording) -> None:
        if self.journal.on_change is not None:
            # What was noted since the last step: the next one is of another journal.
            events, _ = self.journal.events_from(self._events)
            self._write_steps(partial(pieces.events_piece, events), len(events))
        self.journal.let_go()
        self._use(Journal.resuming(recording, self.client))
        self._events = 0
        self.resumed += 1
        if self._head is not None:
            self._head = replace(self._head, resumed=self.resumed)

    def _use(self, journal: Journal) -> None:
        # What is larger could never be written, and each call of a durable run would wait for it.
        journal.most_bytes = min(journal.most_bytes, self._settings.total_bytes)
        self.journal = journal

    def parked(self) -> None:
        head, used = self._head, self.earlier_cpu_ms
        assert head is not None
        self._journals.do(lambda store: store.set_cpu(head.id, head.turn, used))

    def _changed(self, call: RecordedCall) -> None:
        """Writes down the answer of a call, for which nobody need wait; a request is written with what comes of it."""
        events, self._events = self.journal.events_from(self._events)
        if call.ok is None:
            self._steps.add(partial(pieces.request_piece, call, events), len(call.input) + len(events))
        else:
            self._write_steps(partial(pieces.answer_piece, call, events), len(call.answer) + len(events))

    def _write_steps(self, last: Callable[[], Piece], size: int = 0) -> None:
        """Writes a step of the run, behind the steps that are not written yet."""
        steps, taken = self._steps, 0
        steps.add(last, size)

        def take() -> list[AnyPiece]:
            nonlocal taken
            taken, found = steps.unwritten()
            return [*found]

        def written(writing: Future[bool]) -> None:
            if writing.result():
                steps.written(taken)

        self._write(take, steps.size).add_done_callback(written)

    def _write(self, make: Callable[[], list[AnyPiece]], size: int = 0) -> Future[bool]:
        assert self._head is not None
        owner = self._owner.name if self._is_written or self._head.state == "running" else None
        self._writing = self._journals.write(self._head, make, SMALL_BYTES + size, owner, client=self.client)
        return self._writing

    async def _is_done(self) -> bool:
        return self._writing is not None and await self._journals.is_written(self._writing)


def _not_written(why: str) -> ToolCallError:
    return ToolCallError(
        f"The call was not made: {why}.",
        hint="Look whether Cellblock's state directory is full or its PostgreSQL is away, or run the script without "
        "durable.",
        certainty=Certainty.NOT_STARTED,
        summary="not written down",
    )


def _of_ended(run: RunFacts, principal: str, journal: Journal) -> list[AnyPiece]:
    facts = {**whole_run(LiveRun(run)), "kept": True, "principal": principal, "script": run.code}
    if run.response is not None:
        facts["logs"] = [entry.model_dump(by_alias=True) for entry in run.response.logs]
        facts["diagnostics"] = [entry.as_json() for entry in run.response.diagnostics]
    return [Piece("facts", json.dumps(facts).encode()), *_recorded(lambda: journal.snapshot(decoded=False))]


def _recorded(snapshot: Callable[[], Recording]) -> list[AnyPiece]:
    try:
        return pieces.whole(snapshot())
    except ValueError as error:
        # It was too large, or its script has texts without UTF-8: what a person looks at is kept all the same.
        logger.info("a run is kept without a recording: %s", error)
        return []
