"""Server_questions have what upstream servers ask during the calls of one run.

Its client is asked first, while the run has its process. When it is away for long, or there is none, the run is
parked: the call stays with its broker, and the question waits for whoever answers the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final

import mcp_types as types
from pydantic import BaseModel

from cellblock.execution.events import CallFacts
from cellblock.execution.keeping import KeptRun
from cellblock.execution.parking import Parking
from cellblock.journal.at_work import OpenQuestion
from cellblock.journal.parked import SHOWN_BYTES, ParkedQuestion, Round
from cellblock.journal.replies import KINDS, result_of
from cellblock.upstream.requester import Asked, Live

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Bounds a question that is written down: its form, or what a model is to say something about. One that is larger keeps
the run in its process."""

MAX_QUESTIONS: Final = 64
"""Bounds the questions of one call for which its run is parked: each is written down, and a person is to answer it."""

MAX_OPEN: Final = 8
"""Bounds the questions that wait at the same time."""

TOO_MANY: Final = f"Its run is parked: a call may ask {MAX_QUESTIONS} questions then, {MAX_OPEN} at once."
TOO_LARGE: Final = f"Its run is parked, and the question has more than {MAX_REQUEST_BYTES} bytes."

IS_OVER: Final = "The call is over."

_UNASKED: Final = types.METHOD_NOT_FOUND


class ServerQuestions:
    """Asks the client of a run, and parks the run where it does not answer.

    Args:
        kept: Writes the run down.
        parking: The run's.
    """

    def __init__(self, kept: KeptRun, parking: Parking) -> None:
        self._kept = kept
        self._parking = parking
        self._asked = Counter[int]()
        self._open: dict[OpenQuestion, asyncio.Future[Any] | None] = {}
        self._is_left = self._client_waits = False

    def of_call(self, call_id: int, call: CallFacts, body: bytes) -> Asked:
        """Gives what has the answers to questions of the server of a call; `body` is its input."""
        # Not all of it: it may have megabytes, and the call may take days.
        return partial(self._ask, call_id, call, body[:SHOWN_BYTES], len(body))

    def round_of_call(self, call_id: int) -> Round | None:
        """Gives where a call goes on that another process had made and whose server asks in rounds."""
        earlier = self._kept.earlier
        return None if earlier is None else earlier.rounds.get(call_id)

    async def sends(self, call_id: int) -> None:
        """Waits until a call that asks in rounds may go on with its answers."""
        if self._is_left:
            await self._kept.sends(call_id)
            # Should it be another's by now, it is cancelled here.
            await asyncio.sleep(0)

    def leave(self, *, client_waits: bool) -> None:
        """Hears that the run is parked, and its calls stay. Those who answer the run are asked from now on, and its
        client only if that one waits."""
        self._is_left, self._client_waits = True, client_waits
        for question, asking in [*self._open.items()]:
            self._kept.asks(question, is_written=True)
            if asking is not None:
                asking.cancel()

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
        if self._is_left and self._client_waits:
            return await live("")
        self._asked[call_id] += 1
        nth, params = self._asked[call_id], request.params
        asked = ParkedQuestion(
            call=call_id,
            server=call.server,
            tool=call.tool,
            destructive=False,
            input=beginning.decode("utf-8", "replace"),
            bytes=size,
            kind=KINDS[request.method],
            nth=self._kept.resumed * 1000 + nth,
            said=params.message if isinstance(params, types.ElicitRequestParams) else "",
            request="{}" if params is None else params.model_dump_json(by_alias=True, exclude_none=True),
            round=round if len(round) <= MAX_REQUEST_BYTES else "",
        )
        is_large = len(asked.request) > MAX_REQUEST_BYTES
        if self._is_left:
            open_now = sum(question.asked.call == call_id for question in self._open)
            if is_large or nth > MAX_QUESTIONS or open_now >= MAX_OPEN:
                return types.ErrorData(
                    code=types.INVALID_REQUEST, message=TOO_LARGE if is_large else TOO_MANY
                )
        elif is_large or nth > MAX_QUESTIONS:
            with self._parking.asking():
                return await live("")
        question = OpenQuestion(asked, asyncio.get_running_loop().create_future())
        self._open[question] = None
        try:
            return await (self._later(question) if self._is_left else self._now(question, live))
        finally:
            del self._open[question]

    async def _now(self, question: OpenQuestion, live: Live) -> BaseModel | types.ErrorData:
        """Asks the client, and returns its answer; once the run is parked, the first answer from anywhere."""
        parking, answer = self._parking, question.answer
        parking.asks(question)
        asking = self._open[question] = asyncio.ensure_future(live(key_of(question.asked.number)))
        try:
            await asyncio.wait([asking, answer], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and not self._is_left and self._is_unasked(question, asking.result()):
                # As of an approval: who answers comes later.
                await asyncio.wait([parking.asks_nobody(), answer], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and not self._is_left:
                return asking.result()
        finally:
            asking.cancel()
            parking.asks_no_more(question)
        return await self._answered(question)

    async def _later(self, question: OpenQuestion) -> BaseModel | types.ErrorData:
        self._kept.asks(question, is_written=False)
        return await self._answered(question)

    async def _answered(self, question: OpenQuestion) -> BaseModel | types.ErrorData:
        try:
            given = await question.answer
        finally:
            self._kept.asks_no_more(question)
        if given is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message=IS_OVER)
        return result_of(question.asked.kind, given)

    def _is_unasked(self, question: OpenQuestion, said: BaseModel | types.ErrorData) -> bool:
        """Says whether the client cannot ask its user, and whether others are to: of a run that is to outlive it."""
        is_refused = isinstance(said, types.ErrorData) and said.code == _UNASKED
        return is_refused and question.asked.kind == "elicitation" and self._kept.is_durable


def key_of(number: int) -> str:
    """Returns the name of a question by which clients answer it."""
    return f"question-{number}"
