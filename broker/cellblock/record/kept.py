"""Kept watches one run, and has the journals write it down on its way, when it is parked, and at its end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakSet

from cellblock.base.budget import OverBudget
from cellblock.base.database import StoreError
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.questions import Given, QuestionId, Round, unpack_round
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.state import JournalMode, JournalSettings
from cellblock.record.held_calls import HeldCalls
from cellblock.record.journal import BUDGET, Journal, NotYet
from cellblock.record.journals import SMALL_BYTES, Journals
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.record.rows import (
    WAITING,
    AnyPiece,
    Foreign,
    Head,
    Piece,
    RunOwner,
    answer_piece,
    events_piece,
    late_answer_piece,
    needed_in,
    recording_in,
    request_piece,
    sending_piece,
    sent_piece,
    waiting_in,
    whole,
)
from cellblock.record.store import JournalStore
from cellblock.record.views import head_data, shown
from cellblock.run.board import Data, LiveRun, whole_run
from cellblock.run.events import CallFacts, RunFacts
from cellblock.run.hook import LOST, NOT_PARKED, REFUSED_FOR_NOW, KeptRun, OpenQuestion, Parked
from cellblock.run.outcome import end_not_written
from cellblock.run.policy.asking import EarlierQuestions, Verdict, flow_of
from cellblock.run.response import RunResponse
from cellblock.tools.upstream.registry import Registry

Step = tuple[Callable[[], Piece], int]
"""What makes a piece, in the journals' thread, since packing a large input takes milliseconds; and about how many bytes
it has."""

logger = logging.getLogger("cellblock.journal")


class Kept(KeptRun):
    """Watches one run, and has it written at its end, when it is parked, and, where it is durable, on its way."""

    keeps: JournalMode = "all"
    config: str = ""

    def __init__(
        self,
        journals: Journals,
        settings: JournalSettings,
        principal: str,
        owner: RunOwner,
        journal: Journal,
        held: HeldCalls,
        head: Head | None = None,
    ) -> None:
        self._journals = journals
        self._settings = settings
        self._journal = self._limited(journal)
        self.principal = principal
        self._owner = owner
        self._held = held
        self._head = head
        self._is_written = self._was_written = head is not None
        self.run_id = "" if head is None else head.id
        self._begun: Future[bool] | None = None
        self._writing: Future[bool] | None = None
        self._events = 0
        self._steps = list[Step]()

    @property
    def journal(self) -> Journal:
        return self._journal

    def run_accepted(self, run: RunFacts) -> None:
        self.run_id = run.id
        if self._head is None:
            self._head = Head(run.id, self.principal, run.accepted_at, state="running")
        # Of one that goes on: when it was first accepted.
        run.accepted_at = self._head.began

    def run_started(self, run: RunFacts) -> None:
        # Of one that is written down already, others are told before its next call that they cannot go on with it.
        if self.is_durable and (self._is_written or self.journal.lost is None):
            self._begin()

    def _begin(self) -> None:
        """Has what there is of the run written down, and from now on what comes. Raises ValueError as `snapshot`."""
        if not self._is_written:
            begun = self.journal.snapshot()
            _, self._events = self.journal.events_from(0)
            self._write(lambda: _recorded(lambda: begun), self.journal.size + len(begun.body))
            self._begun = self._writing
        self.is_durable = self._is_written = True
        self.journal.on_change = self._changed

    async def leave(self) -> bool:
        """Has the run written down as it goes, in the midst of it; says whether it is certain that it is."""
        if self.journal.lost is not None or self._is_written != self.is_durable:
            return False
        try:
            self._begin()
        except (ValueError, OSError):
            return False
        return self._begun is not None and await self._journals.is_written(self._begun)

    def run_ended(self, run: RunFacts) -> None:
        self.journal.on_change = None
        # What is still to be written of it has them; a large input would stay as long as anybody knows of the run.
        self._steps = []
        is_parked = run.response is not None and run.response.parked
        is_kept = self.keeps == "all" or (self.keeps == "failed" and run.outcome != "ok")
        is_nothing = not self._is_written and (run.leased is None or not is_kept)
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
        await self._certainly(partial(sending_piece, call_id))

    async def sends(self, call_id: int) -> None:
        await self._certainly(partial(sent_piece, call_id))

    async def _certainly(self, step: Callable[[], Piece]) -> None:
        """Writes a step that must be known before the call goes on. Raises ToolCallError: That is not certain."""
        if self.journal.on_change is None:
            return
        if self.journal.lost is None:
            self._write_steps(step)
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
        raise ToolCallError(
            "The call was not made: the run is durable, and it could not be written down that the call is made.",
            hint="Look whether Cellblock's state directory is full or its PostgreSQL is away, or run the script "
            "without durable.",
            certainty=Certainty.NOT_STARTED,
            summary="not written down",
        )

    def _end_journal(self) -> None:
        self.is_durable, self.journal.on_change, self._steps = False, None, []

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

    def park(
        self,
        parked: Parked,
        used_ms: int,
        calls: Sequence[asyncio.Task[None]],
        asked: Sequence[OpenQuestion],
    ) -> Awaitable[bool]:
        assert self._head is not None
        recording = replace(self.journal.snapshot(decoded=False), used_ms=used_ms)
        parked = replace(parked, config=self.config)
        self._head = replace(
            self._head,
            state="parked",
            turn=self.turn + 1,
            expires=time.time() + self._settings.expire_ms / 1000,
            calls=len(recording.calls),
            is_answered=False,
            owner=None,
        )
        try:
            # Before it is written: others are to see whether the broker of its calls lives.
            self._head = replace(self._head, owner=self._owner.name if calls else None)
        except OSError as error:
            logger.warning("a run cannot be parked: %s", error)
            return self._is_ended()
        self._write(
            lambda: [*_recorded(lambda: recording), Piece("parked", parked.pack())],
            self.journal.size + len(recording.body),
        )
        if calls:
            self._held.hold(self.run_id, self.resumed, calls, asked)
        return self._is_parked()

    async def _is_parked(self) -> bool:
        return await self._is_done() or await self._is_ended()

    async def _is_ended(self) -> bool:
        """Ends a run that could not be parked; a slow disk may write the park later, which is ended behind it."""
        assert self._head is not None
        self._head = replace(self._head, state="running", owner=None, expires=None)
        self.take_back(NOT_PARKED)
        return False

    def take_back(self, outcome: str) -> None:
        run_id = self.run_id
        self._journals.do(lambda store: store.end(run_id, outcome))
        self._held.cancel(run_id)

    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        self._held.came(self.run_id, call_id, late_answer_piece(call_id, call, body, ok=ok))

    def asks(self, question: OpenQuestion) -> None:
        self._held.asks(self.run_id, question)

    def asks_no_more(self, question: OpenQuestion) -> None:
        self._held.asks_no_more(self.run_id, question)

    def goes_on(self) -> None:
        recording = replace(self.journal.snapshot(), response=None, ended=None, used_ms=self.used_ms)
        if self.journal.on_change is not None:
            # What was noted since the last step: the next one is of another journal.
            events, _ = self.journal.events_from(self._events)
            self._write_steps(partial(events_piece, events), len(events))
        self.journal.let_go()
        self._journal = self._limited(Journal(recording, self.client))
        self._events = 0
        self.resumed += 1
        if self._head is not None:
            self._head = replace(self._head, resumed=self.resumed)

    def _limited(self, journal: Journal) -> Journal:
        # What is larger could never be written, and each call of a durable run would wait for it.
        journal.most_bytes = min(journal.most_bytes, self._settings.total_bytes)
        return journal

    def parked(self) -> None:
        head, used = self._head, self.earlier_cpu_ms
        assert head is not None
        self._journals.do(lambda store: store.set_cpu(head.id, head.turn, used))

    def _changed(self, call: RecordedCall) -> None:
        """Writes down the answer of a call, for which nobody need wait; a request is written with what comes of it."""
        events, self._events = self.journal.events_from(self._events)
        if call.ok is None:
            self._steps.append((partial(request_piece, call, events), len(call.input) + len(events)))
        else:
            self._write_steps(partial(answer_piece, call, events), len(call.answer) + len(events))

    def _write_steps(self, last: Callable[[], Piece], size: int = 0) -> None:
        """Writes a step of the run, behind the steps that are not written yet."""
        steps, taken = self._steps, 0
        steps.append((last, size))

        def take() -> list[AnyPiece]:
            nonlocal taken
            taken = len(steps)
            return [make() for make, _ in steps[:taken]]

        def written(writing: Future[bool]) -> None:
            # Told in the thread that writes, before the next write: no other step has gone meanwhile.
            if writing.result():
                del steps[:taken]

        self._write(take, sum(size for _, size in [*steps])).add_done_callback(written)

    def _write(self, make: Callable[[], list[AnyPiece]], size: int = 0) -> Future[bool]:
        assert self._head is not None
        owner = self._owner.name if self._is_written or self._head.state == "running" else None
        self._writing = self._journals.write(
            self._head, make, SMALL_BYTES + size, owner, client=self.client, refused=self._note_refusal
        )
        return self._writing

    def _note_refusal(self, why: str) -> None:
        self.refusal = why

    async def _is_done(self) -> bool:
        return self._writing is not None and await self._journals.is_written(self._writing)


def _of_ended(run: RunFacts, principal: str, journal: Journal) -> list[AnyPiece]:
    facts = {**whole_run(LiveRun(run)), "kept": True, "principal": principal, "script": run.code}
    if run.response is not None:
        facts["logs"] = [entry.model_dump(by_alias=True) for entry in run.response.logs]
        facts["diagnostics"] = [entry.as_json() for entry in run.response.diagnostics]
    return [Piece("facts", json.dumps(facts).encode()), *_recorded(lambda: journal.snapshot(decoded=False))]


def _recorded(snapshot: Callable[[], Recording]) -> list[AnyPiece]:
    try:
        return whole(snapshot())
    except ValueError as error:
        # It was too large, or its script has texts without UTF-8: what a person looks at is kept all the same.
        logger.info("a run is kept without a recording: %s", error)
        return []


MAX_SHOWN: Final = 100
"""Bounds the kept runs that the dashboard lists."""


class Keeper:
    """Opens the watchers of runs that may be kept, and gives those runs that are.

    Args:
        journals: Where they are kept.
        settings: Whose runs are.
        owner: Names the broker, for those who look whether it lives.
        servers: Says which the broker has; None: no run needs any.
        config: The broker's configuration file; empty where it has none.
    """

    def __init__(
        self,
        journals: Journals,
        settings: JournalSettings,
        owner: RunOwner,
        servers: Registry | None = None,
        config: str = "",
    ) -> None:
        self._journals = journals
        self.settings = settings
        self._owner = owner
        self._servers, self._config = servers, config
        self.held = HeldCalls(journals, owner)
        self._may_be_left = WeakSet[Kept]()

    def use(self, settings: JournalSettings) -> None:
        """Takes over other settings, for runs that begin from now on."""
        self.settings = settings
        self._journals.use(settings)

    def opened(
        self, principal: str, *, client: str, may_park: bool, durable: bool, may_leave: bool = False
    ) -> KeptRun | None:
        """Gives what watches a new run of a client; None where it is not to be written down. See `RunKeeper`."""
        mode = self.settings.for_client(principal)
        if mode == "off" or (mode == "parked" and not (may_park or durable or may_leave)):
            return None
        kept = self._kept(principal, Journal(client=client))
        kept.keeps, kept.client = mode, client
        kept.is_durable = durable or mode == "all"
        kept.parks = may_park or durable
        if may_leave:
            self._may_be_left.add(kept)
        return kept

    async def leave(self, run_id: str) -> bool:
        """Has a run that its client leaves written down as it goes; says whether it is."""
        kept = next((one for one in self._may_be_left if one.run_id == run_id), None)
        return kept is not None and await kept.leave()

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
            NotYet: It was not taken; it can be when others hold less, and its servers have started.
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
            # One over a client's share counts as that: an earlier release may have written it.
            with BUDGET.holding(client, min(head.bytes, BUDGET.each)):
                self._refuse_without(*needed_in(store.read(run_id, kinds=("recording",)), parked))
                found = take(store)
                if found is None:
                    return None
                head, kept = found
                recording = recording_in(kept)
            if recording is None:
                raise UnreadableRecording(
                    "The run was written down without a recording.", hint="Run the script again."
                )
            return self._reopened(head, kept, Journal(recording, client))
        except OverBudget as error:
            raise NotYet(str(error)) from None
        except UnreadableRecording as error:
            logger.warning("run %s cannot go on: %s", run_id, error)
            store.give_up(run_id, self._owner.name, LOST)
            return None

    def _refuse_without(self, needed: Iterable[tuple[str, str]], reached: Mapping[str, str]) -> None:
        if (servers := self._servers) is None:
            return
        for server, tool in needed:
            if not servers.knows(server, tool):
                what = f"its tool {tool}" if tool and servers.knows(server) else "it"
                raise Foreign(f"it needs the server {server}, and this process does not have {what}")
            if why := servers.absence(server):
                raise Foreign(f"it needs the server {server}, which is not connected here: {why}")
            if why is not None:
                raise NotYet(f"the server {server} still starts")
        for server, origin in reached.items():
            if origin and servers.origin(server) not in ("", origin):
                raise Foreign(f"its server {server} has another command or URL in this process")

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
        kept = Kept(self._journals, self.settings, principal, self._owner, journal, self.held, head)
        kept.config = self._config
        return kept

    async def recent(self) -> list[Data]:
        """Returns the newest kept runs of everybody, in short. Raises StoreError."""
        return [
            head_data(head)
            for head in await self._journals.asked(lambda store: store.heads(limit=MAX_SHOWN), [])
        ]

    async def recording(self, run_id: str) -> Recording | None:
        """Returns the recording of a kept run; None where there is none. Raises as `run`."""
        return await self._journals.read(run_id, lambda _, pieces: recording_in(pieces, decoded=True))

    async def run(self, run_id: str) -> Data | None:
        """Returns a kept run as `Board.run` does, with its script and owner; None when there is none.

        Raises:
            StoreError: It cannot be read.
            UnreadableRecording: Another release has made it.
        """
        return await self._journals.read(run_id, shown)


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
    flows = {one.call: flow_of(one) for one in parked.questions}
    labels = {call: flow.label for call, flow in flows.items() if flow is not None}
    return EarlierQuestions(parked.asked, parked.waited_ms, verdicts, logins, rounds, waited, labels)
