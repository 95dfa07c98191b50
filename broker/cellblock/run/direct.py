"""Makes one call that a client makes itself, with no script around it: with a script's checks, bounds and watchers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import Any

from cellblock.base import payload
from cellblock.base.errors import Certainty, ScriptError, ToolCallError
from cellblock.run.call_inputs import CallInputs
from cellblock.run.call_results import result_of
from cellblock.run.calls import CANCEL_BOUND_SECONDS, IN_FLIGHT
from cellblock.run.events import CallFacts, RunWatch
from cellblock.run.flows.secrets import Secrets
from cellblock.run.policy.rules import RunRules
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import RequestEntry, ServerEntry, ToolEntry
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.wire.results import ToolResult
from cellblock.types.learning.learner import Learner


async def call_directly(
    server: ServerEntry,
    tool: ToolEntry,
    arguments: Any,
    upstreams: Registry,
    inputs: CallInputs,
    rules: RunRules | None,
    origin: CallOrigin,
    watch: RunWatch,
    secrets: Secrets | None = None,
) -> Any:
    """Makes the call: gives what the tool gave, a `ToolResult` or plain data.

    Args:
        server: The tool's server.
        tool: The tool.
        arguments: The input, as JSON data.
        upstreams: Reaches the tool.
        inputs: Reads and checks the input.
        rules: The policy; None where nothing is restricted.
        origin: Whom the server may ask meanwhile.
        watch: Hears of it.
        secrets: As of `RunContext`.

    Raises:
        ScriptError: The call was refused, or has failed. Not for `isError` results: those are given.
    """
    facts = CallFacts(server.server_id, tool.tool_name, time.monotonic(), export=tool.export_name)
    facts.arguments = body = _encoded(tool, arguments)
    watch.queued()
    watch.leased()
    watch.started()
    watch.call_begun(facts)
    result: Any = None
    try:
        value = await inputs.read(server, tool, body)
        if secrets is not None:
            value = await secrets.for_call(server.config_name, tool, value)
        if rules is not None and rules.flow is not None and origin.can_be_asked:
            origin = rules.flow.origin(origin, server, tool)
        function = upstreams.caller(server, tool, origin)
        if rules is not None:
            await rules.admit(server, tool, value, RunClock.of_no_run())
        facts.error, facts.certainty = IN_FLIGHT, Certainty.MAY_HAVE_RUN
        watch.call_sent(facts)
        result = await _in_own_task(function(value))
        failed = isinstance(result, ToolResult) and result.is_error
        facts.ok, facts.certainty = not failed, Certainty.COMPLETED
        facts.error, facts.over = ToolCallError.summary if failed else None, True
        return result if secrets is None else await secrets.incoming(result)
    except ScriptError as error:
        if secrets is not None:
            secrets.told(error)
        facts.certainty = error.certainty if isinstance(error, ToolCallError) else Certainty.NOT_STARTED
        facts.error, facts.over = error.summary, True
        raise
    finally:
        flow = None if rules is None or server.is_scripts else rules.flow
        if facts.certainty is not Certainty.NOT_STARTED and flow is not None:
            flow.answered(server, tool, result)
        facts.duration_ms = int((time.monotonic() - facts.started) * 1000)
        watch.call_ended(facts)
        watch.ended(_response(facts) if facts.over else None)
        facts.arguments = b""


async def learn(
    learner: Learner, server: ServerEntry, tool: ToolEntry, result: Any, max_bytes: int, principal: str
) -> None:
    """Shows a result to the learner, as a script would have got it."""
    is_error = isinstance(result, ToolResult) and result.is_error
    if isinstance(tool, RequestEntry) or is_error:
        return
    with contextlib.suppress(ScriptError):
        found = await result_of(result, server.server_id, tool, max_bytes)
        learner.offer(server.learnt_as, tool, found.kind, found.body, principal)


def _response(facts: CallFacts) -> RunResponse:
    failure = Diagnostic(severity="error", code="TOOL_CALL_FAILED", message=facts.error or "")
    return RunResponse(logs=[], diagnostics=[] if facts.ok else [failure], tool_trace=[facts.entry()])


async def _in_own_task(work: Awaitable[Any]) -> Any:
    """Waits for a call that its client may cancel: the task of the call hears of that once, and cleans up."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_BOUND_SECONDS)
    return task.result()


def _encoded(tool: ToolEntry, arguments: Any) -> bytes:
    try:
        return payload.encode(arguments)
    except payload.PayloadError as error:
        raise ToolCallError(
            f"{tool.export_name} was not called: its input is {error}.",
            hint="Pass plain, shallow JSON data.",
            certainty=Certainty.NOT_STARTED,
        ) from None
