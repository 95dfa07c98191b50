"""Parked_runs lets runs go on that were written down: parked ones when people have answered, others when their broker
has died.

A run is one row of the journals' file, and whoever moves the row has the run: of several brokers that share a state
directory one goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError, InvalidRequest
from cellblock.base.tasks import TaskSet
from cellblock.daemon.login_looks import LoginLooks, Logins
from cellblock.daemon.parked_views import (
    ParkedRun,
    ended_meanwhile,
    kept_response,
    parked_response,
    parked_run,
)
from cellblock.execution.caller import Caller
from cellblock.execution.executor import Executor
from cellblock.execution.keeping import REFUSED_FOR_NOW, KeptRun
from cellblock.execution.response import RunResponse
from cellblock.frontend.service import ParkedStatus
from cellblock.journal.journals import Journals
from cellblock.journal.owner import RunOwner
from cellblock.journal.parked import CANCELLED, EXPIRED, LOST, Answer, Given, ParkedQuestion
from cellblock.journal.room import NoRoom
from cellblock.journal.rows import (
    KINDS,
    WAITING,
    Foreign,
    Head,
    OneRunFailed,
    Piece,
    open_questions,
)
from cellblock.journal.run_rows import MAX_LISTED
from cellblock.journal.store import UNENDED_SECONDS, JournalStore
from cellblock.policy.asking import Grantee
from cellblock.telemetry.keeper import Keeper, response_in

logger = logging.getLogger("cellblock.journal")

LOOK_SECONDS: Final = 2.0
"""Passes between two looks at what other processes have answered."""

ADOPT_SECONDS: Final = 30.0
"""Passes between two looks for runs whose broker has died."""

OUTCOME_SECONDS: Final = 660.0
"""Bounds the wait for the end of a run that goes on elsewhere: a run takes ten minutes at most as configured."""

OUTCOME_LOOK_SECONDS: Final = 0.25

MAX_WOKEN: Final = 8
"""Bounds the runs that go on at once without a client that waits: others want workers, too."""

AGAIN_SECONDS: Final = 2.0
"""Passes before a run goes on that found no worker."""


class ParkedRuns:
    """Has the runs of one state directory that wait. Owns the tasks of those that go on without a client.

    Args:
        journals: Where they are written down.
        keeper: Opens what watches them.
        owner: Names this broker.
        runs: Runs them.
        logins: Says when somebody has logged in.
    """

    def __init__(
        self, journals: Journals, keeper: Keeper, owner: RunOwner, runs: Executor, logins: Logins
    ) -> None:
        self._journals = journals
        self._keeper = keeper
        self._owner = owner
        self._runs = runs
        self._logins = LoginLooks(logins, journals, self.answer)
        self._awake: dict[str, asyncio.Task[RunResponse]] = {}
        self._places = asyncio.Semaphore(MAX_WOKEN)
        self._unsure: set[str] = set()
        self._here: Counter[str] = Counter()
        """Counts how often each run goes on here."""
        # Each waits until it expires: they are no more than the file holds.
        self._foreign: set[str] = set()
        self._taking = asyncio.Lock()
        self._leaving = False
        self._looking: asyncio.Task[None] | None = None
        self._at_work = keeper.at_work
        self._at_work.on_ready = self._is_ready
        self._waking = TaskSet()
        self.count = 0
        """Counts the runs that wait, at the last look."""

    def start(self) -> None:
        """Begins to look for what has been answered or lost."""
        self._looking = asyncio.create_task(self._look(), name="parked runs")

    async def quiet(self) -> None:
        """Takes no run any more, others do, and waits for those here that no client waits for, and for their tools."""
        async with self._taking:
            self._leaving = True
        while tasks := [*self._awake.values(), *self._at_work.carrying]:
            await asyncio.wait(tasks)

    async def stop_looking(self) -> None:
        """Wakes no run any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def close(self) -> None:
        """Waits for the runs that go on, which the executor has ended, and for tools that are at work."""
        await self._at_work.close()
        for task in (tasks := list(self._awake.values())):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- what people do ------------------------------------------------------------------------------

    async def waiting(self, principal: str | None = None, limit: int = MAX_LISTED) -> list[ParkedRun]:
        """Returns the runs that wait, the newest first. Raises StoreError.

        Args:
            principal: Whose; None: everybody's, for the user of this machine.
            limit: At most so many.
        """

        def look(store: JournalStore) -> list[ParkedRun]:
            found: list[ParkedRun] = []
            for head in store.heads(principal, limit=limit, state="parked"):
                with contextlib.suppress(StoreError):
                    if (read := store.read(head.id, kinds=WAITING)) is not None:
                        found.append(parked_run(*read))
            return found

        return await self._journals.asked(look, [])

    async def answer(
        self, run_id: str, answers: Mapping[int, Given] | Answer, principal: str | None = None
    ) -> ParkedRun | None:
        """Answers questions of a parked run, which goes on when all are answered, and its calls have ended.

        Args:
            run_id: The run.
            answers: By the numbers of the questions, or one for all that are open.
            principal: As for `waiting`.

        Returns:
            What is still asked; None when no such run is parked.

        Raises:
            StoreError: The answer is not written down.
        """
        found = await self._journals.asked(lambda store: store.answer(run_id, answers, principal), None)
        if found is None:
            return None
        head, parked, known = found
        self._at_work.told(run_id, known)
        if head.is_answered:
            await self._wake(run_id)
        return ParkedRun(
            id=head.id,
            principal=head.principal,
            began=head.began,
            expires=head.expires,
            questions=open_questions(head, parked, known),
            turn=head.turn,
            working=parked.working if head.owner is not None else (),
        )

    async def cancel(self, run_id: str, principal: str | None = None) -> bool:
        """Ends a parked run, and cancels its calls that are at work. Says whether there was one. Raises StoreError."""
        is_done = await self._journals.asked(
            lambda store: store.end(run_id, CANCELLED, principal), default=False
        )
        if is_done:
            self._at_work.cancel(run_id)
        return is_done

    async def outcome(self, run_id: str, principal: str | None = None) -> RunResponse | None:
        """Returns the response of a run that was parked, as soon as it has one; None when there is none to come.

        Raises:
            StoreError: It cannot be read.
        """
        until = time.monotonic() + OUTCOME_SECONDS
        while True:
            # Another broker may have it, or a client of this one that is back.
            head = await self._journals.asked(lambda store: store.head(run_id, principal), None)
            if head is not None and (task := self._awake.get(run_id)) is not None:
                response = await asyncio.shield(task)
                if not (response.parked and self._at_work.is_all(run_id)):
                    return response
            elif head is not None and head.state == "parked" and await self._waits_for_tools(head):
                # As long as it takes: their calls have bounds of their own.
                until = time.monotonic() + OUTCOME_SECONDS
            elif head is None or head.state != "running" or time.monotonic() >= until:
                break
            await asyncio.sleep(OUTCOME_LOOK_SECONDS)
        if head is None or head.state != "ended":
            return None

        def look(store: JournalStore) -> RunResponse | None:
            read = store.read(run_id, principal)
            return None if read is None else response_in(read[1])

        return await self._journals.asked(look, None)

    async def to_its_end(self, response: RunResponse, caller: Caller) -> RunResponse:
        """Waits, for a client that does not go away, while its run is parked for tools; gives its response. When this
        is cancelled, so is the run."""
        while response.parked and not caller.grantee.leaves and self._at_work.is_all(response.usage.run_id):
            run_id = response.usage.run_id or ""
            try:
                with _readable():
                    kept = await self._done(run_id)
            except asyncio.CancelledError:
                # It may have been taken in this moment, and nobody goes on with it.
                self._journals.do(
                    lambda store, run=run_id: (
                        store.end(run, CANCELLED) or store.give_up(run, self._owner.name, CANCELLED)
                    )
                )
                self._at_work.cancel(run_id)
                raise
            if self._at_work.is_closed:
                return response
            if kept is None:
                with _readable():
                    return await self.outcome(run_id) or ended_meanwhile(response)
            response = await self.go_on(kept, caller)
        return response

    # ---- for programs that embed the broker ----------------------------------------------------------

    async def listed(self, principal: str | None) -> list[ParkedRun]:
        """Returns what `Broker.parked` does."""
        with _readable():
            return await self.waiting(principal)

    async def resume(
        self, run_id: str, answer: Answer | Mapping[int, Given], principal: str | None
    ) -> RunResponse:
        """Returns what `Broker.resume` does."""
        with _readable():
            found = await self.answer(run_id, answer, principal)
            if found is not None and found.questions:
                return parked_response(run_id, found.questions)
            response = None if found is None else await self.outcome(run_id, principal)
            if response is None and (waiting := await self.questions(run_id, principal)) and waiting[1]:
                # A server has asked again.
                return parked_response(run_id, waiting[1])
        if response is None:
            raise InvalidRequest(
                f"No run {run_id} waits for an answer.", hint="`await broker.parked()` lists those that do."
            )
        return response.decoded()

    # ---- for front-ends ------------------------------------------------------------------------------

    @property
    def good_seconds(self) -> float:
        """Says for how long a run waits at most."""
        return self._keeper.settings.parked_ttl_ms / 1000

    @property
    def park_seconds(self) -> float:
        """Says how long a run waits in its process before it is parked."""
        return self._keeper.settings.park_after_ms / 1000

    async def signing_keys(self, purpose: str) -> Sequence[bytes]:
        """Returns keys that all brokers of the state directory share, as `Journals`. Raises StoreError."""
        if self._keeper.settings.parks:
            return await self._journals.signing_keys(purpose)
        raise StoreError("cellblock.journal is off")

    async def answered_elsewhere(self, run_id: str, turn: int, principal: str) -> RunResponse | None:
        """Returns the response of a run that was answered by somebody else in this round, as soon as there is one; None
        where there is none to come. Raises StoreError."""
        end = partial(JournalStore.end_round, run_id=run_id, turn=turn, principal=principal)
        if not await self._journals.asked(end, default=False):
            return None
        response = await self.outcome(run_id, principal)
        if response is not None and not response.parked:
            # It was parked still, where nobody had begun to go on with it.
            await self._journals.asked(end, default=False)
        return response

    async def questions(
        self, run_id: str, principal: str | None = None
    ) -> tuple[int, tuple[ParkedQuestion, ...]] | None:
        """Returns the round and the open questions of a parked run; None where none waits. Raises StoreError."""

        def look(store: JournalStore) -> ParkedRun | None:
            read = store.read(run_id, principal, WAITING)
            return None if read is None or read[0].state != "parked" else parked_run(*read)

        run = await self._journals.asked(look, None)
        return None if run is None else (run.turn, run.questions)

    async def status(self, run_id: str, principal: str) -> ParkedStatus | None:
        """Says where a run is that was parked; None where none of this principal is kept, or nobody answers it any
        more. Raises StoreError."""

        def look(
            store: JournalStore,
        ) -> tuple[Head, tuple[ParkedQuestion, ...], RunResponse | None] | None:
            head = store.head(run_id, principal)
            if head is None or head.state == "running":
                return None if head is None else (head, (), None)
            read = store.read(run_id, principal, WAITING if head.state == "parked" else KINDS)
            if read is None or read[0].state == "running":
                return None if read is None else (read[0], (), None)
            if read[0].state == "parked":
                return read[0], parked_run(*read).questions, None
            return read[0], (), kept_response(*read)

        found, now = await self._journals.asked(look, None), time.time()
        if found is None or found[0].outcome == EXPIRED:
            return None
        head, questions, response = found
        kept_seconds = self._keeper.settings.expire_ms / 1000
        if head.state == "parked" and not head.is_answered:
            state, until = "parked", head.expires or 0.0
        elif head.state == "ended":
            state, until = "ended", (head.ended or 0.0) + kept_seconds
        else:
            state, until = "running", now + kept_seconds
        if until <= now:
            return None
        return ParkedStatus(
            id=head.id,
            began=head.began,
            changed=head.changed or head.began,
            until=until,
            state=state,
            outcome=head.outcome if state == "ended" else None,
            questions=questions if state == "parked" else (),
            response=response if state == "ended" else None,
        )

    async def park(self, *, away: bool) -> bool:
        """Parks the runs that wait for people and for nothing else, as `Executor.park_waiting`."""
        return await self._runs.park_waiting(away=away)

    async def holder(self, run_id: str) -> str:
        """Names the broker that goes on with a run; empty where none does. Raises StoreError."""
        owned = await self._journals.asked(lambda store: store.owned(), [])
        return dict(owned).get(run_id, "")

    async def stop(self, run_id: str, principal: str) -> bool:
        """Ends a parked run, or one that goes on without a client, whose last calls may have been made; another broker
        that has it is asked to. Says whether there was one. Raises StoreError."""
        if await self.cancel(run_id, principal):
            return True
        task = self._awake.get(run_id)
        if task is None:
            return await self._journals.asked(
                lambda store: store.ask_to_end(run_id, principal), default=False
            )
        if await self._journals.asked(lambda store: store.head(run_id, principal), None) is None:
            return False
        await self._end(run_id, task)
        return True

    # ---- a client that is back ------------------------------------------------------------------------

    async def taken(
        self, run_id: str, turn: int, answers: Mapping[int, Given], principal: str
    ) -> KeptRun | None:
        """Takes a parked run for a client that has come back; it is run with `go_on`.

        Args:
            run_id: The run.
            turn: The round in which the client was told of it.
            answers: The client's; a question without one counts as dismissed.
            principal: Who the client is.

        Returns:
            The run; None when none of this principal is parked in this round.

        Raises:
            StoreError: It cannot be read; it stays parked.
        """

        owner, is_at_work = self._owner.name, False

        def take(store: JournalStore) -> tuple[Head, list[Piece]] | None:
            nonlocal is_at_work
            head = store.head(run_id, principal)
            if head is not None and (head.state, head.turn) == ("parked", turn) and head.owner is not None:
                is_at_work = True
                return None
            return store.take(run_id, owner, principal=principal, turn=turn, answers=answers)

        kept = await self._opened(run_id, take)
        return await self._waited_for(run_id, turn, answers, principal) if is_at_work else kept

    async def go_on(self, kept: KeptRun, caller: Caller) -> RunResponse:
        """Goes on with a run that was taken, to its response or its next park.

        Raises:
            InvalidRequest: The limits that are in force now do not allow it.
        """
        try:
            while True:
                try:
                    response = await self._runs.run(kept.journal.request, caller, kept=kept)
                except InvalidRequest:
                    self._journals.do(lambda store: store.give_up(kept.run_id, self._owner.name, LOST))
                    raise
                refused = {entry.code for entry in response.diagnostics} & REFUSED_FOR_NOW
                if not refused or self._at_work.is_closed:
                    return response
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._here -= Counter([kept.run_id])

    # ---- inside --------------------------------------------------------------------------------------

    async def _done(
        self, run_id: str, principal: str | None = None, turn: int | None = None
    ) -> KeptRun | None:
        """Waits for the calls of a run that are at work here, and for room, and takes it; None where it waits no
        longer, which has a bound, or where a server asks something."""
        owner = self._owner.name
        async with self._at_work.done(run_id) as is_asked:
            while not self._at_work.is_closed and not is_asked:
                try:
                    return await self._opened(
                        run_id, lambda store: store.take(run_id, owner, principal=principal, turn=turn)
                    )
                except NoRoom:
                    await asyncio.sleep(AGAIN_SECONDS)
        return None

    async def _waited_for(
        self, run_id: str, turn: int, answers: Mapping[int, Given], principal: str
    ) -> KeptRun | None:
        """Takes a run for a client that is back while tools are at work, when they have ended; what it says to
        questions is written down before that."""
        waiting = await self.questions(run_id, principal)
        if waiting is None or waiting[0] != turn:
            return None
        asked = {question.number: question for question in waiting[1]}
        if asked and answers and not answers.keys() & asked.keys():
            return None
        # What a server asks may have come since the client went away: it is asked that, then.
        dismissed: Answer = "cancelled"
        given: dict[int, Given] = {
            number: answers.get(number, dismissed)
            for number, question in asked.items()
            if number in answers or not question.is_of_server
        }
        if given:
            await self.answer(run_id, given, principal)
        return await self._done(run_id, principal, turn)

    async def _waits_for_tools(self, head: Head) -> bool:
        """Says whether a parked run goes on by itself: it waits for tools, or is about to be taken."""
        if head.is_answered:
            return True
        waiting = None if head.owner is None else await self.questions(head.id)
        return waiting is not None and not waiting[1]

    async def _end(self, run_id: str, task: asyncio.Task[RunResponse]) -> None:
        task.cancel()
        await asyncio.wait([task])
        # For one that had not begun: the end of others is written by whoever runs them.
        self._journals.do(lambda store: store.give_up(run_id, self._owner.name, CANCELLED))

    def _is_ready(self, run_id: str) -> None:
        """Goes on with a run whose last tool has answered."""

        async def wake() -> None:
            # What fails here is tried again at the next look.
            with contextlib.suppress(StoreError, OSError):
                await self._wake(run_id)

        self._waking.start(wake())

    async def _look(self) -> None:
        adopt_at, seen = 0.0, -1
        while True:
            try:
                now = time.monotonic()
                version = await self._journals.asked(lambda store: store.version, 0)
                besides = tuple(self._foreign)
                due, expired = await self._journals.asked(
                    lambda store, but=besides: store.due(time.time(), but), ([], [])
                )
                self.count = await self._journals.asked(lambda store: store.count_parked(), 0)
                for run_id in expired:
                    await self._journals.asked(
                        lambda store, run=run_id: store.end(run, EXPIRED, expired=time.time()), default=False
                    )
                for run_id in due:
                    await self._one(run_id, self._wake(run_id))
                await self._at_work.look()
                if self.count:
                    await self._logins.look()
                await self._end_those_asked()
                if now >= adopt_at or version != seen:
                    adopt_at, seen = now + ADOPT_SECONDS, version
                    await self._adopt()
            except StoreError as error:
                logger.info("parked runs cannot be looked at: %s", error)
            except OSError as error:
                logger.warning("parked runs cannot go on here: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _end_those_asked(self) -> None:
        """Ends runs that other brokers want ended; one that a client has come back for goes on."""
        if self._awake:
            owner = self._owner.name
            for run_id in await self._journals.asked(lambda store: store.asked_to_end(owner), []):
                if (task := self._awake.get(run_id)) is not None:
                    await self._end(run_id, task)

    async def _adopt(self) -> None:
        """Goes on with the runs of brokers that have died; what tools had of them may have run. Ends those with which
        nobody has gone on for as long as a run may wait."""
        unsure, self._unsure = self._unsure, set[str]()
        oldest = time.time() - max(self.good_seconds, UNENDED_SECONDS)

        def look(store: JournalStore) -> tuple[list[tuple[str, str, int]], list[tuple[str, str]]]:
            held, owned = store.held(), store.owned()
            owners = {owner for _, owner, _ in held} | {owner for _, owner in owned}
            dead = {owner for owner in owners if not self._owner.lives(owner)}
            for run, owner in store.owned(before=oldest):
                if owner in dead and store.give_up(run, owner, LOST):
                    owned.remove((run, owner))
            if not self._keeper.settings.parks:
                return [], []
            # One that was to be taken when PostgreSQL went away may have been: nobody goes on with it then.
            return [one for one in held if one[1] in dead], [
                (run, owner)
                for run, owner in owned
                if owner in dead or (run in unsure and self._owner.is_own(owner))
            ]

        try:
            let_go, left = await self._journals.asked(look, ([], []))
        except StoreError:
            self._unsure |= unsure
            raise
        for run_id, owner, turn in let_go:
            await self._one(run_id, self._let_go(run_id, owner, turn))
        for run_id, owner in left:
            async with self._taking:
                if self._leaving:
                    return
                # One that could not be taken at first may have been taken since.
                if self._owner.is_own(owner) and self._here[run_id]:
                    continue
                await self._one(run_id, self._adopt_one(run_id, owner), owner)

    async def _let_go(self, run_id: str, dead: str, turn: int) -> None:
        if await self._journals.asked(
            lambda store: store.release(run_id, turn, dead, is_lost=True), default=False
        ):
            logger.info("run %s goes on: the broker that had its calls has died", run_id)
            await self._wake(run_id)

    async def _adopt_one(self, run_id: str, dead: str) -> None:
        """Goes on with a run whose broker has died."""
        try:
            kept = await self._opened(run_id, partial(self._adopted, run_id=run_id, dead=dead))
        except NoRoom:
            self._unsure.add(run_id)
            return
        if kept is not None:
            logger.info("run %s goes on: its broker has died", run_id)
            self._begin(run_id, kept)

    def _adopted(self, store: JournalStore, *, run_id: str, dead: str) -> tuple[Head, list[Piece]] | None:
        """Takes a run whose broker has died; one that was to be ended ends."""
        found = store.adopt(run_id, dead, self._owner.name)
        if found is not None and any(piece.kind == "cancel" for piece in found[1]):
            store.give_up(run_id, self._owner.name, CANCELLED)
            return None
        return found

    async def _one(self, run_id: str, work: Awaitable[None], dead: str = "") -> None:
        """Goes on with one run; one that cannot be read is in nobody's way. It ends, unless others may read it. Raises
        StoreError: No run can be read."""
        try:
            await work
        except Foreign as error:
            if run_id not in self._foreign:
                logger.warning("run %s does not go on here: %s", run_id, error)
            self._foreign.add(run_id)
        except OneRunFailed as error:
            logger.warning("run %s cannot go on: %s", run_id, error)
            await self._journals.asked(
                lambda store: store.end(run_id, LOST) or store.give_up(run_id, dead, LOST), default=False
            )

    async def _wake(self, run_id: str) -> None:
        """Goes on with a run that has its answers, without a client, unless somebody has taken it."""
        async with self._taking:
            if self._leaving:
                return
            # One that has no room is looked at again.
            with contextlib.suppress(NoRoom):
                self._begin(
                    run_id, await self._opened(run_id, lambda store: store.take(run_id, self._owner.name))
                )

    async def _opened(
        self, run_id: str, take: Callable[[JournalStore], tuple[Head, list[Piece]] | None]
    ) -> KeptRun | None:
        """Takes a run, and reads it, as `Keeper.taken`; where it is not certain that it was taken, that is looked at
        later. Raises StoreError."""
        try:
            kept = await self._journals.asked(lambda store: self._keeper.taken(store, run_id, take), None)
        except NoRoom:
            raise
        except StoreError:
            self._unsure.add(run_id)
            raise
        if kept is not None:
            self._here[run_id] += 1
        return kept

    def _begin(self, run_id: str, kept: KeptRun | None) -> None:
        if kept is None:
            return
        task = asyncio.create_task(self._going_on(kept), name="a run that goes on")
        self._awake[run_id] = task

        def is_over(done: asyncio.Task[RunResponse]) -> None:
            if self._awake.get(run_id) is done:
                del self._awake[run_id]
            _tell(run_id, done)

        task.add_done_callback(is_over)

    async def _going_on(self, kept: KeptRun) -> RunResponse:
        async with self._places:
            return await self.go_on(kept, Caller(kept.client, Grantee(kept.principal, leaves=True)))


@contextlib.contextmanager
def _readable() -> Generator[None]:
    """Words what the journals' file raises for a program."""
    try:
        yield
    except StoreError as error:
        raise CellblockError(
            f"What is parked cannot be read or written: {error}.", hint="Check the state directory."
        ) from None


def _tell(run_id: str, task: asyncio.Task[RunResponse]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, InvalidRequest | CellblockError):
        logger.warning("run %s cannot go on: %s", run_id, error)
    elif error is not None:
        logger.error("run %s cannot go on", run_id, exc_info=error)
