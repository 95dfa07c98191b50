"""The tool calls of one run: counted, bounded, traced, each executed at most once."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cellblock.apart.share import Share, share_of_one
from cellblock.base.callbacks import tell
from cellblock.base.errors import (
    Certainty,
    SchemaValidationError,
    ScriptError,
    ServerNotFound,
    ToolCallError,
    ToolNotFound,
)
from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.suggest import nearest_names
from cellblock.execution.answers import Answers
from cellblock.execution.call_inputs import CallInputs, InputRules
from cellblock.execution.call_loads import CallLoads
from cellblock.execution.call_results import result_of
from cellblock.execution.error_reply import encode_error
from cellblock.execution.events import CallFacts, RunWatch
from cellblock.execution.response import TraceEntry
from cellblock.learning.observation import Kind
from cellblock.policy.rules import NO_CLOCK, Clock
from cellblock.schemas.cache import ValidatorCache

logger = logging.getLogger("cellblock.execution")

CANCEL_BOUND_SECONDS: Final = 2.0
"""From cancelling the calls in flight to giving up on their tasks; the SDK sends its cancel notice in this time."""

IN_FLIGHT: Final = "in flight when the run ended: may have run"


class ToolCaller(Protocol):
    """Gives the function that calls one tool; the upstream registry implements it."""

    def caller(self, server: ServerEntry, tool: ToolEntry) -> Callable[[Any], Awaitable[Any]]:
        """An async function of the input that gives a `CallToolResult` or plain data."""
        ...


class ResultObserver(Protocol):
    """Is shown successful results; `schemas.learner.Learner` implements it."""

    def offer(self, server: str, tool: ToolEntry, kind: Kind, body: bytes, value: Any) -> None:
        """Takes a result, as the JSON that the script got and as it was. Must neither block nor raise."""
        ...


class CallRules(InputRules, Protocol):
    """Says whether a call may be sent; `policy.rules.RunRules` implements it."""

    async def admit(self, server: ServerEntry, tool: ToolEntry, arguments: Any, clock: Clock) -> None:
        """Returns when the call may be sent. Raises CallDenied."""
        ...


@dataclass(slots=True)
class CallCounts:
    """What is certain about a run's calls."""

    completed: int = 0
    in_flight: int = 0
    not_started: int = 0


@dataclass(slots=True)
class ToolCalls:
    """All calls of one run.

    Args:
        catalog: The run's snapshot; the set of tools that exist for it.
        caller: Reaches the tools.
        maximum: `maxToolCalls`; the broker's count is the truth.
        concurrent: Calls that may be with upstreams at the same time.
        reply: Sends an answer to the worker: call id, ok, JSON bytes.
        room: Waits until the script reads its answers: no call is sent before it.
        max_reply_bytes: Cap of one answer; inputs of so many bytes in all are decoded at the same time.
        on_call: Told each call as it ends.
        schemas: The tools' input validators; shared between runs, so that each schema is compiled once.
        learner: Shown each successful result, after its answer has been sent.
        rules: What the policy says of each call; None where it says nothing.
        clock: The run's wall clock, for the time in which the user is asked.
        share: What the run's client has for large inputs.
        watch: Told each call as it begins and ends; None when nobody watches.
        answers: Notes what the tools answer; None where nobody asks.
        context: In which the calls are made: that of the request that made the run.
    """

    catalog: Catalog
    caller: ToolCaller
    maximum: int
    concurrent: int
    reply: Callable[[int, bool, bytes], None]
    max_reply_bytes: int
    room: Callable[[], Awaitable[None]] | None = None
    on_call: Callable[[TraceEntry], None] | None = None
    schemas: ValidatorCache = field(default_factory=ValidatorCache)
    learner: ResultObserver | None = None
    rules: CallRules | None = None
    clock: Clock = NO_CLOCK
    share: Share = field(default_factory=share_of_one)
    watch: RunWatch | None = None
    answers: Answers | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    calls: list[CallFacts] = field(default_factory=list[CallFacts])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _turns: asyncio.Semaphore = field(init=False)
    _loads: CallLoads = field(init=False)
    _inputs: CallInputs = field(init=False)
    _waiting_since: float | None = None
    _waited: float = 0.0
    _running: int = 0

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.concurrent)
        self._loads = CallLoads(self.max_reply_bytes, self.share)
        self._inputs = CallInputs(self.schemas, self.share, self.rules)

    @property
    def at_limit(self) -> bool:
        """Whether the next call would be over `maxToolCalls`."""
        return len(self.calls) >= self.maximum

    @property
    def wait_ms(self) -> int:
        """Time during which at least one call was under way, in milliseconds."""
        running = time.monotonic() - self._waiting_since if self._waiting_since is not None else 0.0
        return int((self._waited + running) * 1000)

    def begin(self, call_id: int, server_id: str, tool_name: str, body: bytes) -> None:
        """Starts one call; its answer is sent when it comes."""
        call = CallFacts(server_id, tool_name, time.monotonic())
        self.calls.append(call)
        self._spawn(self._execute(call_id, call, body, held=self._loads.hold(len(body))))

    def counts(self) -> CallCounts:
        """How many calls completed, may have run, or were never sent."""
        counts = CallCounts()
        for call in self.calls:
            if call.certainty is Certainty.NOT_STARTED:
                counts.not_started += 1
            elif call.over and call.certainty is Certainty.COMPLETED:
                counts.completed += 1
            else:
                counts.in_flight += 1
        return counts

    def trace(self) -> list[TraceEntry]:
        """The trace, in the order in which the calls were made."""
        return [_entry(call) for call in self.calls]

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
        task = asyncio.create_task(work, context=self.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, call_id: int, call: CallFacts, body: bytes, *, held: bool) -> None:
        self._clock(1)
        size, entered = len(body), False
        if self.watch is not None:
            call.arguments = body
            self.watch.call_begun(call)
        try:
            if not held:
                raise _too_much(call.tool)
            await self._loads.enter(size)
            entered = True
            server, tool = self._find(call)
            call.export = tool.export_name
            arguments = await self._inputs.read(server, tool, body)
            body = b""
            function = self.caller.caller(server, tool)
            if self.rules is not None:
                await self.rules.admit(server, tool, arguments, self.clock)
            async with self._turns:
                if self.room is not None:
                    await self.room()
                call.error, call.certainty = IN_FLIGHT, Certainty.MAY_HAVE_RUN
                result = await function(arguments)
            found = await result_of(result, call.server, tool, self.max_reply_bytes)
            answer = found.body
            call.ok, call.error, call.certainty = True, None, Certainty.COMPLETED
            self._finish(call)
            self.reply(call_id, True, answer)
            if self.watch is not None:
                call.result = answer
            if self.answers is not None:
                self.answers.add(call.server, call.tool, found.kind, answer)
            if self.learner is not None:
                self.learner.offer(server.config_name, tool, found.kind, answer, found.value)
        except ScriptError as error:
            call.certainty = error.certainty if isinstance(error, ToolCallError) else Certainty.NOT_STARTED
            self._fail(call_id, call, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                # Nobody cancelled this call: the tool awaited something that was cancelled.
                error = ToolCallError(
                    f"{call.tool} was cancelled on the way.",
                    hint="Check whether the call took effect.",
                    summary="cancelled on the way",
                )
                call.certainty = error.certainty
                self._fail(call_id, call, error)
                return
            raise
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
            self._clock(-1)
            if self.watch is not None:
                if not call.over:
                    call.duration_ms = int((time.monotonic() - call.started) * 1000)
                self.watch.call_ended(call)
                # Listeners have had their look; a run may make many large calls.
                call.arguments, call.result = b"", None

    def _find(self, call: CallFacts) -> tuple[ServerEntry, ToolEntry]:
        server = self.catalog.servers.get(call.server)
        if server is None and call.server in self.catalog.denied:
            raise ServerNotFound(
                f"Server {call.server} is not granted to this client.", hint=self.catalog.denied[call.server]
            )
        if server is None:
            raise ServerNotFound(
                f"There is no server {call.server}.",
                hint=_did_you_mean(call.server, self.catalog.servers, "Import a server from listServers()."),
            )
        for tool in server.tools:
            if tool.tool_name == call.tool:
                return server, tool
        withheld = server.withheld_as(call.tool)
        if withheld is not None:
            raise ToolNotFound(
                f"The tool {withheld.name} of {call.server} is left out: {withheld.why}.", hint=withheld.hint
            )
        names = [tool.tool_name for tool in server.tools]
        raise ToolNotFound(
            f"Server {call.server} has no tool {call.tool}.",
            hint=_did_you_mean(call.tool, names, "Use a tool from listTools()."),
        )

    def _fail(self, call_id: int, call: CallFacts, error: ScriptError) -> None:
        call.error = error.summary
        self._finish(call)
        error.details.setdefault("serverId", call.server)
        error.details.setdefault("toolName", call.tool)
        if isinstance(error, SchemaValidationError) and call.export is not None:
            error.details.setdefault("exportName", call.export)
        self.reply(call_id, False, encode_error(error, self.max_reply_bytes))

    def _finish(self, call: CallFacts) -> None:
        call.over = True
        call.duration_ms = int((time.monotonic() - call.started) * 1000)
        if self.on_call is not None:
            tell(self.on_call, _entry(call))

    def _clock(self, step: int) -> None:
        self._running += step
        if self._running == 1 and step == 1:
            self._waiting_since = time.monotonic()
        elif self._running == 0 and self._waiting_since is not None:
            self._waited += time.monotonic() - self._waiting_since
            self._waiting_since = None


def _entry(call: CallFacts) -> TraceEntry:
    duration = call.duration_ms if call.over else int((time.monotonic() - call.started) * 1000)
    return TraceEntry(
        server_id=call.server, tool_name=call.tool, duration_ms=duration, ok=call.ok, error=call.error
    )


def _too_much(tool: str) -> ToolCallError:
    return ToolCallError(
        f"{tool} was not called: the inputs of calls without an answer have too many bytes in all.",
        hint="Await some of the calls before you make the next, or send less with each.",
        certainty=Certainty.NOT_STARTED,
        summary="too much was under way",
    )


def _did_you_mean(name: str, known: Any, otherwise: str) -> str:
    near = nearest_names(name, known)
    return f"Did you mean {' or '.join(near)}?" if near else otherwise
