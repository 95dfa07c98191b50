"""Parking decides when a run is written down and its process ended: when all that it waits for is people.

Calls without a question hold the run where it is: what they come to must not be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, NoReturn

from pydantic_core import to_json

from cellblock.base.questions import SHOWN_BYTES, ParkedQuestion, QuestionId
from cellblock.run.policy.asking import Question

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
    arguments, login, flow = question.arguments, question.login, question.flow
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
        said=flow.said if flow is not None else "" if login is None else login.said,
        request=flow.pack()
        if flow is not None
        else ""
        if login is None
        else json.dumps({"server": login.server, "mark": login.mark, "page": login.page}),
    )
