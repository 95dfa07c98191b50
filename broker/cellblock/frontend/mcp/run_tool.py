"""Carries one call of `codemode.run`: whom it is for, who is asked, and what its client is told while it runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext

from cellblock.execution.response import RunResponse
from cellblock.frontend.mcp.approvals import asks_forms, elicitor, elicitor_in_rounds, in_rounds
from cellblock.frontend.mcp.held_runs import HeldRuns
from cellblock.frontend.mcp.live import LiveRun, LogLevels
from cellblock.frontend.mcp.requests_back import Ask, ClientOfRun, by_requests, by_rounds, can_be_asked
from cellblock.frontend.service import RunService
from cellblock.policy.asking import Approver, Grantee

Context = ServerRequestContext[dict[str, Any], Any]

T = TypeVar("T")


class RunTool:
    """Carries calls to the broker.

    Args:
        service: The broker.
        client_of: Names the connection that a request came from.
        principal_of: Whom it is for.
    """

    def __init__(
        self,
        service: RunService,
        *,
        client_of: Callable[[Context], str],
        principal_of: Callable[[Context], str],
    ) -> None:
        self._service = service
        self._client_of = client_of
        self._principal_of = principal_of
        self._held = HeldRuns()
        self._levels = LogLevels()

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Handles `logging/setLevel`."""
        self._levels.set(self._client_of(context), params.level)
        return types.EmptyResult()

    async def call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> RunResponse | types.InputRequiredResult:
        """Carries one call to its response, or to a question for the user.

        Raises:
            InvalidRequest: The request is malformed.
            MCPError: The client came back for a run that is no more.
        """
        client, principal = self._client_of(context), self._principal_of(context)
        if params.request_state is not None and in_rounds(context):
            held = self._held.take(params, principal)
            return await _told(held.live, context, self._held.finish(held))
        arguments = params.arguments or {}
        live = self._live(context, client)

        async def start(approver: Approver | None, ask: Ask) -> RunResponse:
            return await self._service.run_request(
                arguments,
                observer=live.observer if live else None,
                client=client,
                grantee=Grantee(principal, approver),
                requester=ClientOfRun(context, ask, live),
            )

        restricted = "grants" in arguments or self._service.policy.grants_of(principal) is not None
        if in_rounds(context) and can_be_asked(context):
            held = self._held.new(principal, live)
            approver = elicitor_in_rounds(held) if restricted and asks_forms(context) else None
            held.start(start(approver, by_rounds(held)))
            work = self._held.finish(held)
        else:
            work = start(elicitor(context) if restricted else None, by_requests(context))
        return await _told(live, context, work)

    def _live(self, context: Context, client: str) -> LiveRun | None:
        level = self._levels.of(context, client)
        if level is None and "progress_token" not in (context.meta or {}):
            return None
        return LiveRun(level, self._service.settings.cellblock.frontend.progress_interval_ms / 1000)


async def _told(live: LiveRun | None, context: Context, work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`, of which the client is told meanwhile."""
    if live is None:
        return await work
    async with live.told(context):
        return await work
