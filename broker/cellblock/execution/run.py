"""Carries one run from its lease to its response: hears the worker, keeps the budget, ends exactly once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from cellblock.apart.light import is_light
from cellblock.execution import payload
from cellblock.execution.calls import ToolCalls
from cellblock.execution.context import RunContext
from cellblock.execution.failure import diagnose, places_in_stacks
from cellblock.execution.large_results import UnreadableResult, not_json, not_read, read_result
from cellblock.execution.outcome import (
    call_limit,
    ending,
    no_result,
    query_limit,
    with_certainty,
    with_unawaited,
)
from cellblock.execution.plan import imported_exports, imported_withheld
from cellblock.execution.queries import MAX_QUERIES, Queries
from cellblock.execution.replies import Replies
from cellblock.execution.response import Diagnostic, RunResponse, Usage
from cellblock.execution.run_clock import Deadline, RunClock
from cellblock.execution.run_log import RunLog
from cellblock.execution.states import Event, State, advance
from cellblock.upstream.requester import PAUSE_MS
from cellblock.workers.pool.pool import Lease, RunMessage
from cellblock_worker.wire import protocol

logger = logging.getLogger("cellblock.execution")

LEASE_BOUND_SECONDS: Final = 15.0
"""Bounds the time from sending a run to `Leased`; the host itself gives a boot 10 s."""

HOST_GRACE_SECONDS: Final = 3.0
"""Says how much later than the host the broker ends a run by its own clock."""

KILL_BOUND_SECONDS: Final = 4.0
"""Bounds the time from asking for a worker's death to `Ended`; the host itself allows 2 s."""


class Run:
    """Carries one run; implements `pool.LeaseEvents`.

    Args:
        context: What the run is made of.
    """

    def __init__(self, context: RunContext) -> None:
        rules = context.rules
        self._context = context
        self._script = context.plan.script
        self._limits = context.limits
        self._lease: Lease | None = None
        self._state = State.SENT
        self._over = asyncio.Event()
        self._deadline = Deadline(self._host_broke_word)
        self._log = RunLog(context.plan.script, context.limits.max_log_bytes, context.watch)
        self._diagnostics: list[Diagnostic] = []
        self._result: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._replies = Replies(self._send_reply, context.max_message_bytes)
        self._queries = Queries(
            context.discovery,
            self._reply,
            context.max_message_bytes,
            has_room=lambda: self._replies.has_room,
        )
        self._ended: protocol.Ended | None = None
        self._lost: str | None = None
        self._killed_for: Diagnostic | None = None
        self._failed = False
        self._leased = False
        self._settled = False
        self._last_id = 0
        self._pause_ms = rules.pause_ms if rules is not None else 0
        if context.requester is not None:
            self._pause_ms += PAUSE_MS
        self._clock = RunClock(self._pause_ms / 1000, self._hold_clock, self._set_deadline)
        self._calls = ToolCalls(context, self._reply, self._replies.room, self._clock)

    def begin(self, lease: Lease) -> None:
        """Sends the script to the worker that it is leased; `outcome` must be awaited then."""
        self._lease = lease
        try:
            self._start(lease)
        except BaseException:
            lease.release()
            raise

    async def outcome(self, queue_ms: int) -> RunResponse:
        """Waits for the script's end, and that of its lease, and gives the response. Not to be cancelled: call
        `abort` instead."""
        assert self._lease is not None
        try:
            await self._over.wait()
        finally:
            self._deadline.cancel()
            self._lease.release()
        await self._calls.cancel()
        if self._reading is not None:
            await self._reading
        return self._response(queue_ms)

    def abort(self) -> None:
        """Kills the worker; `outcome` then cancels the calls in flight and gives a response of its own."""
        if self._lease is not None:
            self._kill(self._ending(protocol.Ended(reason="cancelled")))
            self._calls.abandon()

    # ---- what the lease tells (LeaseEvents) ----------------------------------------------------------

    def worker_says(self, message: protocol.FromHost, body: bytes) -> None:
        """Takes a message of the host about this run, or of its worker."""
        if self._state is State.OVER:
            return
        match message:
            case protocol.Ended():
                self._ended = message
                self._end()
            case protocol.Leased():
                if self._move(Event.LEASED):
                    self._leased = True
                    if self._context.watch is not None:
                        self._context.watch.started()
                    self._clock.start(self._limits.timeout_ms / 1000 + HOST_GRACE_SECONDS)
            case protocol.Log():
                self._within(self._log.log(message, body))
            case _ if self._state is not State.RUNNING:
                # After a kill or an end, nothing but logs is of use; before a lease, nothing is possible.
                return
            case protocol.Call() if self._is_next(message.id):
                self._on_call(message, body)
            case protocol.Query() if self._is_next(message.id):
                self._on_query(message, body)
            case protocol.Took():
                if self._replies.took(message.bytes):
                    self._queries.go_on()
                else:
                    self._kill(self._breach(f"it has not read {message.bytes} bytes"))
            case protocol.Notice():
                self._within(self._log.notice(body))
            case protocol.Done():
                self._on_done(body)
            case protocol.Failed():
                self._on_failed(message, body)
            case _:
                return

    def host_lost(self, why: str) -> None:
        """Ends the run: the host is gone, and the worker with it."""
        if self._state is not State.OVER:
            self._lost = why
            self._end()

    # ---- inside: the way through the states ----------------------------------------------------------

    def _start(self, lease: Lease) -> None:
        limits = self._limits
        message = protocol.Run(
            timeout_ms=limits.timeout_ms,
            cpu_ms=limits.max_cpu_ms,
            memory_bytes=limits.max_memory_bytes,
            log_bytes=limits.max_log_bytes,
            message_bytes=self._context.max_message_bytes,
            lane=hash(lease.client) & 0xFFFF_FFFF,
            pause_ms=self._pause_ms,
        )
        self._deadline.at(LEASE_BOUND_SECONDS, "it gave a run no worker")
        self._to_host(lease, message, self._context.plan.body)

    def _to_host(self, lease: Lease, message: RunMessage, body: bytes = b"") -> None:
        try:
            lease.send(message, body)
        except OSError as error:
            self.host_lost(str(error))

    def _move(self, event: Event) -> bool:
        after = advance(self._state, event)
        if after is None:
            return False
        self._state = after
        return True

    def _kill(self, why: Diagnostic) -> None:
        if not self._move(Event.KILL):
            return
        self._killed_for = why
        self._deadline.at(KILL_BOUND_SECONDS, "it did not confirm a kill")
        assert self._lease is not None
        self._to_host(self._lease, protocol.Cancel())

    def _set_deadline(self, seconds: float) -> None:
        if self._state is State.RUNNING:
            self._deadline.at(seconds, "it let a run pass its deadline")

    def _hold_clock(self, message: protocol.Pause | protocol.Resume) -> None:
        if self._state is State.RUNNING and self._lease is not None:
            self._to_host(self._lease, message)

    def _end(self) -> None:
        if self._move(Event.END):
            self._queries.close()
            self._replies.close()
            self._deadline.cancel()
            self._over.set()

    def _host_broke_word(self, why: str) -> None:
        # The pool replaces the host and tells every run it had, this one included, through `host_lost`.
        assert self._lease is not None
        self._lease.host_failed(why)
        if self._state is not State.OVER:
            self.host_lost(why)

    # ---- inside: what the worker says ----------------------------------------------------------------

    def _within(self, breach: str | None) -> None:
        if breach is not None:
            self._host_broke_word(breach)

    def _is_next(self, call_id: int) -> bool:
        """Says whether ids count up as they must: a call that is said twice must not be made twice."""
        if call_id <= self._last_id:
            self._kill(self._breach(f"call id {call_id} comes again"))
            return False
        self._last_id = call_id
        return True

    def _on_call(self, message: protocol.Call, body: bytes) -> None:
        if self._calls.at_limit:
            self._kill(call_limit(self._limits.max_tool_calls))
        else:
            self._calls.begin(message.id, message.server, message.tool, body)

    def _on_query(self, message: protocol.Query, body: bytes) -> None:
        if self._queries.at_limit:
            self._kill(query_limit(MAX_QUERIES))
        else:
            self._queries.begin(message.id, message.op, body)

    def _settle(self) -> None:
        self._move(Event.SETTLE)
        self._settled = True
        self._deadline.at(KILL_BOUND_SECONDS, "it did not confirm an end")

    def _on_done(self, body: bytes) -> None:
        self._settle()
        if not body:
            self._diagnostics.append(no_result(self._script, logged=bool(self._log.entries)))
            return
        if not is_light(body):
            self._reading = asyncio.create_task(self._read_result(body), name="a large result")
            return
        try:
            self._result = payload.decode(places_in_stacks(body, self._script))
        except payload.PayloadError as error:
            self._no_result(not_json(str(error)))

    async def _read_result(self, body: bytes) -> None:
        try:
            self._result = await read_result(body, self._script, self._context.share)
        except UnreadableResult as error:
            self._no_result(error.diagnostic)
        except Exception:
            logger.exception("a large result could not be read")
            self._no_result(not_read("Cellblock failed while it read the result.", "Report this."))

    def _no_result(self, why: Diagnostic) -> None:
        self._failed = True
        self._diagnostics.append(why)

    def _on_failed(self, message: protocol.Failed, body: bytes) -> None:
        self._settle()
        self._failed = True
        try:
            failure: object = payload.decode(body) if is_light(body) else None
        except payload.PayloadError:
            failure = None
        script, catalog, most = self._script, self._context.catalog, self._limits.max_memory_bytes
        names, withheld = imported_exports(script, catalog), imported_withheld(script, catalog)
        self._diagnostics.append(diagnose(message, failure, script, most, names, withheld, catalog))

    def _reply(self, call_id: int, ok: bool, body: bytes) -> None:
        if self._state is State.RUNNING:
            self._replies.reply(call_id, ok, body)

    def _send_reply(self, call_id: int, ok: bool, body: bytes) -> None:
        if self._state is State.RUNNING and self._lease is not None:
            self._to_host(self._lease, protocol.Reply(id=call_id, ok=ok), body)

    # ---- inside: the response ------------------------------------------------------------------------

    def _response(self, queue_ms: int) -> RunResponse:
        ended = self._ended or protocol.Ended(reason="crashed")
        if self._context.watch is not None:
            self._context.watch.facts.worker_end = "host_lost" if self._lost is not None else ended.reason
        own, notices = self._diagnostics, with_unawaited(self._log.notices, self._script)
        diagnostics = [*own, *notices] if self._failed else [*notices, *own]
        final = self._killed_for
        # A script that has settled has its outcome, whatever became of the host after it.
        if final is None and not (self._settled and (self._lost is not None or ended.reason == "finished")):
            final = self._ending(ended)
        if final is not None:
            diagnostics.insert(0, with_certainty(final, self._calls.counts()) if self._calls.calls else final)
        trace, rules = self._calls.trace(), self._context.rules
        return RunResponse(
            logs=self._log.entries,
            result=None if final is not None or self._failed else self._result,
            diagnostics=diagnostics,
            tool_trace=trace,
            usage=Usage(
                wall_ms=ended.wall_ms,
                cpu_ms=ended.cpu_ms + self._context.share.bill.cpu_ms,
                peak_memory_bytes=ended.peak_bytes,
                queue_ms=queue_ms,
                tool_wait_ms=self._calls.wait_ms,
                tool_calls=len(trace),
                approval_wait_ms=rules.waited_ms if rules and rules.asked else None,
            ),
        )

    def _breach(self, detail: str) -> Diagnostic:
        return self._ending(protocol.Ended(reason="protocol", detail=detail))

    def _ending(self, ended: protocol.Ended) -> Diagnostic:
        return ending(ended, self._lost, self._limits, started=self._leased)
