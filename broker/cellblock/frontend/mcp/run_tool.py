"""Carries one call of `codemode.run`: whom it is for, who is asked, and what its client is told while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp import MCPError

from cellblock.execution.caller import Caller
from cellblock.execution.response import RunResponse
from cellblock.frontend.client import Context, Owner, OwnerOf
from cellblock.frontend.mcp.approvals import answers_in, elicitor, parked_requests
from cellblock.frontend.mcp.held_runs import RETURN_SECONDS, HeldRun, HeldRuns, nobody_waits
from cellblock.frontend.mcp.live import LiveRun, LogLevels
from cellblock.frontend.mcp.request_state import PURPOSE, RequestStates
from cellblock.frontend.mcp.requests_back import (
    Ask,
    ClientOfRun,
    by_requests,
    by_rounds,
    can_answer,
    can_be_asked,
    can_show_forms,
    in_rounds,
)
from cellblock.frontend.mcp.task_models import Task
from cellblock.frontend.mcp.tasks import Tasks, has_tasks, unreadable
from cellblock.frontend.service import RunService
from cellblock.policy.asking import Grantee

T = TypeVar("T")


PARK_SECONDS: Final = 2.0
"""Sets how long a run that is due to be parked is waited for."""

Outcome = RunResponse | types.InputRequiredResult | Task
"""Holds what a call comes to: the response, a question for the user, or a task for later."""


def states_of(service: RunService) -> RequestStates:
    """Returns what signs and reads the words of a broker's clients."""
    return RequestStates(lambda: service.parked_runs.signing_keys(PURPOSE))


class RunTool:
    """Carries calls of `codemode.run` to the broker.

    Args:
        service: The broker.
        owner_of: Says whose a request is.
        tasks: Makes tasks of parked runs; None where there are none.
    """

    def __init__(self, service: RunService, owner_of: OwnerOf, tasks: Tasks | None = None) -> None:
        self._service, self._owner_of, self._tasks = service, owner_of, tasks
        self._states = states_of(service)
        self._held = HeldRuns(self._states, lambda: service.parked_runs.good_seconds)
        self._levels = LogLevels()

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Handles `logging/setLevel`."""
        self._levels.set(self._owner_of(context).client, params.level)
        return types.EmptyResult()

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Outcome:
        """Carries one tool call to its response, to a question for the user, or to a task.

        Raises:
            InvalidRequest: The request is malformed.
            MCPError: The client came back for a run that is no more.
        """
        owner = self._owner_of(context)
        if params.request_state is not None and in_rounds(context):
            leaves = self._leaves(context, params)
            held = self._held.take(params, owner.principal, leaves=leaves)
            if held is None:
                return await self._is_back(context, params, owner)
            found = await told(held.live, context, self._finish(context, held, leaves=leaves))
            if isinstance(found, RunResponse) and found.parked:
                # It was being parked when the client came back: its answers are for the run that is written down.
                with contextlib.suppress(MCPError):
                    return await self._is_back(context, params, owner)
            elif isinstance(found, RunResponse) and found.usage.run_id is not None:
                word = await self._states.read(params.request_state, owner.principal)
                if word is not None:
                    # Its row may be of this round: a park was taken back.
                    self._service.parked_runs.end_round(*word, owner.principal)
            return found
        live = self._live(context, owner.client)
        if in_rounds(context) and can_be_asked(context):
            held = self._held.new(owner.principal, live)
            caller = self._caller(context, owner, live, by_rounds(held), held)
            held.start(self._begin(params, caller, held.id))
            work = self._finish(context, held)
        else:
            caller = self._caller(context, owner, live, by_requests(context), None)
            work = self._task_or_response(context, self._begin(params, caller))
        return await told(live, context, work)

    def _leaves(self, context: Context, params: types.CallToolRequestParams) -> bool:
        """Says whether a client that has come back leaves its run as a task: it has brought no answer."""
        return self._tasks is not None and not params.input_responses and has_tasks(context)

    async def _task(self, context: Context, run_id: str | None) -> Task | None:
        return None if self._tasks is None else await self._tasks.created(context, run_id)

    async def _task_or_response(self, context: Context, work: Coroutine[Any, Any, Any]) -> Any:
        found = await work
        if isinstance(found, RunResponse) and found.parked:
            return await self._task(context, found.usage.run_id) or found
        return found

    async def _begin(self, params: types.CallToolRequestParams, caller: Caller, run_id: str = "") -> Any:
        """Has the broker run the request; may be given up while its client is away."""
        return await self._service.run_request(params.arguments or {}, caller, run_id=run_id)

    def _caller(
        self,
        context: Context,
        owner: Owner,
        live: LiveRun | None,
        ask: Ask,
        held: HeldRun | None,
    ) -> Caller:
        """Returns the caller of a run: its client, its grants, and who is asked for approval."""
        approver = elicitor(ask) if can_show_forms(context) else None
        grantee = Grantee(
            owner.principal,
            approver,
            None if held is None else held.park_round,
            leaves=held is not None or (self._tasks is not None and has_tasks(context)),
        )
        return Caller(owner.client, grantee, live.observer if live else None, ClientOfRun(context, ask, live))

    async def _finish(self, context: Context, held: HeldRun, *, leaves: bool = False) -> Outcome:
        """Returns what a run comes to while its client is here; one that was parked just now asks its questions."""
        found = await self._held.finish(held, self._patience(context, leaves=leaves))
        if isinstance(found, RunResponse) and found.parked:
            return (
                await self._task(context, held.id)
                or await self._asked_again(context, held.id, held.owner, held.round)
                or found
            )
        return found

    def _patience(self, context: Context, *, leaves: bool) -> float:
        """Returns how long a run with questions is waited for until it is parked, and so a task."""
        seconds = self._service.parked_runs.park_seconds
        if self._tasks is None or not has_tasks(context) or not (leaves or seconds == 0):
            return 0.0
        return min(seconds, RETURN_SECONDS) + PARK_SECONDS

    async def _asked_again(
        self, context: Context, run_id: str, principal: str, number: int
    ) -> types.InputRequiredResult | Task | None:
        """Returns what the client of a run is told that is parked in this round; None for one that is not."""
        parked = self._service.parked_runs
        with unreadable():
            waiting = await parked.questions(run_id, principal)
        if waiting is None or waiting[0] != number:
            return None
        if (task := await self._task(context, run_id)) is not None:
            return task
        questions = waiting[1]
        state = await self._states.signed(run_id, principal, number, parked.good_seconds)
        # One that waits for tools alone has a word to come back with, and no question.
        return types.InputRequiredResult(
            input_requests=parked_requests(questions, partial(can_answer, context)) or None,
            request_state=state,
        )

    async def _is_back(self, context: Context, params: types.CallToolRequestParams, owner: Owner) -> Outcome:
        """Goes on with a parked run whose client has come back.

        Raises:
            MCPError: No run waits for this word.
        """
        word = await self._states.read(params.request_state or "", owner.principal)
        if word is None:
            raise nobody_waits()
        (run_id, number), parked = word, self._service.parked_runs
        if self._leaves(context, params):
            left = await self._asked_again(context, run_id, owner.principal, number)
            if left is not None:
                return left
        answers = answers_in(params.input_responses or {})
        with unreadable():
            kept = await parked.taken(run_id, number, answers, owner.principal)
            if kept is None:
                # The user may have answered elsewhere.
                response = await parked.answered_elsewhere(run_id, number, owner.principal)
                if response is not None and not response.parked:
                    return response
                again = await self._asked_again(context, run_id, owner.principal, number)
                if again is None:
                    raise nobody_waits()
                return again
        live = self._live(context, owner.client)
        held = self._held.new(owner.principal, live, run_id, kept.turn)
        held.start(parked.go_on(kept, self._caller(context, owner, live, by_rounds(held), held)))
        return await told(live, context, self._finish(context, held))

    def _live(self, context: Context, client: str) -> LiveRun | None:
        level = self._levels.level_for(context, client)
        if level is None and "progress_token" not in (context.meta or {}):
            return None
        return LiveRun(level)


async def told(live: LiveRun | None, context: Context, work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`, of which the client is told meanwhile."""
    async with live.reporting(context) if live is not None else contextlib.nullcontext():
        return await work
