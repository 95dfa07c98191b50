"""Questions of one run: what upstream servers ask during its calls, and the logins that its calls need.

A client that can be asked now is asked first, while the run has its process. Where it cannot, the run is parked, and
the question waits for whoever answers the run. A call that was refused for a login, or whose server asks in rounds, is
made by whoever goes on with the run; one whose server waits in a session stays with this broker.

`Parking` decides when the run is written down and its process ended: when all that it waits for is people. Calls
without a question hold the run where it is: what they come to must not be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

import mcp_types as types
from pydantic import BaseModel
from pydantic_core import to_json

from cellblock.base.errors import AuthenticationFailed, Certainty
from cellblock.base.questions import SHOWN_BYTES, Given, ParkedQuestion, QuestionId, Round
from cellblock.run.events import CallFacts
from cellblock.run.hook import KeptRun, Parked
from cellblock.run.policy.asking import Approver, LoginQuestion, Question, Verdict
from cellblock.run.policy.rules import RunRules, asked_now
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.schemas.replies import KINDS, result_of
from cellblock.tools.upstream.outstanding import ANSWER_BOUND_SECONDS
from cellblock.tools.upstream.requester import LATER, Asked, Live

GATHER_SECONDS: Final = 0.05
"""Passes before a run is parked: what a script asks for at once is asked together."""


class Parking:
    """Knows which calls of one run wait for a person.

    Args:
        in_flight: Counts the run's calls that are under way.
        park: Parks the run; called once.

    Attributes:
        questions: What the run waits for in this moment.
    """

    def __init__(self, in_flight: Callable[[], int], park: Callable[[], None]) -> None:
        self.questions: dict[QuestionId, ParkedQuestion] = {}
        self._in_flight = in_flight
        self._park = park
        self._is_due = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def waits(self, question: Question | ParkedQuestion) -> None:
        """Hears that a call waits for an answer that may come while the run has its process."""
        self.questions[question.id] = _parked(question) if isinstance(question, Question) else question
        self.look()

    def goes_on(self, question: QuestionId) -> None:
        """Hears that nobody waits for this answer any more."""
        self.questions.pop(question, None)
        if not self.questions:
            self._is_due = False
            self._stop_timer()

    def waits_for_later(self, question: Question | ParkedQuestion) -> None:
        """Hears that a call waits for an answer that nobody can give now: the run is parked."""
        self.waits(question)
        if not self._is_due and self._timer is None and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._time_has_come)

    async def until_parked(self, question: Question) -> NoReturn:
        """Waits for the run to be parked, which cancels the call."""
        self.waits_for_later(question)
        try:
            while True:
                await asyncio.get_running_loop().create_future()
        finally:
            self.goes_on(question.id)

    def look(self) -> None:
        """Parks the run if it is time, and nothing but people is waited for."""
        waiting = len({question.call for question in self.questions})
        if self._is_due and not self._is_over and waiting and self._in_flight() <= waiting:
            self._is_over = True
            self._park()

    def park_now(self) -> bool:
        """Parks the run if it waits for people and for nothing else; says whether it is being parked."""
        if not self._is_over and self.questions:
            before, self._is_due = self._is_due, True
            self.look()
            self._is_due = self._is_over or before
        return self._is_over and bool(self.questions)

    def close(self) -> None:
        """Ends the waiting, as the run is over."""
        self._is_over = True
        self._stop_timer()

    def state(self, rules: RunRules | None, client: str, losses: tuple[str, ...]) -> Parked:
        """Returns what is written down of what the run waits for."""
        asked = tuple(self.questions.values())
        parked = Parked(questions=asked, client=client, losses=losses)
        if rules is None:
            return parked
        # Those that another process may make.
        allowed = rules.allowed & {question.call for question in asked if not question.holds_call}
        return replace(parked, allowed=tuple(allowed), asked=rules.asked, waited_ms=rules.waited_ms)

    # ---- inside --------------------------------------------------------------------------------------

    def _time_has_come(self) -> None:
        self._timer, self._is_due = None, True
        self.look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _parked(question: Question) -> ParkedQuestion:
    """Returns a question in the form that is written down."""
    arguments, login = question.arguments, question.login
    whole = to_json(arguments)
    return ParkedQuestion(
        call=question.call_id,
        server=question.server_id,
        tool=question.tool_name,
        destructive=question.destructive,
        input=whole[:SHOWN_BYTES].decode("utf-8", "replace"),
        bytes=len(whole),
        kind="approval" if login is None else "login",
        nth=question.nth,
        said="" if login is None else login.said,
        request="" if login is None else json.dumps({"server": login.server, "mark": login.mark}),
    )


MAX_REQUEST_BYTES: Final = 64 * 1024
"""Bounds a question that is written down: its form, or what a model is to say something about."""

MAX_QUESTIONS: Final = 64
"""Bounds the questions of one call for which its run is parked: each is written down, and a person is to answer it."""

MAX_OPEN: Final = 8
"""Bounds the questions of one call that wait at the same time."""

MAX_LOGINS: Final = 3
"""Bounds how often one call of a process waits for a login: a server may refuse each."""

PER_PROCESS: Final = 1_000
"""Separates the numbers of a call's questions in one process of its run from those in the next."""

TOO_MANY: Final = f"Its run is parked: a call may ask {MAX_QUESTIONS} questions then, {MAX_OPEN} at once."
TOO_LARGE: Final = f"Its run is parked, and the question has more than {MAX_REQUEST_BYTES} bytes."
IS_OVER: Final = "The call is over."


@dataclass(eq=False, slots=True)
class OpenQuestion:
    """Describes a question of a server that waits in its session for an answer."""

    asked: ParkedQuestion
    answer: asyncio.Future[Given | None]
    """Holds the answer when it is there; None where the call is over."""

    def answered(self, given: Given | None) -> None:
        """Takes the answer; the first one counts."""
        if not self.answer.done():
            self.answer.set_result(given)


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

    def round_of_call(self, call_id: int) -> Round | None:
        """Gives where a call goes on that another process had made and whose server asks in rounds."""
        earlier = self._kept.earlier
        return None if earlier is None else earlier.rounds.get(call_id)

    async def sends(self, call_id: int) -> None:
        """Waits until it is written down that a call goes on with its answers: its server may do what it is to do."""
        await self._kept.sends(call_id)

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
        wanted = LoginQuestion(f"{error.message} {error.hint}", login.server, await login.mark())
        names = server, tool.tool_name, False, arguments, ANSWER_BOUND_SECONDS, call_id
        question, verdict = Question(*names, login=wanted, nth=self._next(call_id)), None
        with self._clock.standing_still():
            if self._approver is not None:
                verdict = await asked_now(self._approver, question, self.parking)
            if self._approver is None or verdict in (Verdict.CANNOT_ASK, Verdict.LATER):
                await self.parking.until_parked(question)
        if verdict is not Verdict.ACCEPTED:
            raise error


def key_of(question: QuestionId) -> str:
    """Returns the name of a question by which clients answer it."""
    return f"question-{question}"
