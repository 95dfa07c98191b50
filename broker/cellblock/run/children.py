"""A child run is a kept script that another script calls: a run of its own, within what is left of its caller's caps.

It has a process of its own, the grants of its caller narrowed by its own, and its caller's principal. Its calls, its
CPU time and its console count for the caller, whose clock runs on meanwhile. A run has one child at a time, and a child
has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cellblock.base import payload
from cellblock.base.errors import CellblockError, Certainty, InvalidRequest, Overloaded, ToolCallError
from cellblock.base.raw_json import RawJson
from cellblock.run.call_inputs import Turns
from cellblock.run.calls import IN_FLIGHT, OuterCall
from cellblock.run.flows.labels import NOTHING
from cellblock.run.lending import Lender
from cellblock.run.policy.asking import Caller, Grantee
from cellblock.run.response import RunResponse
from cellblock.run.run import HOST_GRACE_SECONDS
from cellblock.tools.catalog.model import JsonSchema, ToolEntry
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.requester import CallOrigin

Callee = tuple[str, Mapping[str, Any], JsonSchema]
"""What runs for a kept script with an input, the grants of its request, and the JSON Schema of its result."""


class Children:
    """Calls kept scripts.

    Args:
        run: Runs a request for a caller, as a child where it has an `outer` call; `Executor.run` does.
        find: Gives the approved version of a script for an input; blocks, and raises CellblockError.
        capacity: Gives the places of the pool.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[RunResponse]],
        find: Callable[[str, Mapping[str, Any]], Callee],
        capacity: Callable[[], int],
    ) -> None:
        self._run, self._find, self._capacity = run, find, capacity

    async def call(self, tool: ToolEntry, arguments: Any, origin: CallOrigin) -> RawJson:
        """Calls a script, as a tool is called: gives its result as JSON. Raises ScriptError."""
        name, caller = tool.tool_name, origin.caller
        try:
            code, grants, output = await asyncio.to_thread(self._find, name, arguments)
        except CellblockError as error:
            raise _refusal(name, error.message, error.hint) from None
        request = {"code": code, "grants": grants, "typecheck": "off", "reuse": False}
        if isinstance(caller, OuterCall):
            assert caller.calls.lender is not None
            async with caller.calls.lender.turn:
                response = await self._within(name, request, caller, caller.calls.lender)
        else:
            assert isinstance(caller, Caller)
            response = await self._run(request, caller)
        if not response.ok:
            raise _failed(name, response)
        return await asyncio.to_thread(_result, name, output, response)

    async def _within(
        self, name: str, request: dict[str, Any], outer: OuterCall, lender: Lender
    ) -> RunResponse:
        if outer.calls.context.outer is not None:
            raise _refusal(
                name, "a kept script that another script calls can call no other", "Call both yourself."
            )
        if self._capacity() < 2:
            raise _refusal(name, "the pool has one place, which its caller has", "Raise pool.capacity to 2.")
        calls, context = outer.calls, outer.calls.context
        used = 0, 0
        try:
            lent = await lender.lend()
            cpu_ms, log_bytes = (
                min(lent.cpu_ms, context.limits.max_cpu_ms),
                min(lent.log_bytes, context.limits.max_log_bytes),
            )
            # All of it, until the response says otherwise.
            used = cpu_ms, log_bytes
            request["limits"] = {
                "timeoutMs": int((calls.clock.left - HOST_GRACE_SECONDS) * 1000),
                "maxCpuMs": cpu_ms,
                "maxMemoryBytes": min(lent.memory_bytes, context.limits.max_memory_bytes),
                "maxLogBytes": log_bytes,
                "maxToolCalls": calls.calls_left,
            }
            facts = context.watch.facts
            caller = Caller(facts.client, Grantee(facts.principal, context.approver), None, context.requester)
            flow = None if context.rules is None else context.rules.flow
            response = await self._run(request, caller, outer=outer, label=flow.label if flow else NOTHING)
            logged = sum(len(entry.message.encode("utf-8", "replace")) for entry in response.logs)
            used = min(cpu_ms, response.usage.cpu_ms), min(log_bytes, logged)
        except InvalidRequest as error:
            used = 0, 0
            raise _refusal(
                name,
                f"its caller has too little left: {error.message}",
                "Call fewer scripts in one run, or raise its limits.",
            ) from None
        finally:
            lender.repay(*used)
            context.account.add_cpu(used[0])
        if flow is not None and response.label is not None:
            # Before anything of it goes on to the caller.
            flow.takes(response.label, f"{outer.call.server}.{name}")
            outer.call.label = response.label.pack()
        lender.peak_bytes = max(lender.peak_bytes, response.usage.peak_memory_bytes)
        return response


class Callers(Turns):
    """Bounds the runs that may call kept scripts at the same time to one place less than the pool has: a child always
    finds one that comes free.

    Args:
        capacity: Gives the places of the pool.
    """

    def __init__(self, capacity: Callable[[], int]) -> None:
        super().__init__(0)
        self._capacity = capacity

    @asynccontextmanager
    async def inside(self, wait_ms: int) -> AsyncGenerator[None]:
        """Counts a run inside the block; waits for its turn, at most `wait_ms`. Raises Overloaded."""
        self._most = self._capacity() - 1
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.enter(1)
        except TimeoutError:
            raise Overloaded(
                f"Runs that call kept scripts hold all places that they may have for {wait_ms} ms (queue_wait_ms).",
                hint="Try again in a moment, or raise pool.capacity.",
            ) from None
        try:
            yield
        finally:
            # Hosts may have come or gone since.
            self._most = self._capacity() - 1
            self.leave(1)


def _result(name: str, schema: JsonSchema, response: RunResponse) -> RawJson:
    given: Any = response.result
    validator = InputValidator(schema, label=name, subject="the result", strict=True)
    misfit = validator.check(given.decoded() if isinstance(given, RawJson) else given)
    if misfit is not None:
        raise ToolCallError(
            f"The result of the kept script {name} does not fit its output schema: {misfit.sentence}.",
            hint="Its calls were made. Let the user look: `cellblock test`.",
            certainty=Certainty.COMPLETED,
            summary="the script's result does not fit its output schema",
        )
    # What is larger came as JSON.
    return given if isinstance(given, RawJson) else RawJson(payload.encode(given))


def _failed(name: str, response: RunResponse) -> ToolCallError:
    first = next(one for one in response.diagnostics if one.severity == "error")
    certainty = Certainty.COMPLETED if response.tool_trace else Certainty.NOT_STARTED
    if any(call.error == IN_FLIGHT for call in response.tool_trace):
        certainty = Certainty.MAY_HAVE_RUN
    return ToolCallError(
        f"The kept script {name} failed: {first.message}",
        hint=first.hint or "Let the user look at it: `cellblock test`.",
        certainty=certainty,
        summary="the script failed",
        code=first.code,
    )


def _refusal(name: str, why: str, hint: str) -> ToolCallError:
    return ToolCallError(
        f"The kept script {name} was not started: {why.rstrip('.')}.",
        hint=hint,
        certainty=Certainty.NOT_STARTED,
        summary="the script was not started",
    )
