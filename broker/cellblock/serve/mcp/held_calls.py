"""Held_calls keeps the proxied calls whose client is away with a question.

In the protocol of 2026-07-28 a call that asks is answered with its questions, and the client makes it again with the
answers. A run is written down meanwhile, and any broker goes on with it. A proxied call has no run, so it goes on where
it is: at this broker, and for a bounded time. Elsewhere, and afterwards, its client gets an error that says whether the
call may have run; it is never made a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from cellblock.run.events import new_run_id
from cellblock.run.questions import IS_OVER
from cellblock.serve.mcp.approvals import APPROVAL
from cellblock.serve.mcp.live import LiveRun
from cellblock.serve.mcp.request_state import RequestStates
from cellblock.serve.mcp.requests_back import Ask
from cellblock.tools.schemas.replies import misfit

MAX_HELD: Final = 64
"""Bounds the calls that ask at the same time, or have asked and are not over."""

RETURN_SECONDS: Final = 30.0
"""Sets for how long a call, or its result, is kept for its client after the time for its last answer."""

WORD_SECONDS: Final = 86_400.0
"""Sets for how long a client that comes too late is told what may have become of its call."""

GATHER_SECONDS: Final = 0.02
"""Passes before a client goes away: what a server asks at once is asked together."""

MAX_CHECKED_BYTES: Final = 64 * 1024
"""Bounds a form that an answer is held against here; the server judges the answer to a larger one."""

TOO_MANY: Final = "Too many clients are being asked at the moment."
NO_ANSWER: Final = "The client has come back without an answer."

NOT_MADE: Final = "Unless it was allowed before, the call was not made: call the tool again."
MAY_HAVE_RUN: Final = "The call may have run: find out what it has done before you call the tool again."


@dataclass(eq=False, slots=True)
class _Question:
    request: types.InputRequest
    answer: asyncio.Future[types.InputResponse | types.ErrorData]
    until: float
    sent: bool = False

    @property
    def is_open(self) -> bool:
        return not self.answer.done()


class HeldCall:
    """Makes one call in a task of its own, and asks its client; see `HeldCalls.begin`.

    Attributes:
        may_have_run: Whether its server has asked, and so has the call.
        expiry: Ends the call whose client stays away.
    """

    def __init__(
        self,
        principal: str,
        live: LiveRun | None,
        asking: set[HeldCall],
        work: Callable[[Ask], Coroutine[Any, Any, Any]],
    ) -> None:
        self.principal, self.live = principal, live
        self.may_have_run = False
        self.expiry: asyncio.TimerHandle | None = None
        self._asking = asking
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._wake = asyncio.Event()
        self._work = asyncio.create_task(work(self.ask))
        self._work.add_done_callback(self._ended)

    async def ask(
        self, request: types.InputRequest, result: type[BaseModel], bound: float, *, key: str = ""
    ) -> BaseModel | types.ErrorData:
        """Waits for the client to be back with an answer, as `Ask` has it."""
        if self._work.done():
            return types.ErrorData(code=types.INVALID_REQUEST, message=IS_OVER)
        if self not in self._asking and len(self._asking) >= MAX_HELD:
            return types.ErrorData(code=types.INVALID_REQUEST, message=TOO_MANY)
        self._asking.add(self)
        self.may_have_run |= key != APPROVAL
        self._asked += 1
        loop = asyncio.get_running_loop()
        name = key or f"input-{self._asked}"
        question = self._questions[name] = _Question(request, loop.create_future(), loop.time() + bound)
        self._wake.set()
        try:
            return await question.answer
        finally:
            del self._questions[name]

    async def is_over(self) -> bool:
        """Waits until the call is over, or its client is to go away with questions; says which."""
        while not self._work.done():
            if any(question.is_open for question in self._questions.values()):
                await asyncio.wait([self._work], timeout=GATHER_SECONDS)
                break
            self._wake.clear()
            await self._wake.wait()
        return self._work.done()

    def result(self) -> Any:
        """Returns what the call that is over came to, or raises it."""
        return self._work.result()

    def take_away(self) -> tuple[types.InputRequests, float]:
        """Returns what the client goes away with, and for how many seconds it is waited for at most."""
        open_ones = {name: question for name, question in self._questions.items() if question.is_open}
        for question in open_ones.values():
            question.sent = True
        now = asyncio.get_running_loop().time()
        bound = max((question.until - now for question in open_ones.values()), default=0.0)
        return {name: question.request for name, question in open_ones.items()}, max(0.0, bound)

    def misfit(self, answers: types.InputResponses) -> str | None:
        """Says which answer does not fit its form; None where all do, or cannot be checked."""
        for name, question in self._questions.items():
            params, answer = question.request.params, answers.get(name)
            if isinstance(params, types.ElicitRequestFormParams) and isinstance(answer, types.ElicitResult):
                form = params.model_dump(mode="json", by_alias=True)
                is_small = len(params.model_dump_json(by_alias=True)) <= MAX_CHECKED_BYTES
                if is_small and (wrong := misfit(form, answer)) is not None:
                    return f"The answer to {name} does not fit its form: {wrong}"
        return None

    def returned(self, answers: types.InputResponses) -> None:
        """Takes the answers of a client that is back; what it was not asked, or comes too late, is ignored."""
        for name, question in self._questions.items():
            if question.sent and question.is_open:
                question.answer.set_result(answers.get(name, _no_answer(name)))

    def give_up(self) -> None:
        """Ends the call."""
        self._work.cancel()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        self._asking.discard(self)
        self._wake.set()
        if not work.cancelled():
            # Its client may never come back for what went wrong.
            work.exception()


def _no_answer(name: str) -> types.InputResponse | types.ErrorData:
    if name == APPROVAL:
        return types.ElicitResult(action="cancel")
    return types.ErrorData(code=types.INVALID_REQUEST, message=NO_ANSWER)


class HeldCalls:
    """Keeps the calls whose client is away, by the words with which the clients come back: each is good once.

    Args:
        states: Signs the words.
    """

    def __init__(self, states: RequestStates) -> None:
        self._states = states
        self._away: dict[str, HeldCall] = {}
        self._asking: set[HeldCall] = set()

    def begin(
        self, principal: str, live: LiveRun | None, work: Callable[[Ask], Coroutine[Any, Any, Any]]
    ) -> HeldCall:
        """Begins a call.

        Args:
            principal: Whose it is; nobody else can go on with it.
            live: Tells its client of it, whenever that is here.
            work: Makes it; is given what asks its client.
        """
        return HeldCall(principal, live, self._asking, work)

    async def outcome(self, call: HeldCall) -> Any:
        """Returns what a call comes to while its client is here: its result, or an `InputRequiredResult`. Cancelled, it
        ends the call."""
        try:
            if await call.is_over():
                return call.result()
            requests, bound = call.take_away()
            number = int(call.may_have_run)
            word = await self._states.signed(new_run_id(), call.principal, number, WORD_SECONDS)
        except asyncio.CancelledError:
            call.give_up()
            raise
        self._away[word] = call
        loop = asyncio.get_running_loop()
        call.expiry = loop.call_later(bound + RETURN_SECONDS, self._expire, word)
        return types.InputRequiredResult(input_requests=requests, request_state=word)

    async def back(self, params: types.CallToolRequestParams, principal: str) -> HeldCall:
        """Returns the call that a client has come back for; it goes on with the answers.

        Raises:
            MCPError: No call waits for them here, or one does not fit what was asked: that can be answered again.
        """
        word, answers = params.request_state or "", params.input_responses or {}
        call = self._away.get(word)
        if call is None or call.principal != principal:
            known = await self._states.read(word, principal)
            fate = NOT_MADE if known is not None and known[1] == 0 else MAY_HAVE_RUN
            raise MCPError(
                types.INVALID_PARAMS,
                "No call waits for this answer here: it came too late or twice, or the broker that held the call"
                f" has ended or is another one. {fate}",
            )
        if (wrong := call.misfit(answers)) is not None:
            raise MCPError(types.INVALID_PARAMS, f"{wrong}. The question is still open: answer it again.")
        del self._away[word]
        if call.expiry is not None:
            call.expiry.cancel()
        call.returned(answers)
        return call

    def _expire(self, word: str) -> None:
        self._away.pop(word).give_up()
