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
from cellblock.durable.going_on import AGAIN_SECONDS, GoingOn
from cellblock.durable.views import (
    ParkedRun,
    ParkedStatus,
    ended_meanwhile,
    kept_response,
    parked_response,
    parked_run,
    response_in,
)
from cellblock.execution.caller import Caller
from cellblock.execution.keeping import KeptRun
from cellblock.execution.response import RunResponse
from cellblock.journal.parked import CANCELLED, EXPIRED, Answer, Given, ParkedQuestion
from cellblock.journal.room import NoRoom
from cellblock.journal.rows import (
    KINDS,
    WAITING,
    Foreign,
    Head,
    Piece,
)
from cellblock.journal.run_rows import MAX_LISTED
from cellblock.journal.store import JournalStore

logger = logging.getLogger("cellblock.journal")

OUTCOME_SECONDS: Final = 660.0
"""Bounds the wait for the end of a run that goes on elsewhere: a run takes ten minutes at most as configured."""

OUTCOME_LOOK_SECONDS: Final = 0.25


class ParkedRuns(GoingOn):
    """Has the runs of one state directory that wait; the arguments are as for `GoingOn`."""

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
            StoreError: It cannot be read; Foreign: it has its answers, and does not go on here.
        """
        until = time.monotonic() + OUTCOME_SECONDS
        while True:
            # Another broker may have it, or a client of this one that is back.
            head = await self._journals.asked(lambda store: store.head(run_id, principal), None)
            if head is not None and (task := self._awake.get(run_id)) is not None:
                response = await asyncio.shield(task)
                # Its tools may have answered before it was said that it waits for them.
                if not response.parked or await self._asks(run_id):
                    return response
            elif head is not None and head.is_answered and (why := self._foreign.get(run_id)) is not None:
                raise Foreign(why)
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
        """Returns the parked runs, as `Broker.parked` does."""
        with _readable():
            return await self.waiting(principal)

    async def resume(
        self, run_id: str, answer: Answer | Mapping[int, Given], principal: str | None
    ) -> RunResponse:
        """Has a parked run go on, as `Broker.resume` does."""
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

    def end_round(self, run_id: str, turn: int, principal: str) -> None:
        """Has nobody else come back in a round of a run, whose client has its response."""
        self._journals.do(lambda store: store.end_round(run_id, turn, principal))

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

        owner, is_at_work, is_taken = self._owner.name, False, False

        def take(store: JournalStore) -> tuple[Head, list[Piece]] | None:
            nonlocal is_at_work, is_taken
            head = store.head(run_id, principal)
            if head is not None and (head.state, head.turn) == ("parked", turn) and head.owner is not None:
                is_at_work = True
                return None
            found = store.take(run_id, owner, principal=principal, turn=turn, answers=answers)
            is_taken = found is not None
            return found

        try:
            kept = await self._opened(run_id, take)
        except asyncio.CancelledError:
            # As of one whose client goes away a moment later.
            self._journals.do(lambda store: is_taken and store.give_up(run_id, owner, CANCELLED))
            raise
        return await self._waited_for(run_id, turn, answers, principal) if is_at_work else kept

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
        return head.owner is not None and await self._asks(head.id) is False

    async def _asks(self, run_id: str) -> bool | None:
        """Says whether a parked run waits for people; None of one that is not parked. Raises StoreError."""
        waiting = await self.questions(run_id)
        return None if waiting is None else bool(waiting[1])


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
