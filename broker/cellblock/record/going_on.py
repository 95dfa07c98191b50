"""Going_on lets runs go on that were written down: parked ones when people have answered, others when their broker has
died.

A run is one row of the journals' file, and whoever moves the row has the run: of several brokers that share a state
directory one goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError, InvalidRequest
from cellblock.base.questions import Answer, Given, ParkedQuestion, QuestionId
from cellblock.base.tasks import TaskSet, at_most, end_tasks
from cellblock.record.journal import NotYet
from cellblock.record.journals import Journals
from cellblock.record.kept import Keeper, Kept
from cellblock.record.rows import (
    WAITING,
    Foreign,
    Head,
    OneRunFailed,
    Piece,
    RunOwner,
    parked_questions,
)
from cellblock.record.store import JOURNAL_TABLES, UNENDED_SECONDS, JournalStore
from cellblock.record.views import ParkedRun, described
from cellblock.run.executor import Executor
from cellblock.run.hook import CANCELLED, EXPIRED, LOST, REFUSED_FOR_NOW
from cellblock.run.policy.asking import Caller, Grantee, flow_of
from cellblock.run.response import RunResponse
from cellblock.tools.upstream.registry import Registry

logger = logging.getLogger("cellblock.journal")

POLL_SECONDS: Final = 2.0
"""Passes between two looks at what other processes have answered, where none announces it."""
WATCHED_SECONDS: Final = 0.25
"""Passes between two looks while somebody waits for a run that another process may have."""

ADOPT_SECONDS: Final = 30.0
"""Passes between two looks for runs whose broker has died."""

MAX_WOKEN: Final = 8
"""Bounds the runs that go on at once without a client that waits: others want workers, too."""

AGAIN_SECONDS: Final = 2.0
"""Passes before a run goes on that found no worker."""


class GoingOn:
    """Goes on with the runs of one state directory that waited, or were lost. Owns their tasks.

    Args:
        journals: Where they are written down.
        keeper: Opens what watches them.
        owner: Names this broker.
        runs: Runs them.
        logins: Says when somebody has logged in.

    Attributes:
        awake: The runs that go on here.
        foreign: Says of runs why they do not go on here, and may elsewhere. Each waits until it expires: they are no
            more than the file holds.
        count: How many runs were parked at the last look.
        changes: Counts what may have changed of the runs.
    """

    def __init__(
        self, journals: Journals, keeper: Keeper, owner: RunOwner, runs: Executor, logins: Registry
    ) -> None:
        self.awake: dict[str, asyncio.Task[RunResponse]] = {}
        self.foreign: dict[str, str] = {}
        self.count = self.changes = 0
        self._journals = journals
        self._keeper = keeper
        self._owner = owner
        self._runs = runs
        self._logins = logins
        self._places = asyncio.Semaphore(MAX_WOKEN)
        self._unsure: set[str] = set()
        self._callers: dict[str, Caller] = {}
        """Holds who waits here for runs that go on: they are asked what is asked next."""
        self._told: set[str] = set()
        self._no_room: set[str] = set()
        """Names runs that cannot go on yet: others come before they are tried again."""
        self._look_at = 0.0
        self._taking = asyncio.Lock()
        self._leaving = False
        self._looking: asyncio.Task[None] | None = None
        self._held = keeper.held
        self._held.on_ready, self._held.on_change = self._is_ready, self.tell_change
        self._waking = TaskSet()
        self._change = asyncio.Event()
        self._watchers = 0
        self._look_now = asyncio.Event()

    def start(self) -> None:
        """Begins to look for what has been answered or lost."""
        self._looking = asyncio.create_task(self._look(), name="parked runs")
        loop = asyncio.get_running_loop()
        self._owner.on_change(JOURNAL_TABLES.kind, lambda: loop.call_soon_threadsafe(self._look_now.set))

    def try_again(self) -> None:
        """Looks at once at the runs that did not go on here: the servers or the configuration have changed."""
        if self.foreign or self._no_room or self._unsure:
            self.foreign.clear()
            self._no_room.clear()
            self._look_at = 0.0
            self._look_now.set()

    async def quiet(self) -> None:
        """Takes no run any more, others do, and waits for those here that no client waits for, and for their calls."""
        async with self._taking:
            self._leaving = True
        while tasks := [*self.awake.values(), *self._held.carrying]:
            await asyncio.wait(tasks)

    async def stop_looking(self) -> None:
        """Wakes no run any more."""
        await end_tasks(self._looking)

    async def close(self) -> None:
        """Waits for the runs that go on, which the executor has ended, and for calls of parked ones."""
        await self._held.close()
        await end_tasks(*self.awake.values())

    async def changed(self, since: int) -> None:
        """Waits until something may have changed of the runs, here or in another process, after so many `changes`; at
        most `POLL_SECONDS`."""
        self._watchers += 1
        self._look_now.set()
        try:
            async with at_most(POLL_SECONDS):
                while self.changes == since:
                    await self._change.wait()
        finally:
            self._watchers -= 1

    def tell_change(self) -> None:
        """Wakes those who wait for a change."""
        self.changes += 1
        self._change.set()
        self._change.clear()

    async def answer(
        self,
        run_id: str,
        answers: Mapping[QuestionId, Given] | Answer,
        principal: str | None = None,
        *,
        turn: int | None = None,
    ) -> ParkedRun | None:
        """Answers questions of a parked run, which goes on when all are answered, and its calls have ended.

        Args:
            run_id: The run.
            answers: By the questions, or one for all that are open.
            principal: Whose the run is; None: anybody's.
            turn: As for `JournalStore.answer`.

        Returns:
            What is still asked; None when no such run is parked.

        Raises:
            StoreError: The answer is not written down.
        """
        ask = partial(JournalStore.answer, run_id=run_id, answers=answers, principal=principal, turn=turn)
        found = await self._journals.asked(ask, None)
        if found is None:
            return None
        head, parked, known, now = found
        self._held.told(run_id, known)
        for question in parked.questions:
            given = answers if isinstance(answers, str) else answers.get(question.id)
            if given == "always" and question.id in now and (flow := flow_of(question)) is not None:
                self._runs.allow_always(flow.rule)
        if head.is_answered:
            try:
                await self._wake(run_id)
            except Foreign as error:
                # It has its answers, and goes on elsewhere.
                self._is_foreign(run_id, str(error))
        self.tell_change()
        return described(head, parked, known)

    @contextlib.contextmanager
    def waited_for(self, run_id: str, caller: Caller) -> Generator[None]:
        """Surrounds the time in which a client waits for a run: it is asked what can be asked only of it."""
        is_first = self._callers.setdefault(run_id, caller) is caller
        try:
            yield
        finally:
            if is_first:
                del self._callers[run_id]

    async def end(self, run_id: str) -> bool:
        """Ends a run that goes on here; says whether there was one."""
        task = self.awake.get(run_id)
        if task is None:
            return False
        await end_tasks(task)
        # For one that had not begun: the end of others is written by whoever runs them.
        self._journals.do(lambda store: store.give_up(run_id, self._owner.name, CANCELLED))
        return True

    def abandon(self, run_id: str) -> None:
        """Ends a run that has its answers, and whose client has gone."""
        owner = self._owner.name

        def end(store: JournalStore) -> None:
            head = store.head(run_id)
            if head is not None and head.is_answered:
                store.end(run_id, CANCELLED)
            store.give_up(run_id, owner, CANCELLED)

        if (task := self.awake.get(run_id)) is not None:
            task.cancel()
        else:
            self._journals.do(end)

    def cancel_calls(self, run_id: str) -> None:
        """Cancels the calls of a parked run that has been ended."""
        self._held.cancel(run_id)
        self.tell_change()

    # ---- inside: the look ----------------------------------------------------------------------------

    async def _look(self) -> None:
        adopt_at, seen = 0.0, -1
        while True:
            self._look_now.clear()
            try:
                now = time.monotonic()
                version = await self._journals.asked(lambda store: store.database.changes(), 0)
                if version != seen:
                    self.tell_change()
                if version != seen or now >= self._look_at:
                    self._look_at = now + POLL_SECONDS
                    if now >= adopt_at:
                        # The configuration may have changed.
                        self.foreign.clear()
                    await self._look_at_parked()
                    await self._end_those_asked()
                    if now >= adopt_at or version != seen or self._unsure:
                        adopt_at, seen = now + ADOPT_SECONDS, version
                        await self._adopt()
            except StoreError as error:
                logger.info("parked runs cannot be looked at: %s", error)
            except OSError as error:
                logger.warning("parked runs cannot go on here: %s", error)
            if self._watchers:
                await asyncio.sleep(WATCHED_SECONDS)
            else:
                async with at_most(POLL_SECONDS):
                    await self._look_now.wait()

    async def _look_at_parked(self) -> None:
        besides = (*self.foreign, *self._no_room)
        due, expired = await self._journals.asked(lambda store: store.due(time.time(), besides), ([], []))
        self.count = await self._journals.asked(lambda store: store.count_parked(), 0)
        for run_id in expired:
            end = partial(JournalStore.end, run_id=run_id, outcome=EXPIRED, expired=time.time())
            await self._journals.asked(end, default=False)
        if not due:
            self._no_room.clear()
        for run_id in due:
            await self._one(run_id, self._wake(run_id))
        await self._held.look()
        if self.count and self._logins.has_logins:
            await self._answer_logins()

    async def _answer_logins(self) -> None:
        """Lets those calls be made that have waited for a login which somebody has given."""
        for head, question in await self._journals.asked(_needed_logins, []):
            place = json.loads(question.request)
            if await self._logins.is_logged_in(place["server"], place["mark"], head.principal):
                await self.answer(head.id, {question.id: "accepted"})

    async def _end_those_asked(self) -> None:
        """Ends runs that other brokers want ended."""
        if self.awake:
            owner = self._owner.name
            for run_id in await self._journals.asked(lambda store: store.asked_to_end(owner), []):
                await self.end(run_id)

    async def _adopt(self) -> None:
        """Goes on with the runs of brokers that have died; what tools had of them may have run. Ends those with which
        nobody has gone on for as long as a run may wait."""
        unsure, self._unsure = self._unsure, set[str]()
        oldest = time.time() - max(self._keeper.settings.expire_ms / 1000, UNENDED_SECONDS)

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
        for run_id, owner, resumed in let_go:
            await self._one(run_id, self._let_go(run_id, owner, resumed))
        for run_id, owner in left:
            async with self._taking:
                if self._leaving:
                    return
                # One that could not be taken at first may have been taken since.
                if self._owner.is_own(owner) and run_id in self.awake:
                    continue
                await self._one(run_id, self._adopt_one(run_id, owner), owner)

    async def _let_go(self, run_id: str, dead: str, resumed: int) -> None:
        if await self._journals.asked(
            lambda store: store.release(run_id, resumed, dead, is_lost=True), default=False
        ):
            logger.info("run %s goes on: the broker that had its calls has died", run_id)
            await self._wake(run_id)

    async def _adopt_one(self, run_id: str, dead: str) -> None:
        """Goes on with a run whose broker has died."""
        try:
            kept = await self._opened(run_id, partial(self._adopted, run_id=run_id, dead=dead))
        except NotYet:
            self._unsure.add(run_id)
            return
        if kept is not None:
            logger.info("run %s goes on: its broker has died", run_id)
            self._begin(kept)

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
            self._is_foreign(run_id, str(error))
        except OneRunFailed as error:
            logger.warning("run %s cannot go on: %s", run_id, error)
            await self._journals.asked(
                lambda store: store.end(run_id, LOST) or store.give_up(run_id, dead, LOST), default=False
            )
        except (StoreError, OSError):
            raise
        except Exception:
            # One run that is written otherwise than this release can read holds up no other.
            logger.exception("run %s cannot be read here", run_id)
            self._is_foreign(run_id, "it cannot be read")

    def _is_foreign(self, run_id: str, why: str) -> None:
        if run_id not in self._told:
            logger.warning("run %s does not go on here: %s", run_id, why)
            self._told.add(run_id)
        self.foreign[run_id] = why

    # ---- inside: a run that goes on ------------------------------------------------------------------

    def _is_ready(self, run_id: str) -> None:
        """Goes on with a run whose last call has its answer."""

        async def wake() -> None:
            # What fails here is tried again at the next look.
            with contextlib.suppress(StoreError, OSError):
                await self._wake(run_id)

        self._waking.start(wake())

    async def _wake(self, run_id: str) -> None:
        """Goes on with a run that has its answers, unless somebody has taken it."""
        async with self._taking:
            if self._leaving:
                return
            try:
                kept = await self._opened(run_id, lambda store: store.take(run_id, self._owner.name))
            except NotYet:
                self._no_room.add(run_id)
                return
            if kept is not None:
                self._begin(kept)

    async def _opened(
        self, run_id: str, take: Callable[[JournalStore], tuple[Head, list[Piece]] | None]
    ) -> Kept | None:
        """Takes a run, and reads it, as `Keeper.taken`; where it is not certain that it was taken, or nobody waits any
        more, that is looked at later. Raises StoreError."""
        try:
            return await self._journals.asked(lambda store: self._keeper.taken(store, run_id, take), None)
        except NotYet:
            raise
        except (StoreError, asyncio.CancelledError):
            self._unsure.add(run_id)
            raise

    def _begin(self, kept: Kept) -> None:
        work = self._carry_on(kept, self._callers.get(kept.run_id))
        self.hold(kept.run_id, asyncio.create_task(work, name="a run that goes on"))

    def hold(self, run_id: str, task: asyncio.Task[RunResponse]) -> None:
        """Takes over a run that goes on without a client."""
        self.awake[run_id] = task

        def is_over(done: asyncio.Task[RunResponse]) -> None:
            if self.awake.get(run_id) is done:
                del self.awake[run_id]
            self.tell_change()
            _tell(run_id, done)

        task.add_done_callback(is_over)

    async def _carry_on(self, kept: Kept, caller: Caller | None) -> RunResponse:
        """Goes on with a run that was taken, to its response or its next park. Raises InvalidRequest: The limits that
        are in force now do not allow it."""
        async with self._places if caller is None else contextlib.nullcontext():
            whose = caller or Caller(kept.client, Grantee(kept.principal))
            while True:
                try:
                    response = await self._runs.run(kept.journal.request, whose, kept=kept)
                except InvalidRequest:
                    self._journals.do(lambda store: store.give_up(kept.run_id, self._owner.name, LOST))
                    raise
                refused = {entry.code for entry in response.diagnostics} & REFUSED_FOR_NOW
                if not refused or self._held.is_closed:
                    return response
                await asyncio.sleep(AGAIN_SECONDS)


def _needed_logins(store: JournalStore) -> list[tuple[Head, ParkedQuestion]]:
    """Returns the logins that parked runs wait for."""
    found: list[tuple[Head, ParkedQuestion]] = []
    for head in store.heads(state="parked"):
        with contextlib.suppress(OneRunFailed):
            if (read := store.read(head.id, kinds=WAITING)) is not None and read[0].state == "parked":
                found += [(head, one) for one in parked_questions(*read) if one.kind == "login"]
    return found


def _tell(run_id: str, task: asyncio.Task[RunResponse]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, InvalidRequest | CellblockError):
        logger.warning("run %s cannot go on: %s", run_id, error)
    elif error is not None:
        logger.error("run %s cannot go on", run_id, exc_info=error)
