"""Parking decides when a run is written down and its process ended: when all that it waits for is people, or tools
that have been at work for long.

Other calls that are under way hold the run where it is: what they come to must not be lost. A call whose server asks
something waits for people, and stays with its broker as one whose tool is at work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from cellblock.apart.raw import RawJson
from cellblock.journal.at_work import OpenQuestion
from cellblock.journal.parked import SHOWN_BYTES, ParkedQuestion
from cellblock.policy.asking import Question

GATHER_SECONDS: Final = 0.05
"""Passes at least before a run is parked: what a script asks for at once is asked together."""


class Waiting(NamedTuple):
    """Holds what a run waits for: questions by calls, those of servers by their numbers, and calls that are at work."""

    questions: dict[int, Question]
    asked: dict[int, OpenQuestion]
    working: frozenset[int]


class Parking:
    """Knows which calls of one run wait for a person or a tool; implements `policy.rules.Waits`.

    Args:
        after: Seconds that an answer is waited for in the process; None: for as long as the client is there.
        in_flight: Counts the run's calls that are under way.
        park: Parks the run; called once, until `failed`.
        tools_after: Seconds that a tool's answer is waited for in the process; None: for as long as it takes.

    Attributes:
        questions: What is asked, by the numbers of the calls.
        asked: What servers ask during calls, by the numbers of the questions.
        working: When the time of each tool that is at work is over, by the numbers of the calls.
    """

    def __init__(
        self,
        after: float | None,
        in_flight: Callable[[], int],
        park: Callable[[], None],
        tools_after: float | None = None,
    ) -> None:
        self.questions: dict[int, Question] = {}
        self.asked: dict[int, OpenQuestion] = {}
        self.working: dict[int, float] = {}
        self._after = after
        self._tools_after = tools_after
        self._asking = 0
        self._tools_timer: asyncio.TimerHandle | None = None
        self._in_flight = in_flight
        self._park = park
        self._due = 0.0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._parks = False
        self._has_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def waits(self, question: Question) -> None:
        """Hears that a call waits for an answer that may come while the run has its process."""
        self.questions[question.call_id] = question
        self._waits(self._patience)

    def goes_on(self, call_id: int) -> None:
        """Hears that a call does not wait any longer for an approval or a login."""
        self.questions.pop(call_id, None)
        self._waits_no_more()

    def asks(self, question: OpenQuestion) -> None:
        """Hears that the server of a call asks something, which its client may answer while the run has its process."""
        self.asked[question.asked.number] = question
        self._waits(self._patience)

    def asks_nobody(self) -> asyncio.Future[None]:
        """Hears that the client cannot be asked a question now: the run is parked at once. Returns what is done where
        that cannot be."""
        self._waits(GATHER_SECONDS)
        return self._has_failed

    def asks_no_more(self, question: OpenQuestion) -> None:
        """Hears that a server's question has its answer, or needs none."""
        self.asked.pop(question.asked.number, None)
        self._waits_no_more()
        self.look()

    @property
    def waiting(self) -> Waiting:
        """Returns the questions and calls that the run waits for in this moment."""
        return Waiting(dict(self.questions), dict(self.asked), self.at_work)

    @property
    def at_work(self) -> frozenset[int]:
        """Returns the calls that stay with their broker when the run is parked."""
        return frozenset((*self.working, *(question.asked.call for question in self.asked.values())))

    async def until_parked(self, question: Question) -> None:
        """Waits for the run to be parked, which cancels the call; returns where that cannot be."""
        self.questions[question.call_id] = question
        self._waits(GATHER_SECONDS)
        try:
            await asyncio.shield(self._has_failed)
        finally:
            self.goes_on(question.call_id)

    def begins(self, call_id: int) -> None:
        """Hears that a tool is at work on a call from now on."""
        if self._tools_after is not None:
            self.working[call_id] = asyncio.get_running_loop().time() + max(self._tools_after, GATHER_SECONDS)
            self.look()

    def ends(self, call_id: int) -> None:
        """Hears that a call has ended; the questions that its server still asks need no answer."""
        self.working.pop(call_id, None)
        for number in [number for number, question in self.asked.items() if question.asked.call == call_id]:
            self.asked.pop(number).over()
        self._waits_no_more()
        self.look()

    @property
    def is_asking(self) -> bool:
        """Says whether a server asks the run's client something."""
        return self._asking > 0

    @contextmanager
    def asking(self) -> Generator[None]:
        """Keeps the run from being parked inside a block: a server asks its client something."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self.look()

    def look(self) -> None:
        """Parks the run if it is time, and nothing but people and tools is waited for."""
        waits = len(self.questions) + len(self.at_work)
        if self._parks or self._asking or not waits or self._in_flight() > waits:
            return
        if (self.questions or self.asked) and not self._is_due:
            return
        loop = asyncio.get_running_loop()
        asking = {question.asked.call for question in self.asked.values()}
        due = max((at for call, at in self.working.items() if call not in asking), default=0.0)
        if due > loop.time():
            if self._tools_timer is None:
                self._tools_timer = loop.call_at(due, self._tools_time_has_come)
            return
        self._parks = True
        self._park()

    def park_now(self) -> bool:
        """Parks the run if it waits for people and for nothing else, however long; says whether it is being parked."""
        is_asked = bool(self.questions or self.asked)
        if is_asked:
            self._is_due = True
            self.look()
        return is_asked and self._parks

    def failed(self, *, for_good: bool) -> None:
        """Hears that the run is not parked: it could not be written, which is so for good, or it went on meanwhile."""
        self._parks = for_good
        if for_good and not self._has_failed.done():
            self._has_failed.set_result(None)

    def close(self) -> None:
        """Ends the waiting, as the run is over."""
        self._parks = True
        self._stop_timer()
        if self._tools_timer is not None:
            self._tools_timer.cancel()

    # ---- inside --------------------------------------------------------------------------------------

    @property
    def _patience(self) -> float | None:
        return None if self._after is None else max(self._after, GATHER_SECONDS)

    def _waits_no_more(self) -> None:
        if not self.questions and not self.asked:
            self._is_due = False
            self._stop_timer()

    def _waits(self, seconds: float | None) -> None:
        if seconds is None:
            return
        if self._is_due:
            # Others have waited for long; what had held the run asks now, too, and the rest of that comes at once.
            seconds = GATHER_SECONDS
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is None or due < self._due:
            self._stop_timer()
            self._due, self._timer = due, loop.call_at(due, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer, self._is_due = None, True
        self.look()

    def _tools_time_has_come(self) -> None:
        self._tools_timer = None
        self.look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def parked_question(question: Question) -> ParkedQuestion:
    """Returns a question in the form that is written down."""
    arguments = question.arguments
    whole = arguments.raw if isinstance(arguments, RawJson) else json.dumps(arguments).encode()
    parked = ParkedQuestion(
        call=question.call_id,
        server=question.server_id,
        tool=question.tool_name,
        destructive=question.destructive,
        input=whole[:SHOWN_BYTES].decode("utf-8", "replace"),
        bytes=len(whole),
    )
    if (login := question.login) is None:
        return parked
    place = json.dumps({"server": login.server, "mark": login.mark})
    return replace(parked, kind="login", nth=login.nth, said=login.said, request=place)
