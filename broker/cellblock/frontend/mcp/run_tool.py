"""Carries one call of `codemode.run`: whom it is for, who is asked, and what its client is told while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import mcp_types as types

from cellblock.execution.response import RunResponse
from cellblock.frontend.client import Context, Owner, OwnerOf
from cellblock.frontend.mcp.approvals import elicitor
from cellblock.frontend.mcp.held_runs import HeldRuns
from cellblock.frontend.mcp.live import LiveRun, LogLevels
from cellblock.frontend.mcp.requests_back import (
    Ask,
    ClientOfRun,
    by_requests,
    by_rounds,
    can_be_asked,
    can_show_forms,
    in_rounds,
)
from cellblock.frontend.service import RunService
from cellblock.policy.asking import Approver, Grantee

T = TypeVar("T")


class RunTool:
    """Carries calls to the broker."""

    def __init__(self, service: RunService, owner_of: OwnerOf) -> None:
        self._service, self._owner_of = service, owner_of
        self._held = HeldRuns()
        self._levels = LogLevels()

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Handles `logging/setLevel`."""
        self._levels.set(self._owner_of(context).client, params.level)
        return types.EmptyResult()

    async def call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> RunResponse | types.InputRequiredResult:
        """Carries one call to its response, or to a question for the user.

        Raises:
            InvalidRequest: The request is malformed.
            MCPError: The client came back for a run that is no more.
        """
        owner = self._owner_of(context)
        if params.request_state is not None and in_rounds(context):
            held = self._held.take(params, owner.principal)
            return await _told(held.live, context, self._held.finish(held))
        live = self._live(context, owner.client)
        restricted = (
            "grants" in (params.arguments or {})
            or self._service.policy.grants_of(owner.principal) is not None
        )

        async def start(ask: Ask) -> Any:
            approver = elicitor(ask) if restricted and can_show_forms(context) else None
            return await self._begin(params, owner, live, approver, ClientOfRun(context, ask, live))

        if in_rounds(context) and can_be_asked(context):
            held = self._held.new(owner.principal, live)
            held.start(start(by_rounds(held)))
            work = self._held.finish(held)
        else:
            work = start(by_requests(context))
        return await _told(live, context, work)

    async def _begin(
        self,
        params: types.CallToolRequestParams,
        owner: Owner,
        live: LiveRun | None,
        approver: Approver | None,
        requester: ClientOfRun,
    ) -> Any:
        """Does what is asked for; may be given up while its client is away."""
        return await self._service.run_request(
            params.arguments or {},
            observer=live.observer if live else None,
            client=owner.client,
            grantee=Grantee(owner.principal, approver),
            requester=requester,
        )

    def _live(self, context: Context, client: str) -> LiveRun | None:
        level = self._levels.level_for(context, client)
        if level is None and "progress_token" not in (context.meta or {}):
            return None
        return LiveRun(level, self._service.front_config.shown.progress_interval_ms / 1000)


async def _told(live: LiveRun | None, context: Context, work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`, of which the client is told meanwhile."""
    async with live.reporting(context) if live is not None else contextlib.nullcontext():
        return await work
