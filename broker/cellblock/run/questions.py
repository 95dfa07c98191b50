"""Questions of one run: what upstream servers ask during its calls, and the logins that its calls need.

A client that can be asked now is asked first, while the run has its process. Where it cannot, the run is parked, and
the question waits for whoever answers the run. A call that was refused for a login, or whose server asks in rounds, is
made by whoever goes on with the run; one whose server waits in a session stays with this broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final

import mcp_types as types
from pydantic import BaseModel

from cellblock.base.errors import AuthenticationFailed, Certainty
from cellblock.base.questions import SHOWN_BYTES, ParkedQuestion, QuestionId
from cellblock.base.tasks import at_most
from cellblock.run.events import CallFacts
from cellblock.run.hook import KeptRun, OpenQuestion
from cellblock.run.parking import Parking
from cellblock.run.policy.asking import Approver, LoginQuestion, Question, Verdict
from cellblock.run.policy.rules import asked_now
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.outstanding import ANSWER_BOUND_SECONDS, LATER
from cellblock.tools.upstream.requester import Asked, Live

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Bounds a question that is written down: its form, or what a model is to say something about."""

MAX_QUESTIONS: Final = 64
"""Bounds the questions of one call for which its run is parked: each is written down, and a person is to answer it."""

MAX_OPEN: Final = 8
"""Bounds the questions of one call that wait at the same time."""

MAX_LOGINS: Final = 3
"""Bounds how often one call of a process waits for a login: a server may refuse each."""

LOGIN_POLL_SECONDS: Final = 0.5
"""Separates two looks whether somebody has logged in at a page."""

PER_PROCESS: Final = 1_000
"""Separates the numbers of a call's questions in one process of its run from those in the next."""

TOO_MANY: Final = f"Its run is parked: a call may ask {MAX_QUESTIONS} questions then, {MAX_OPEN} at once."
TOO_LARGE: Final = f"Its run is parked, and the question has more than {MAX_REQUEST_BYTES} bytes."
IS_OVER: Final = "The call is over."


class Questions:
    """Asks the client of a run, and has the run parked where it does not answer.

    Args:
        kept: Writes the run down.
        parking: The run's.
        clock: Its wall clock, which stands still meanwhile.
        approver: Asks the client's user for a login; None where nobody can be asked now.
    """

    def __init__(self, kept: KeptRun, parking: Parking, clock: RunClock, approver: Approver | None) -> None:
        self.parking = parking
        self._kept, self._clock, self._approver = kept, clock, approver
        self._count, self._logins = Counter[int](), Counter[int]()
        self._refused = {} if kept.earlier is None else dict(kept.earlier.logins)
        self._open: set[OpenQuestion] = set()
        self._left = asyncio.Event()

    # ---- what servers ask ----------------------------------------------------------------------------

    def of_call(self, call_id: int, call: CallFacts, body: bytes) -> Asked:
        """Gives what has the answers to questions of the server of a call; `body` is its input."""
        # Not all of it: it may have megabytes, and the call may take days.
        return partial(self._ask, call_id, call, body[:SHOWN_BYTES], len(body))

    def leave(self) -> list[OpenQuestion]:
        """Hears that the run is parked: those who answer the run are asked from now on. Returns what is asked."""
        self._left.set()
        return [question for question in self._open if question.asked.holds_call]

    def call_is_over(self, call_id: int) -> None:
        """Ends the questions of a call that has ended."""
        for question in self._open:
            if question.asked.call == call_id:
                question.answered(None)

    async def _ask(
        self,
        call_id: int,
        call: CallFacts,
        beginning: bytes,
        size: int,
        request: types.InputRequest,
        live: Live,
        round: str = "",
    ) -> BaseModel | types.ErrorData:
        nth, params = self._next(call_id), request.params
        count = self._count[call_id]
        asked = ParkedQuestion(
            call=call_id,
            server=call.server,
            tool=call.tool,
            destructive=False,
            input=beginning.decode("utf-8", "replace"),
            bytes=size,
            kind=KINDS[request.method],
            nth=nth,
            said=params.message if isinstance(params, types.ElicitRequestParams) else "",
            request="{}" if params is None else params.model_dump_json(by_alias=True, exclude_none=True),
            round=round if len(round) <= MAX_REQUEST_BYTES else "",
        )
        question = OpenQuestion(asked, asyncio.get_running_loop().create_future())
        is_large, was_left = len(asked.request) > MAX_REQUEST_BYTES, self._left.is_set()
        fits = self._open_of(call_id) < MAX_OPEN
        is_written_down = fits and not is_large
        if not was_left and (said := await self._now(question, live, is_written_down)) is not None:
            return said
        if is_large:
            return types.ErrorData(code=types.INVALID_REQUEST, message=TOO_LARGE)
        # What its client was being asked when the run was parked is written down with it.
        is_written = self._left.is_set() and not was_left and fits
        if not is_written and (count > MAX_QUESTIONS or self._open_of(call_id) >= MAX_OPEN):
            return types.ErrorData(code=types.INVALID_REQUEST, message=TOO_MANY)
        return await self._later(question)

    async def _now(
        self, question: OpenQuestion, live: Live, is_written_down: bool
    ) -> BaseModel | types.ErrorData | None:
        """Asks the client that is there, and returns its answer; None where whoever answers the run is to be asked."""
        asked, parking = question.asked, self.parking
        if is_written_down:
            # One too large or too many holds the run in its process, until it is answered or refused.
            # In this order: the wait may park the run, which leaves the questions that are open.
            self._open.add(question)
            parking.waits(asked)
        asking = asyncio.ensure_future(live(key_of(asked.id)))
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait([asking, left], return_when=asyncio.FIRST_COMPLETED)
            return (
                None if self._left.is_set() or self._is_for_later(asked, asking.result()) else asking.result()
            )
        finally:
            asking.cancel()
            left.cancel()
            self._open.discard(question)
            parking.goes_on(asked.id)

    async def _later(self, question: OpenQuestion) -> BaseModel | types.ErrorData:
        self._open.add(question)
        if self._left.is_set():
            self._kept.asks(question)
        else:
            self.parking.waits_for_later(question.asked)
        try:
            given = await question.answer
        finally:
            self._open.discard(question)
            self.parking.goes_on(question.asked.id)
            self._kept.asks_no_more(question)
        if given is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message=IS_OVER)
        return result_of(question.asked.kind, given)

    def _is_for_later(self, asked: ParkedQuestion, said: BaseModel | types.ErrorData) -> bool:
        """Says whether the client cannot be asked now, and others can: it comes back, or its run is to outlive it."""
        if said is LATER:
            return True
        is_refused = isinstance(said, types.ErrorData) and said.code == types.METHOD_NOT_FOUND
        return is_refused and asked.kind == "elicitation" and self._kept.is_durable

    def _open_of(self, call_id: int) -> int:
        return sum(question.asked.call == call_id for question in self._open)

    def _next(self, call_id: int) -> int:
        self._count[call_id] += 1
        return self._kept.resumed * PER_PROCESS + self._count[call_id]

    # ---- logins --------------------------------------------------------------------------------------

    def check_login(self, call_id: int, server: str, tool: ToolEntry) -> None:
        """Raises AuthenticationFailed for a call that the user does not want to log in for; it is not made."""
        if self._refused.pop(call_id, Verdict.ACCEPTED) is not Verdict.ACCEPTED:
            raise AuthenticationFailed(
                f"{tool.export_name} was not called: {server} needs a login, and the user has not logged in.",
                hint="Do without this call, or ask the user to log in.",
                certainty=Certainty.NOT_STARTED,
            )

    async def until_logged_in(
        self, call_id: int, server: str, tool: ToolEntry, arguments: Any, error: AuthenticationFailed
    ) -> None:
        """Returns when a call that was refused for a login may be made again. Raises the error that it was refused
        with."""
        login = error.login
        self._logins[call_id] += 1
        if login is None or self._logins[call_id] > MAX_LOGINS:
            raise error
        wanted = LoginQuestion(f"{error.message} {error.hint}", login.server, await login.mark(), login.page)
        names = server, tool.tool_name, False, arguments, ANSWER_BOUND_SECONDS, call_id
        question, verdict = Question(*names, login=wanted, nth=self._next(call_id)), None
        with self._clock.standing_still():
            if self._approver is not None:
                verdict = await asked_now(self._approver, question, self.parking)
            if self._approver is None or verdict in (Verdict.CANNOT_ASK, Verdict.LATER):
                await self.parking.until_parked(question)
            if verdict is Verdict.ACCEPTED and login.page is not None:
                # Who opens a page says yes before the login is there.
                async with at_most(ANSWER_BOUND_SECONDS):
                    while not await login.is_there(wanted.mark):  # noqa: ASYNC110 - it may come at another broker
                        await asyncio.sleep(LOGIN_POLL_SECONDS)
        if verdict is not Verdict.ACCEPTED:
            raise error


def key_of(question: QuestionId) -> str:
    """Returns the name of a question by which clients answer it."""
    return f"question-{question}"
