"""Some runs go on while their client is away: in the protocol of 2026-07-28 a server asks nothing by itself. It answers
a call with what it wants to know, and the client makes the call again with the answers.

A run whose client stays away is parked, where it can be: then it is in the journals, and not here any more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import mcp_types as types
from mcp import MCPError

from cellblock.execution.events import new_run_id
from cellblock.execution.response import RunResponse
from cellblock.frontend.mcp.live import LiveRun
from cellblock.frontend.mcp.request_state import RequestStates
from cellblock.journal.replies import misfit

MAX_HELD: Final = 64
"""Runs whose client is away; each has a worker, too."""

RETURN_SECONDS: Final = 30.0
"""Sets for how long a run, or its response, is kept for a client that is away, after the time for its last answer."""

MAX_CHECKED_BYTES: Final = 64 * 1024
"""Bounds a form that an answer is held against here, on the loop; a server judges the answer to a larger one."""

GATHER_SECONDS: Final = 0.02
"""Passes before a client goes away: what a script asks for at once is asked together."""


class NoRoom(Exception):
    """Tells that too many clients are away already."""


class RunIsOver(Exception):
    """Tells that a run has no process any more, and that its client's request was answered."""


@dataclass(eq=False, slots=True)
class _Question:
    request: types.InputRequest
    answer: asyncio.Future[types.InputResponse | None]
    until: float
    sent: bool = False


class HeldRun:
    """Holds one run, which is a task of its own.

    Args:
        owner: Who calls; nobody else can go on with it.
        live: What its client is told of it, in all rounds.
        room: Whether one more client may go away.
        run_id: The run that goes on; empty for a new one.
        number: The round in which it was parked; 0 for a new run.

    Attributes:
        id: Names the run.
        round: Counts how often its client has gone away.
        expiry: Ends the run whose client stays away.
        forget: Is called when the run is parked.
    """

    def __init__(
        self, owner: str, live: LiveRun | None, room: Callable[[], bool], run_id: str = "", number: int = 0
    ) -> None:
        self.owner = owner
        self.live = live
        self.id = run_id or new_run_id()
        self.round = number
        self._park_round: int | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.forget: Callable[[], None] = lambda: None
        self._room = room
        self._task: asyncio.Future[RunResponse] | None = None
        self._questions: dict[str, _Question] = {}
        self._wake = asyncio.Event()

    def park_round(self) -> int:
        """Returns the round in which the run is parked now: no word is good for it but the next one."""
        self._park_round = self.round
        return self.round

    def word_round(self) -> int:
        """Returns the round of the next word: a new one, or that of a park that is still being written, whose row the
        client must find when it is back."""
        if self._park_round != self.round:
            self.round += 1
        return self.round

    def start(self, work: Awaitable[RunResponse]) -> None:
        """Begins a run that its client may come back for."""
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._is_over)

    async def ask(self, key: str, request: types.InputRequest, bound: float) -> types.InputResponse | None:
        """Waits until the client is back with an answer, at most `bound` seconds, which the caller keeps. No other open
        question has this `key`.

        Returns:
            The answer; None when the client has come back without one.

        Raises:
            NoRoom: It cannot be asked now.
            RunIsOver: It cannot be asked any more: one of its tools goes on after the run was parked.
        """
        if self._task is not None and self._task.done():
            raise RunIsOver
        if not self._room():
            raise NoRoom
        loop = asyncio.get_running_loop()
        asked = self._questions[key] = _Question(request, loop.create_future(), loop.time() + bound)
        self._wake.set()
        try:
            return await asked.answer
        finally:
            self._questions.pop(key, None)

    async def next(self, patience: float = 0.0) -> RunResponse | None:
        """Waits for the response of the run; None when there are questions, for which the run is not parked within
        `patience` seconds. When this is cancelled, so is the run."""
        assert self._task is not None
        gathered = False
        try:
            while not self._task.done():
                if not self._is_asking:
                    self._wake.clear()
                    await self._wake.wait()
                elif gathered:
                    return None
                else:
                    gathered = True
                    # A run that is parked now is parked in a round of its own.
                    self.round += patience > 0
                    await asyncio.wait([self._task], timeout=max(patience, GATHER_SECONDS))
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self._task.result()

    @property
    def _is_asking(self) -> bool:
        return any(not asked.answer.done() for asked in self._questions.values())

    def _is_over(self, task: asyncio.Future[RunResponse]) -> None:
        self._wake.set()
        if not task.cancelled() and task.exception() is None and task.result().parked:
            self.forget()

    def questions(self) -> tuple[types.InputRequests, float]:
        """Returns the open questions of the run, for the client to take with it, and how many seconds it has."""
        now = asyncio.get_running_loop().time()
        open_ones = {key: asked for key, asked in self._questions.items() if not asked.answer.done()}
        for asked in open_ones.values():
            asked.sent = True
        bound = max((asked.until - now for asked in open_ones.values()), default=0.0)
        return {key: asked.request for key, asked in open_ones.items()}, max(0.0, bound)

    def returned(self, answers: types.InputResponses) -> None:
        """Takes the answers of a client that is back. What comes too late is nobody's answer, and what it was not asked
        is ignored."""
        for key, asked in self._questions.items():
            if asked.sent and not asked.answer.done():
                asked.answer.set_result(answers.get(key))

    def misfit(self, answers: types.InputResponses) -> str | None:
        """Says which answer does not fit the form that was asked with; None where all do, or cannot be checked."""
        for key, asked in self._questions.items():
            params, answer = asked.request.params, answers.get(key)
            if isinstance(params, types.ElicitRequestFormParams) and isinstance(answer, types.ElicitResult):
                form = params.model_dump_json(by_alias=True)
                wrong = misfit(json.loads(form), answer) if len(form) <= MAX_CHECKED_BYTES else None
                if wrong is not None:
                    return f"The answer to {key} does not fit its form: {wrong}"
        return None

    def give_up(self) -> None:
        """Ends the run."""
        if self._task is not None:
            self._task.cancel()


def nobody_waits() -> MCPError:
    """Makes the error for a word that no run waits for, whatever the reason."""
    return MCPError(
        types.INVALID_PARAMS,
        "There is no run that waits for this answer: it came too late, or came twice. Run the script again.",
    )


class HeldRuns:
    """Holds the runs whose client is away; each is known by a word that is good for one return.

    Args:
        states: Signs the words.
        good_seconds: Says for how long a word is good, at least.
    """

    def __init__(self, states: RequestStates, good_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._states = states
        self._good_seconds = good_seconds
        self._held: dict[str, HeldRun] = {}

    def new(self, owner: str, live: LiveRun | None, run_id: str = "", number: int = 0) -> HeldRun:
        """Returns a run that has not begun. The arguments are as for `HeldRun`."""
        return HeldRun(owner, live, lambda: len(self._held) < MAX_HELD, run_id, number)

    def take(
        self, params: types.CallToolRequestParams, owner: str, *, leaves: bool = False
    ) -> HeldRun | None:
        """Returns the run that a client has come back for, which goes on with the answers, unless the client leaves it
        to be parked; None where none is here.

        Raises:
            MCPError: An answer does not fit what was asked; the client may come back with another.
        """
        state = params.request_state or ""
        run = self._held.get(state)
        if run is None or run.owner != owner:
            return None
        if not leaves and (wrong := run.misfit(params.input_responses or {})) is not None:
            raise MCPError(types.INVALID_PARAMS, f"{wrong}. The question is still open: answer it again.")
        del self._held[state]
        # Should it be parked from now on, this word is not good for it.
        run.round += 1
        if run.expiry is not None:
            run.expiry.cancel()
        if not leaves:
            run.returned(params.input_responses or {})
        return run

    async def finish(self, run: HeldRun, patience: float = 0.0) -> RunResponse | types.InputRequiredResult:
        """Returns the response, or questions with which the client goes away; `patience` is as for `HeldRun.next`.

        Raises:
            InvalidRequest: The request is malformed.
        """
        response = await run.next(patience)
        if response is not None:
            return response
        number = run.word_round()
        requests, bound = run.questions()
        seconds = max(bound + RETURN_SECONDS, self._good_seconds())
        state = await self._states.signed(run.id, run.owner, number, seconds)
        self._held[state] = run
        run.forget = lambda: self._forget(state)
        loop = asyncio.get_running_loop()
        run.expiry = loop.call_later(bound + RETURN_SECONDS, self._expire, state)
        return types.InputRequiredResult(input_requests=requests, request_state=state)

    def _forget(self, state: str) -> None:
        run = self._held.pop(state, None)
        if run is not None and run.expiry is not None:
            run.expiry.cancel()

    def _expire(self, state: str) -> None:
        run = self._held.pop(state, None)
        if run is not None:
            run.give_up()
