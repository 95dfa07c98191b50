"""Makes the tool calls of one run: counted, bounded, traced, each executed at most once."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from cellblock.apart.pool import paying
from cellblock.base.errors import (
    Certainty,
    SchemaValidationError,
    ScriptError,
    ServerNotFound,
    ToolCallError,
    ToolNotFound,
)
from cellblock.catalog.model import ServerEntry, ToolEntry
from cellblock.catalog.suggest import did_you_mean, nearest_names
from cellblock.execution.call_inputs import CallInputs
from cellblock.execution.call_loads import CallLoads
from cellblock.execution.call_results import result_of
from cellblock.execution.context import RunContext
from cellblock.execution.events import CallFacts
from cellblock.execution.replies import encode_error
from cellblock.execution.response import TraceEntry
from cellblock.execution.run_clock import RunClock
from cellblock.upstream.requester import CallOrigin

logger = logging.getLogger("cellblock.execution")

CANCEL_BOUND_SECONDS: Final = 2.0
"""Bounds the time from cancelling the calls in flight to giving up on their tasks; the SDK sends its cancel
notice in this time."""

IN_FLIGHT: Final = "in flight when the run ended: may have run"


class CallCounts(NamedTuple):
    """Counts what is certain about a run's calls."""

    completed: int
    in_flight: int
    not_started: int


class ToolCalls:
    """Makes all calls of one run.

    Args:
        context: What the run is made of.
        reply: Sends an answer to the worker: call id, ok, JSON bytes.
        room: Waits until the script reads its answers: no call is sent before it.
        clock: The run's wall clock; it stands still while the user is asked, or the client by a server.
    """

    def __init__(
        self,
        context: RunContext,
        reply: Callable[[int, bool, bytes], None],
        room: Callable[[], Awaitable[None]],
        clock: RunClock,
    ) -> None:
        self.calls: list[CallFacts] = []
        self._context = context
        self._watch = context.watch
        self._reply = reply
        self._room = room
        self._clock = clock
        self._origin = CallOrigin(context.requester, clock.standing_still)
        self._variables = contextvars.copy_context()
        self._variables.run(paying.set, context.share.bill)
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(context.concurrent_calls)
        self._loads = CallLoads(context.max_message_bytes, context.share)
        self._inputs = CallInputs(context.schemas, context.share, context.rules)
        self._waiting_since: float | None = None
        self._waited = 0.0
        self._running = 0

    @property
    def at_limit(self) -> bool:
        """Says whether the next call would be over `maxToolCalls`."""
        return len(self.calls) >= self._context.limits.max_tool_calls

    @property
    def wait_ms(self) -> int:
        """Gives the time during which at least one call was under way, in milliseconds."""
        running = time.monotonic() - self._waiting_since if self._waiting_since is not None else 0.0
        return int((self._waited + running) * 1000)

    def begin(self, call_id: int, server_id: str, tool_name: str, body: bytes) -> None:
        """Starts one call; its answer is sent when it comes."""
        call = CallFacts(server_id, tool_name, time.monotonic())
        self.calls.append(call)
        self._spawn(self._execute(call_id, call, body, held=self._loads.hold(len(body))))

    def counts(self) -> CallCounts:
        """Counts the calls that completed, may have run, or were never sent."""
        not_started = sum(call.certainty is Certainty.NOT_STARTED for call in self.calls)
        completed = sum(call.over and call.certainty is Certainty.COMPLETED for call in self.calls)
        return CallCounts(completed, len(self.calls) - completed - not_started, not_started)

    def trace(self) -> list[TraceEntry]:
        """Gives the trace, in the order in which the calls were made."""
        return [call.entry() for call in self.calls]

    def abandon(self) -> None:
        """Cancels what is in flight, without waiting; upstreams get the MCP cancel notification."""
        for task in self._tasks:
            # A second cancellation would cut off the SDK while it sends that notification.
            if not task.cancelling():
                task.cancel()

    async def cancel(self) -> None:
        """Cancels what is in flight and waits for it, within `CANCEL_BOUND_SECONDS`."""
        tasks = list(self._tasks)
        self.abandon()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_BOUND_SECONDS)

    # ---- inside --------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # A call belongs to the request that made the run, not to whoever brought the worker's message.
        task = asyncio.create_task(work, context=self._variables.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, call_id: int, call: CallFacts, body: bytes, *, held: bool) -> None:
        context, watch = self._context, self._watch
        self._count(1)
        size, entered = len(body), False
        if watch is not None:
            call.arguments = body
            watch.call_begun(call)
        try:
            if not held:
                raise _too_much(call.tool)
            await self._loads.enter(size)
            entered = True
            server, tool = self._find(call)
            call.export = tool.export_name
            arguments = await self._inputs.read(server, tool, body)
            body = b""
            function = context.caller.caller(server, tool, self._origin)
            if context.rules is not None:
                await context.rules.admit(server, tool, arguments, self._clock)
            async with self._turns:
                await self._room()
                call.error, call.certainty = IN_FLIGHT, Certainty.MAY_HAVE_RUN
                result = await function(arguments)
            found = await result_of(result, call.server, tool, context.max_message_bytes)
            answer = found.body
            call.ok, call.error, call.certainty = True, None, Certainty.COMPLETED
            self._finish(call)
            self._reply(call_id, True, answer)
            if watch is not None:
                call.result = answer
            if context.answers is not None:
                context.answers.add(call.server, call.tool, found.kind, answer)
            if context.learner is not None:
                context.learner.offer(server.config_name, tool, found.kind, answer, found.value)
        except ScriptError as error:
            call.certainty = error.certainty if isinstance(error, ToolCallError) else Certainty.NOT_STARTED
            self._fail(call_id, call, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: the tool awaited something that was cancelled.
            error = ToolCallError(
                f"{call.tool} was cancelled on the way.",
                hint="Check whether the call took effect.",
                summary="cancelled on the way",
            )
            call.certainty = error.certainty
            self._fail(call_id, call, error)
        except Exception:
            logger.exception("a tool call failed inside Cellblock")
            fault = ToolCallError(
                f"Cellblock failed while it called {call.tool}.",
                hint="Check whether the call took effect; then report this with the broker's log.",
            )
            self._fail(call_id, call, fault)
        finally:
            if held:
                self._loads.drop(size)
            if entered:
                self._loads.leave(size)
            self._count(-1)
            if watch is not None:
                if not call.over:
                    call.duration_ms = int((time.monotonic() - call.started) * 1000)
                watch.call_ended(call)
                # Listeners have had their look; a run may make many large calls.
                call.arguments, call.result = b"", None

    def _find(self, call: CallFacts) -> tuple[ServerEntry, ToolEntry]:
        catalog = self._context.catalog
        server = catalog.servers.get(call.server)
        if server is None and call.server in catalog.denied:
            raise ServerNotFound(
                f"Server {call.server} is not granted to this client.", hint=catalog.denied[call.server]
            )
        if server is None:
            near = nearest_names(call.server, catalog.servers)
            raise ServerNotFound(
                f"There is no server {call.server}.",
                hint=did_you_mean(near, "Import a server from listServers()."),
            )
        for tool in server.tools:
            if tool.tool_name == call.tool:
                return server, tool
        withheld = server.withheld_as(call.tool)
        if withheld is not None:
            raise ToolNotFound(
                f"The tool {withheld.name} of {call.server} is left out: {withheld.why}.", hint=withheld.hint
            )
        near = nearest_names(call.tool, (tool.tool_name for tool in server.tools))
        raise ToolNotFound(
            f"Server {call.server} has no tool {call.tool}.",
            hint=did_you_mean(near, "Use a tool from listTools()."),
        )

    def _fail(self, call_id: int, call: CallFacts, error: ScriptError) -> None:
        call.error = error.summary
        self._finish(call)
        error.details.setdefault("serverId", call.server)
        error.details.setdefault("toolName", call.tool)
        if isinstance(error, SchemaValidationError) and call.export is not None:
            error.details.setdefault("exportName", call.export)
        self._reply(call_id, False, encode_error(error, self._context.max_message_bytes))

    def _finish(self, call: CallFacts) -> None:
        call.over = True
        call.duration_ms = int((time.monotonic() - call.started) * 1000)

    def _count(self, step: int) -> None:
        self._running += step
        if self._running == 1 and step == 1:
            self._waiting_since = time.monotonic()
        elif self._running == 0 and self._waiting_since is not None:
            self._waited += time.monotonic() - self._waiting_since
            self._waiting_since = None


def _too_much(tool: str) -> ToolCallError:
    return ToolCallError(
        f"{tool} was not called: the inputs of calls without an answer have too many bytes in all.",
        hint="Await some of the calls before you make the next, or send less with each.",
        certainty=Certainty.NOT_STARTED,
        summary="too much was under way",
    )
