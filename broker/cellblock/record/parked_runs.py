"""Parked_runs shows runs that wait, and takes what people, programs and front-ends say to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError, InvalidRequest
from cellblock.base.questions import Answer, Given, ParkedQuestion, QuestionId
from cellblock.record.going_on import GoingOn
from cellblock.record.journals import Journals
from cellblock.record.kept import Keeper
from cellblock.record.rows import KINDS, WAITING, Foreign, Head, RunOwner
from cellblock.record.store import MAX_LISTED, JournalStore
from cellblock.record.views import (
    ParkedRun,
    ParkedStatus,
    kept_response,
    parked_response,
    parked_run,
    waiting_run,
)
from cellblock.run.executor import Executor
from cellblock.run.hook import CANCELLED, EXPIRED
from cellblock.run.policy.asking import Caller
from cellblock.run.response import RunResponse
from cellblock.tools.upstream.registry import Registry

logger = logging.getLogger("cellblock.journal")

OUTCOME_SECONDS: Final = 660.0
"""Bounds the wait for the end of a run that goes on elsewhere: a run takes ten minutes at most as configured."""


class ParkedRuns:
    """Has the runs of one state directory that wait.

    Args:
        journals: Where they are written down.
        keeper: Says how long.
        owner: Names this broker.
        runs: Runs them.
        logins: Says when somebody has logged in.
    """

    def __init__(
        self, journals: Journals, keeper: Keeper, owner: RunOwner, runs: Executor, logins: Registry
    ) -> None:
        self._journals, self._keeper, self._runs = journals, keeper, runs
        self.going_on = GoingOn(journals, keeper, owner, runs, logins)
        self.answer = self.going_on.answer

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

    async def cancel(self, run_id: str, principal: str | None = None) -> bool:
        """Ends a parked run, and cancels the calls that its broker has. Says whether there was one. Raises
        StoreError."""
        is_done = await self._journals.asked(
            lambda store: store.end(run_id, CANCELLED, principal), default=False
        )
        if is_done:
            self.going_on.cancel_calls(run_id)
        return is_done

    async def outcome(self, run_id: str, principal: str | None = None) -> RunResponse | None:
        """Returns the response of a run that was parked, as soon as it has one; None when there is none to come.

        Raises:
            StoreError: It cannot be read; Foreign: it has its answers, and does not go on here.
        """
        until = time.monotonic() + OUTCOME_SECONDS
        while True:
            seen = self.going_on.changes
            # Another broker may have it.
            head = await self._journals.asked(lambda store: store.head(run_id, principal), None)
            if head is None or head.state == "ended":
                break
            if head.state == "running" and time.monotonic() >= until:
                break
            if (task := self.going_on.awake.get(run_id)) is not None:
                await asyncio.wait([task])
                if not task.cancelled() and not (response := task.result()).parked:
                    return response
                continue
            if head.state == "parked" and not head.is_answered:
                waiting = await self.questions(run_id, principal)
                if waiting is not None and waiting[1]:
                    return parked_response(run_id, waiting[1])
                # As long as it takes: its calls have bounds of their own.
                until = time.monotonic() + OUTCOME_SECONDS
            elif head.is_answered and (why := self.going_on.foreign.get(run_id)) is not None:
                raise Foreign(why)
            await self.going_on.changed(seen)
        if head is None or head.state != "ended":
            return None
        return await self._journals.read(run_id, kept_response, principal)

    # ---- for programs that embed the broker ----------------------------------------------------------

    async def listed(self, principal: str | None) -> list[ParkedRun]:
        """Returns the parked runs, as `Broker.parked` does."""
        with _readable():
            return await self.waiting(principal)

    async def resume(
        self,
        run_id: str,
        answer: Answer | Mapping[QuestionId, Given] | Mapping[int, Given],
        principal: str | None,
    ) -> RunResponse:
        """Has a parked run go on, as `Broker.resume` does."""
        answers: Answer | dict[QuestionId, Given] = (
            answer if isinstance(answer, str) else {_id(one): given for one, given in answer.items()}
        )
        with _readable():
            found = await self.answer(run_id, answers, principal)
            response = None if found is None else await self.outcome(run_id, principal)
        if response is None:
            raise InvalidRequest(
                f"No run {run_id} waits for an answer.", hint="`await broker.parked()` lists those that do."
            )
        return response.decoded()

    # ---- for front-ends ------------------------------------------------------------------------------

    @property
    def good_seconds(self) -> float:
        """Says for how many seconds a run stays parked at most."""
        return self._keeper.settings.expire_ms / 1000

    async def signing_keys(self, purpose: str) -> Sequence[bytes]:
        """Returns keys that all brokers of the state directory share, as `Journals`. Raises StoreError."""
        if self._keeper.settings.parks:
            return await self._journals.signing_keys(purpose)
        raise StoreError("cellblock.journal is off")

    async def come_back(
        self, run_id: str, turn: int, answers: Mapping[QuestionId, Given], caller: Caller
    ) -> RunResponse | None:
        """Answers a parked run for its client, which has come back and waits for its response, or its next questions.

        Args:
            run_id: The run.
            turn: The round in which the client was told of it; it is over then.
            answers: The client's; a question without one counts as dismissed.
            caller: The client.

        Returns:
            The response; None when none of this principal waits in this round, or was answered in it by others.

        Raises:
            StoreError: It cannot be read; it stays parked.
        """
        principal, is_mine = caller.grantee.principal, True
        try:
            with self.going_on.waited_for(run_id, caller):
                if await self.answer(run_id, answers, principal, turn=turn) is None:
                    is_mine = False
                    end = partial(JournalStore.end_round, run_id=run_id, turn=turn, principal=principal)
                    if not await self._journals.asked(end, default=False):
                        return None
                return await self.outcome(run_id, principal)
        except asyncio.CancelledError:
            if is_mine:
                self.going_on.abandon(run_id)
            raise

    async def questions(
        self, run_id: str, principal: str | None = None
    ) -> tuple[int, tuple[ParkedQuestion, ...]] | None:
        """Returns the round and the open questions of a parked run; None where none waits. Raises StoreError."""
        run = await self._journals.read(run_id, waiting_run, principal, WAITING)
        return None if run is None else (run.turn, run.questions)

    async def status(self, run_id: str, principal: str) -> ParkedStatus | None:
        """Says where a run is that was parked or left; None where none of this principal is kept, or nobody answers it
        any more. Raises StoreError."""

        def look(
            store: JournalStore,
        ) -> tuple[Head, tuple[ParkedQuestion, ...], RunResponse | None] | None:
            head = store.head(run_id, principal)
            if head is None or head.state == "running":
                return None if head is None else (head, (), None)
            read = store.read(run_id, principal, WAITING if head.state == "parked" else KINDS)
            if read is None:
                return None
            run = waiting_run(*read)
            response = kept_response(*read) if read[0].state == "ended" else None
            return read[0], () if run is None else run.questions, response

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

    async def leave(self, run_id: str, work: asyncio.Task[RunResponse]) -> bool:
        """Has a run go on without its client, as one that was parked; says whether it does. Raises StoreError."""
        if not await self._keeper.leave(run_id) or work.done():
            return False
        self.going_on.hold(run_id, work)
        return True

    async def park(self) -> bool:
        """Parks the runs that wait for people and for nothing else, as `Executor.park_waiting`."""
        return await self._runs.park_waiting()

    async def stop(self, run_id: str, principal: str) -> bool:
        """Ends a parked run, or one that goes on without a client, whose last calls may have been made; another broker
        that has it is asked to. Says whether there was one. Raises StoreError."""
        if await self.cancel(run_id, principal):
            return True
        if run_id not in self.going_on.awake:
            return await self._journals.asked(
                lambda store: store.ask_to_end(run_id, principal), default=False
            )
        if await self._journals.asked(lambda store: store.head(run_id, principal), None) is None:
            return False
        return await self.going_on.end(run_id)


def _id(question: QuestionId | int) -> QuestionId:
    return question if isinstance(question, QuestionId) else QuestionId.parse(str(question))


@contextlib.contextmanager
def _readable() -> Generator[None]:
    """Words what the journals' file raises for a program."""
    try:
        yield
    except Foreign as error:
        raise CellblockError(
            f"The run does not go on here: {error}.",
            hint="It waits for a process of the state directory that has what it needs.",
        ) from None
    except StoreError as error:
        raise CellblockError(
            f"What is parked cannot be read or written: {error}.", hint="Check the state directory."
        ) from None
