"""Makes the tool calls of one run: counted, bounded, traced, each executed at most once."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from cellblock.base.errors import (
    AuthenticationFailed,
    Certainty,
    SchemaValidationError,
    ScriptError,
    ServerNotFound,
    ToolCallError,
    ToolNotFound,
    shorten,
)
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.run.call_inputs import CallInputs, CallLoads, Turns
from cellblock.run.call_results import Unwrapped, fit_hint, inexact, result_of
from cellblock.run.context import RunContext
from cellblock.run.events import WAITS, CallFacts
from cellblock.run.flows.known import reads
from cellblock.run.flows.run_flow import RunFlow
from cellblock.run.hook import Facts
from cellblock.run.lending import Lender
from cellblock.run.policy.grants import effect_of
from cellblock.run.questions import Questions
from cellblock.run.replies import encode_error
from cellblock.run.response import Diagnostic, TraceEntry
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import READ, ServerEntry, ToolEntry
from cellblock.tools.upstream.definitions import shown
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.wire.results import ToolResult

logger = logging.getLogger("cellblock.run")

CANCEL_BOUND_SECONDS: Final = 2.0
"""Bounds the time from cancelling the calls in flight to giving up on their tasks; the SDK sends its cancel
notice in this time."""

CONCURRENT_CALLS: Final = 32
"""Caps the calls of one run that are at upstream servers at the same time; more wait their turn. One agent's script
must not take all that a server can do."""

NOTED_ANSWERS: Final = 32
"""Bounds the answers that a run keeps until who learns from them is told."""

MAX_FAILURES: Final = 10
"""Bounds the tools of which a run keeps why they failed."""

MAX_FAILURE_CHARS: Final = 200

MAX_REMARKS: Final = 10
"""Bounds what a response says of results of tools."""

NOTED_BYTES: Final = 256 * 1024
"""Bounds the bytes of the answers that a run keeps until who learns from them is told: one large answer is told of at
once."""

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
        room: Gives what to wait for where the script does not read its answers: no call is sent before it.
        clock: The run's wall clock; it stands still while the user is asked, or the client by a server.
        questions: Has what servers ask, and which logins calls need; None in a run that is never parked.
        lender: Has what the scripts that the run calls may use; None: it calls none.

    Attributes:
        calls: What is known of them, in the order in which they were made; those of scripts that were called, too.
        context: What the run is made of.
        clock: The run's.
        lender: As it was given.
    """

    def __init__(
        self,
        context: RunContext,
        reply: Callable[[int, bool, bytes], None],
        room: Callable[[], Awaitable[object] | None],
        clock: RunClock,
        questions: Questions | None = None,
        lender: Lender | None = None,
    ) -> None:
        self.calls: list[CallFacts] = []
        self.remarks: dict[str, Diagnostic] = {}
        """Holds what the response says of results, each once."""
        self.failures: dict[str, str] = {}
        """Holds what each tool said when it failed last."""

        self._flow = None if context.rules is None else context.rules.flow
        self._questions = questions
        self.context = self._context = context
        self.lender: Final = lender
        self._earlier_inner = 0
        self._reply = reply
        self._room = room
        self.clock = self._clock = clock
        self._variables = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._origin = CallOrigin(context.requester, clock.standing_still, account=context.account)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._came: Callable[[int, CallFacts, bool, bytes], None] | None = None
        self._turns = Turns(CONCURRENT_CALLS)
        self._loads = CallLoads(context.max_message_bytes, context.account)
        self._inputs = CallInputs(context.schemas, context.account)
        self._waiting_since = self._waited = 0.0
        self.under_way = 0
        """Counts the calls that have no answer yet."""

        self._abandoned = False
        self._noted: list[tuple[str, ToolEntry, Unwrapped]] = []
        self._noted_bytes = 0

    @property
    def calls_left(self) -> int:
        """Counts the calls that the run may still make, within those of its caller, where it has one."""
        left = self._context.limits.max_tool_calls - len(self.calls) - self._earlier_inner
        outer = self._context.outer
        return left if outer is None else min(left, outer.calls.calls_left)

    @property
    def wait_ms(self) -> int:
        """Gives the time during which at least one call was under way, in milliseconds."""
        running = time.monotonic() - self._waiting_since if self.under_way else 0.0
        return int((self._waited + running) * 1000)

    def begin(self, call_id: int, server_id: str, tool_name: str, body: bytes) -> CallFacts:
        """Starts one call; its answer is sent when it comes."""
        call = CallFacts(server_id, tool_name, time.monotonic())
        self.calls.append(call)
        if (outer := self._context.outer) is not None:
            call.within = outer.call.tool
            outer.call.inner += 1
            outer.calls.calls.append(call)
        held = self._loads.hold(len(body))
        # A call belongs to the request that made the run, not to whoever brought the worker's message.
        work = self._execute(call_id, call, body, held=held)
        self._tasks[call_id] = self._loop.create_task(work, context=self._variables.copy())
        return call

    def recorded(self, server_id: str, tool_name: str, facts: Facts, *, ok: bool) -> None:
        """Counts a call that is not made: a recording has its answer, or says that it had none."""
        call = CallFacts(
            server_id,
            tool_name,
            time.monotonic(),
            duration_ms=facts.duration_ms,
            ok=ok,
            error=facts.error,
            certainty=facts.certainty,
            over=True,
        )
        self.calls.append(call)
        self._context.watch.call_recorded(call)
        self._earlier_inner += facts.inner
        rules, server = self._context.rules, self._context.catalog.servers.get(server_id)
        if rules is None or call.certainty is Certainty.NOT_STARTED:
            return
        tool = None if server is None else server.tool(tool_name)
        if rules.flow is not None:
            rules.flow.recorded(server, tool, facts.label)
        if server is not None and tool is not None:
            rules.recount(server, tool)

    def counts(self) -> CallCounts:
        """Counts the calls that completed, may have run, or were never sent."""
        not_started = sum(call.certainty is Certainty.NOT_STARTED for call in self.calls)
        completed = sum(call.over and call.certainty is Certainty.COMPLETED for call in self.calls)
        return CallCounts(completed, len(self.calls) - completed - not_started, not_started)

    def may_have_changed(self) -> list[CallFacts]:
        """Gives the calls that did not fail, of tools that neither are known to read alone nor have such a name."""
        return [
            call
            for call in self.calls
            if (call.ok or call.certainty is Certainty.MAY_HAVE_RUN)
            and (server := self._context.catalog.servers.get(call.server)) is not None
            and (tool := server.tool(call.tool)) is not None
            and not ((effect := effect_of(tool)) == "read" or (effect is None and reads(tool)))
        ]

    def trace(self) -> list[TraceEntry]:
        """Gives the trace, in the order in which the calls were made."""
        return [call.entry() for call in self.calls]

    def abandon(self, but: Collection[int] = ()) -> None:
        """Cancels what is in flight but the given calls, without waiting; upstreams get the MCP cancel notification."""
        self._abandoned = True
        for call_id, task in self._tasks.items():
            # A second cancellation would cut off the SDK while it sends that notification.
            if call_id not in but and not task.cancelling():
                task.cancel()

    def leave(
        self, call_ids: Iterable[int], came: Callable[[int, CallFacts, bool, bytes], None]
    ) -> list[asyncio.Task[None]]:
        """Abandons all calls of a run that is parked but the given ones: their servers wait in their sessions.

        Args:
            call_ids: Those.
            came: Is told the answer of each: its number, what is known of it, ok, JSON bytes.

        Returns:
            Their tasks, for who owns them from now on.
        """
        self._came = came
        for call in self.calls:
            if not call.over and call.certainty is Certainty.NOT_STARTED:
                call.error = WAITS
        left = [self._tasks.pop(call_id) for call_id in call_ids if call_id in self._tasks]
        self.abandon()
        return left

    async def finish(self, bound: float) -> None:
        """Waits for what is in flight, at most `bound` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=bound)

    async def cancel(self) -> None:
        """Cancels what is in flight and waits for it, within `CANCEL_BOUND_SECONDS`."""
        self.abandon()
        await self.finish(CANCEL_BOUND_SECONDS)
        self._tell_noted()

    # ---- inside --------------------------------------------------------------------------------------

    async def _execute(self, call_id: int, call: CallFacts, body: bytes, *, held: bool) -> None:
        context, watch, questions = self._context, self._context.watch, self._questions
        if self.under_way == 0:
            self._waiting_since = time.monotonic()
        self.under_way += 1
        size, entered = len(body), False
        tool: ToolEntry | None = None
        call.arguments = body
        watch.call_begun(call)
        try:
            if not held:
                raise _too_much(call.tool)
            if not self._loads.enters(size):
                await self._loads.enter(size)
            entered = True
            server, tool = self._find(call)
            call.export = tool.export_name
            if context.answers is not None:
                context.answers.sent(tool.tool_name, body)
            arguments = await self._inputs.read(server, tool, body)
            if context.secrets is not None:
                arguments = await context.secrets.for_call(server.config_name, tool, arguments)
            origin, is_script = self._origin, server.is_scripts
            # Of what a kept script has seen, its run tells.
            flow = None if is_script else self._flow
            if questions is not None or is_script:
                origin = self._origin_of(call_id, call, body)
            if flow is not None and (questions is not None or context.requester is not None):
                origin = flow.origin(origin, server, tool)
            function = context.upstreams.caller(server, tool, origin)
            body = b""
            if context.rules is not None:
                parking = None if questions is None else questions.parking
                await context.rules.admit(server, tool, arguments, self._clock, call_id, parking)
            if questions is not None:
                questions.check_login(call_id, call.server, tool)
            result = await self._made(call_id, call, server, tool, arguments, function, flow)
            if context.secrets is not None:
                result = await context.secrets.incoming(result)
            found = await result_of(result, call.server, tool, context.max_message_bytes)
            call.ok, call.error, call.certainty = True, None, Certainty.COMPLETED
            self._finish(call)
            self._answer(call_id, call, ok=True, body=found.body)
            self._remark(call, server, tool, result, found)
            call.result = found.body
            if tool is not server.reads:
                self._note(server, tool, found)
        except ScriptError as error:
            if context.secrets is not None:
                context.secrets.told(error)
            call.certainty = error.certainty if isinstance(error, ToolCallError) else Certainty.NOT_STARTED
            if tool is not None and isinstance(error, ToolCallError):
                fit_hint(error, tool)
            self._fail(call_id, call, error)
        except asyncio.CancelledError:
            if self._abandoned:
                raise
            # Nobody cancelled this call: the tool awaited something that was cancelled, or cancelled itself.
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
            self.under_way -= 1
            if self.under_way == 0:
                self._waited += time.monotonic() - self._waiting_since
            self._tasks.pop(call_id, None)
            if questions is not None:
                questions.call_is_over(call_id)
                questions.parking.look()
            if not call.over:
                call.duration_ms = int((time.monotonic() - call.started) * 1000)
            watch.call_ended(call)
            # Listeners have had their look; a run may make many large calls.
            call.arguments, call.result = b"", None

    async def _made(
        self,
        call_id: int,
        call: CallFacts,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        function: Callable[[Any], Awaitable[Any]],
        flow: RunFlow | None,
    ) -> Any:
        """Makes a call in its turn, and once more after a login that the call was refused for. The run's flow hears of
        what comes of it before anything of that goes on."""
        while True:
            if not self._turns.enters(1):
                await self._turns.enter(1)
            try:
                if (room := self._room()) is not None:
                    await room
                if self._context.kept is not None:
                    await self._context.kept.before_call(call_id)
                call.error, call.certainty = IN_FLIGHT, Certainty.MAY_HAVE_RUN
                self._context.watch.call_sent(call)
                result: Any = None
                try:
                    result = await function(arguments)
                finally:
                    # An error, too, may have the server's words.
                    if flow is not None:
                        call.label = flow.answered(server, tool, result).pack()
                return result
            except AuthenticationFailed as error:
                if self._questions is None or self._came is not None:
                    raise
                # It was refused, so whoever goes on with the run makes it.
                call.error, call.certainty = None, Certainty.NOT_STARTED
                refused = error
            finally:
                self._turns.leave(1)
            await self._questions.until_logged_in(call_id, call.server, tool, arguments, refused)

    def _origin_of(self, call_id: int, call: CallFacts, body: bytes) -> CallOrigin:
        origin = replace(self._origin, caller=OuterCall(self, call))
        kept = self._context.kept
        if self._questions is None or kept is None:
            return origin
        return replace(
            origin,
            asked=self._questions.of_call(call_id, call, body),
            run=self._questions,
            sends=partial(kept.sends, call_id),
            # Where a call goes on that another process had made and whose server asks in rounds.
            round=None if kept.earlier is None else kept.earlier.rounds.get(call_id),
        )

    def _find(self, call: CallFacts) -> tuple[ServerEntry, ToolEntry]:
        catalog = self._context.catalog
        server = catalog.servers.get(call.server)
        if server is None and call.server in catalog.denied:
            raise ServerNotFound(
                f"Server {call.server} is not granted to this client.", hint=catalog.denied[call.server]
            )
        if server is None and call.server in catalog.unavailable:
            raise ServerNotFound(
                f"Server {call.server} is not connected: {catalog.unavailable[call.server]}.",
                hint=catalog.may_come(call.server),
            )
        if server is None:
            near = nearest_names(call.server, catalog.servers)
            raise ServerNotFound(
                f"There is no server {call.server}.",
                hint=did_you_mean(near, "Import a server from listServers()."),
            )
        if (tool := server.tool(call.tool)) is not None:
            return server, tool
        if call.tool == READ.tool_name:
            raise ToolNotFound(
                f"Server {call.server} has no resources that scripts may read.",
                hint="Do without them, or let whoever runs Cellblock allow resources/read in the server's entry "
                "(not with pins that quarantine).",
            )
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
        if len(self.failures) < MAX_FAILURES:
            self.failures[f"{call.server}.{call.tool}"] = shorten(error.message, MAX_FAILURE_CHARS)
        self._finish(call)
        error.details.setdefault("serverId", call.server)
        error.details.setdefault("toolName", call.tool)
        if isinstance(error, SchemaValidationError) and call.export is not None:
            error.details.setdefault("exportName", call.export)
        self._answer(call_id, call, ok=False, body=encode_error(error, self._context.max_message_bytes))

    def _answer(self, call_id: int, call: CallFacts, *, ok: bool, body: bytes) -> None:
        if self._came is None:
            self._reply(call_id, ok, body)
        else:
            self._came(call_id, call, ok, body)

    def _note(self, server: ServerEntry, tool: ToolEntry, found: Unwrapped) -> None:
        """Notes an answer, and keeps it for who learns from it: that one is not told at once, as the script's next call
        would wait for it."""
        if self._context.answers is not None:
            self._context.answers.add(server.server_id, tool.tool_name, found.kind, found.body)
        self._noted.append((server.learnt_as, tool, found))
        self._noted_bytes += len(found.body)
        if self._came is not None or len(self._noted) >= NOTED_ANSWERS or self._noted_bytes >= NOTED_BYTES:
            self._tell_noted()

    def _tell_noted(self) -> None:
        learner, principal = self._context.learner, self._context.watch.facts.principal
        for learnt_as, tool, found in self._noted:
            learner.offer(learnt_as, tool, found.kind, found.body, principal)
        self._noted.clear()
        self._noted_bytes = 0

    def _remark(
        self, call: CallFacts, server: ServerEntry, tool: ToolEntry, result: object, found: Unwrapped
    ) -> None:
        remarks = result.remarks() if isinstance(result, ToolResult) else []
        # A text that is the structured content, alone, stays one, whatever `unwrap` is.
        settable = found.kind != "value" or found.body[:1] != b'"'
        name = server.config_name if settable else None
        number = inexact(found.body, name, exact=tool.exact and settable)
        for text in remarks if number is None else [number, *remarks]:
            if len(self.remarks) < MAX_REMARKS:
                said = f"The result of {shown(call.tool)} of {call.server}: {text}"
                self.remarks[said] = Diagnostic(severity="info", code="TOOL_RESULT_NOTE", message=said)

    def _finish(self, call: CallFacts) -> None:
        call.over = True
        call.duration_ms = int((time.monotonic() - call.started) * 1000)


class OuterCall(NamedTuple):
    """Says which call of which run a run is."""

    calls: ToolCalls
    call: CallFacts


def _too_much(tool: str) -> ToolCallError:
    return ToolCallError(
        f"{tool} was not called: the inputs of calls without an answer have too many bytes in all.",
        hint="Await some of the calls before you make the next, or send less with each.",
        certainty=Certainty.NOT_STARTED,
        summary="too much was under way",
    )
