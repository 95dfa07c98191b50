"""Carries one call of `codemode.run`: whom it is for, who is asked, and what its client is told while it runs.

A client of 2026-07-28 is asked nothing while it waits: its run is parked with the questions, the call is answered with
them, and the client makes it again with the answers, at any broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError

from cellblock.base.database import StoreError
from cellblock.run.events import new_run_id
from cellblock.run.policy.asking import Caller, Grantee
from cellblock.run.response import RunResponse
from cellblock.serve.mcp.approvals import answers_in, elicitor, parked_requests
from cellblock.serve.mcp.front import Front
from cellblock.serve.mcp.live import LiveRun, LogLevels, wants_progress
from cellblock.serve.mcp.request_state import PURPOSE, RequestStates
from cellblock.serve.mcp.requests_back import (
    Ask,
    ClientOfRun,
    by_requests,
    can_answer,
    can_be_asked,
    can_show_forms,
    in_rounds,
)
from cellblock.serve.mcp.task_models import Task
from cellblock.serve.mcp.tasks import Tasks, has_tasks, unreadable
from cellblock.serve.service import Context, Owner, RunService

logger = logging.getLogger("cellblock.serve")

T = TypeVar("T")

LONG_SECONDS: Final = 20.0
"""Passes before a run is a task, for a client that has tasks: other clients give up after 60 s."""

Outcome = RunResponse | types.InputRequiredResult | Task
"""Holds what a call comes to: the response, questions for the user, or a task for later."""


def states_of(service: RunService) -> RequestStates:
    """Returns what signs and reads the words of a broker's clients."""
    return RequestStates(lambda: service.parked_runs.signing_keys(PURPOSE))


class RunTool:
    """Carries calls of `codemode.run` to the broker.

    Args:
        front: Of the broker.
        tasks: Makes tasks of runs.
    """

    def __init__(self, front: Front, tasks: Tasks) -> None:
        self._front, self._service, self._tasks = front, front.service, tasks
        self._states = states_of(front.service)
        self.levels: Final = LogLevels(front.owner_of)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Outcome:
        """Carries one tool call to its response, to questions for the user, or to a task.

        Raises:
            InvalidRequest: The request is malformed.
            MCPError: The client came back for a run that is no more.
        """
        owner, level = self._front.owner_of(context), self.levels.level_for(context)
        live = None if level is None and not wants_progress(context) else LiveRun(level)
        returns = in_rounds(context) and can_be_asked(context)
        ask = None if returns else by_requests(context)
        caller = replace(caller_of(context, owner, live, ask, returns=returns), leaves=has_tasks(context))
        if params.request_state is not None and in_rounds(context):
            return await told(live, context, self._is_back(context, params, caller))
        return await told(live, context, self._begun(context, params, caller))

    # ---- inside --------------------------------------------------------------------------------------

    async def _begun(self, context: Context, params: types.CallToolRequestParams, caller: Caller) -> Outcome:
        response = await self._first(context, params.arguments or {}, caller)
        if not isinstance(response, RunResponse):
            return response
        run_id = response.usage.run_id
        if not response.parked or run_id is None:
            return response
        try:
            return await self._asked(context, caller, run_id) or response
        except StoreError as error:
            # Sent again, the request would be another run; the response says that this one waits, and how to answer.
            logger.warning("a run that was parked cannot be reached: %s", error)
            return response

    async def _first(self, context: Context, request: dict[str, Any], caller: Caller) -> RunResponse | Task:
        """Returns what comes of a new run: its response, or, where that takes long and its client has tasks, a task."""
        if not caller.leaves:
            return await self._service.run_request(request, caller)
        run_id, parked = new_run_id(), self._service.parked_runs
        work = asyncio.create_task(self._service.run_request(request, caller, run_id=run_id), name="long run")
        try:
            while not (await asyncio.wait([work], timeout=LONG_SECONDS))[0]:
                with contextlib.suppress(StoreError):
                    is_left = await parked.leave(run_id, work)
                    if is_left and (task := await self._tasks.created(context, run_id)) is not None:
                        return task
            return work.result()
        except asyncio.CancelledError:
            work.cancel()
            raise

    async def _asked(
        self, context: Context, caller: Caller, run_id: str
    ) -> types.InputRequiredResult | Task | RunResponse | None:
        """Returns what the client of a parked run is told; None for one that cannot come back for it."""
        parked, principal = self._service.parked_runs, caller.grantee.principal
        if (task := await self._tasks.created(context, run_id)) is not None:
            return task
        if not caller.grantee.returns:
            return None
        waiting = await parked.questions(run_id, principal)
        if waiting is None or not waiting[1]:
            # Others have answered it meanwhile.
            response = await parked.outcome(run_id, principal)
            return await self._asked(context, caller, run_id) if response and response.parked else response
        turn, questions = waiting
        return types.InputRequiredResult(
            input_requests=parked_requests(questions, partial(can_answer, context)) or None,
            request_state=await self._states.signed(run_id, principal, turn, parked.good_seconds),
        )

    async def _is_back(
        self, context: Context, params: types.CallToolRequestParams, caller: Caller
    ) -> Outcome:
        """Goes on with a parked run whose client has come back.

        Raises:
            MCPError: No run waits for this word.
        """
        word = await self._states.read(params.request_state or "", caller.grantee.principal)
        if word is None:
            raise nobody_waits()
        (run_id, turn), parked = word, self._service.parked_runs
        answers = answers_in(params.input_responses or {})
        with unreadable():
            if not answers and has_tasks(context):
                # It leaves the run as a task.
                waiting = await parked.questions(run_id, caller.grantee.principal)
                is_open = waiting is not None and waiting[0] == turn
                if is_open and (task := await self._tasks.created(context, run_id)) is not None:
                    return task
            response = await parked.come_back(run_id, turn, answers, caller)
            if response is None:
                raise nobody_waits()
            if not response.parked:
                return response
            return await self._asked(context, caller, run_id) or response


def caller_of(
    context: Context, owner: Owner, live: LiveRun | None, ask: Ask | None, *, returns: bool = False
) -> Caller:
    """Returns the caller of a run or of one call: its client, its grants, and who is asked for approval. The arguments
    are as for `ClientOfRun` and `Grantee`."""
    approver = (
        elicitor(ask, partial(can_answer, context)) if ask is not None and can_show_forms(context) else None
    )
    grantee = Grantee(owner.principal, approver, returns)
    return Caller(owner.client, grantee, live.observer if live else None, ClientOfRun(context, ask, live))


async def told(live: LiveRun | None, context: Context, work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`, of which the client is told meanwhile."""
    async with live.reporting(context) if live is not None else contextlib.nullcontext():
        return await work


def nobody_waits() -> MCPError:
    """Makes the error for a word that no run waits for, whatever the reason."""
    return MCPError(
        types.INVALID_PARAMS,
        "There is no run that waits for this answer: it came too late, or came twice. Run the script again.",
    )
