"""Some runs go on while their client is away: in the protocol of 2026-07-28 a server asks nothing by itself. It answers
a call with what it wants to know, and the client makes the call again with the answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import mcp_types as types
from mcp import MCPError

from cellblock.execution.response import RunResponse
from cellblock.frontend.mcp.live import LiveRun

MAX_HELD: Final = 64
"""Runs whose client is away; each has a worker, too."""

RETURN_SECONDS: Final = 30.0
"""Sets for how long a run, or its response, is kept for a client that is away, after the time for its last answer."""

TOKEN_BYTES: Final = 32


class NoRoom(Exception):
    """Too many clients are away already."""


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
    """

    def __init__(self, owner: str, live: LiveRun | None, room: Callable[[], bool]) -> None:
        self.owner = owner
        self.live = live
        self.expiry: asyncio.TimerHandle | None = None
        self._room = room
        self._task: asyncio.Future[RunResponse] | None = None
        self._questions: dict[str, _Question] = {}
        self._wake = asyncio.Event()

    def start(self, work: Awaitable[RunResponse]) -> None:
        """Begins the run."""
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda _: self._wake.set())

    async def ask(self, key: str, request: types.InputRequest, bound: float) -> types.InputResponse | None:
        """Waits until the client is back with an answer, at most `bound` seconds, which the caller keeps. No other open
        question has this `key`.

        Returns:
            The answer; None when the client has come back without one.

        Raises:
            NoRoom: It cannot be asked now.
        """
        if not self._room():
            raise NoRoom
        loop = asyncio.get_running_loop()
        asked = self._questions[key] = _Question(request, loop.create_future(), loop.time() + bound)
        self._wake.set()
        try:
            return await asked.answer
        finally:
            self._questions.pop(key, None)

    async def next(self) -> RunResponse | None:
        """Waits for the response; None when there are questions. When this is cancelled, so is the run."""
        assert self._task is not None
        while True:
            if self._task.done():
                return self._task.result()
            if any(not asked.answer.done() for asked in self._questions.values()):
                return None
            self._wake.clear()
            try:
                await self._wake.wait()
            except asyncio.CancelledError:
                self._task.cancel()
                raise

    def questions(self) -> tuple[types.InputRequests, float]:
        """Returns what is asked, for the client to take with it, and how many seconds it has."""
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

    def give_up(self) -> None:
        """Ends the run."""
        if self._task is not None:
            self._task.cancel()


class HeldRuns:
    """Holds the runs whose client is away; each is known by a random word that is good for one return."""

    def __init__(self) -> None:
        self._held: dict[str, HeldRun] = {}

    def new(self, owner: str, live: LiveRun | None) -> HeldRun:
        """Returns a run that has not begun."""
        return HeldRun(owner, live, lambda: len(self._held) < MAX_HELD)

    def take(self, params: types.CallToolRequestParams, owner: str) -> HeldRun:
        """Returns the run that a client has come back for, which goes on with the answers.

        Raises:
            MCPError: There is none.
        """
        state = params.request_state or ""
        run = self._held.get(state)
        if run is None or run.owner != owner:
            raise MCPError(
                types.INVALID_PARAMS,
                "There is no run that waits for this answer: it came too late, or came twice. Run the script again.",
            )
        del self._held[state]
        if run.expiry is not None:
            run.expiry.cancel()
        run.returned(params.input_responses or {})
        return run

    async def finish(self, run: HeldRun) -> RunResponse | types.InputRequiredResult:
        """Returns the response, or questions with which the client goes away.

        Raises:
            InvalidRequest: The request is malformed.
        """
        response = await run.next()
        if response is not None:
            return response
        requests, bound = run.questions()
        state = secrets.token_urlsafe(TOKEN_BYTES)
        self._held[state] = run
        loop = asyncio.get_running_loop()
        run.expiry = loop.call_later(bound + RETURN_SECONDS, self._expire, state)
        return types.InputRequiredResult(input_requests=requests, request_state=state)

    def _expire(self, state: str) -> None:
        run = self._held.pop(state, None)
        if run is not None:
            run.give_up()
