"""Carries one run from its lease to its response: hears the worker, keeps the budget, ends exactly once.

A run is a machine of four states (`states.Life`), which the host's words and the broker's own wishes move on:

    SENT ──LEASED──▶ RUNNING ──KILL──▶ KILLING ──END──▶ OVER

The host has the script (`SENT`) and promises a worker by its first word of the run (`RUNNING`): its clock begins, and
calls are made. From there a run ends in one of two ways. Its worker ends by itself, or its host is lost (`END`). Or the
broker wants it to end (`KILL`), for one of four causes: it is *stopped* for a limit or a breach of the protocol,
*aborted* since its client has gone, *left* to another broker, or *parked*, since it waits for people alone and is
written down. What the worker says after that is as if it had never been, but for its logs, and `END` comes when the
host confirms it or breaks its word; from `SENT`, too, both may come. There is no way back: a run that goes on, from its
journal or from where it was parked, is another run of this machine.

The parts (calls, queries, replies, log, clock, journal) know nothing of the states: they are handed functions that do
nothing where the state does not allow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from cellblock.pool.pool import Lease, RunMessage
from cellblock.run.calls import ToolCalls
from cellblock.run.context import RunContext
from cellblock.run.heard import RunLog, Settled
from cellblock.run.hook import CANCELLED, STOPPED, KeptRun, Parked
from cellblock.run.journaled import Journaled, Unjournaled
from cellblock.run.lending import Lender
from cellblock.run.outcome import (
    call_limit,
    ending,
    not_back,
    not_shown,
    not_written_down,
    query_limit,
    run_parked,
    with_calls,
    with_certainty,
    with_loops,
    with_unawaited,
)
from cellblock.run.parking import Parking
from cellblock.run.queries import MAX_QUERIES, Queries
from cellblock.run.questions import Questions
from cellblock.run.replies import Replies
from cellblock.run.response import Diagnostic, RunResponse, Usage
from cellblock.run.run_clock import Deadline, RunClock
from cellblock.run.states import Cause, Event, Life, State
from cellblock.tools.upstream.requester import PAUSE_MS
from cellblock_worker.wire import protocol

LEASE_BOUND_SECONDS: Final = 15.0
"""Bounds the time from sending a run to the first word of it; the host itself gives a boot 10 s."""

HOST_GRACE_SECONDS: Final = 3.0
"""Says how much later than the host the broker ends a run by its own clock."""

LEAVE_BOUND_SECONDS: Final = 2.0
"""Bounds the wait for the calls in flight of a run that another broker goes on with."""

MIN_LEFT_MS: Final = 1
"""Sets what is left of a run's time when it goes on, however much it has used: so it ends by its own limit."""

REPLAY_CPU_MS: Final = 10_000
"""Says how much more CPU time a run may take to come back to where it was than it may use itself, or, to count as its
own, than it was known to have used: another machine is slower, and what a lost process had used is not known."""

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
        self._life = Life()
        self._over = asyncio.Event()
        self._deadline = Deadline(self._host_broke_word)
        self._log = RunLog(context.plan.script, context.limits.max_log_bytes, context.watch, context.journal)
        self._settled = Settled(context)
        self._replies = Replies(self._send_reply, context.max_message_bytes)
        self._queries = Queries(
            context.discovery,
            self._reply,
            context.max_message_bytes,
            has_room=lambda: self._replies.has_room,
        )
        self._ended: protocol.Ended | None = None
        self._lost: str | None = None
        self._is_gone = self._is_last = False
        self._killed_for: Diagnostic | None = None
        self._last_id = 0
        self._queued_ms = 0
        self._has_looked = False
        self._written: Awaitable[bool] | None = None
        self._pause_ms = rules.pause_ms(parks=context.parks) if rules else 0
        if context.requester is not None or context.parks:
            self._pause_ms += PAUSE_MS
        outer = None if context.outer is None else context.outer.calls.clock
        self._clock = RunClock(self._pause_ms / 1000, self._tell, self._set_deadline, outer)
        self._lender = Lender(self._tell)
        self._questions: Questions | None = None
        if context.kept is not None and context.parks:
            parking = Parking(lambda: self._calls.under_way, self._park)
            self._questions = Questions(context.kept, parking, self._clock, context.approver)
        self._calls = ToolCalls(
            context, self._reply, self._replies.room, self._clock, self._questions, self._lender
        )
        self._journaled = Unjournaled(self._breach)
        if (journal := context.journal) is not None:
            self._journaled = Journaled(context, journal, self._calls, self._reply, self._kill, self._breach)

    def begin(self, lease: Lease) -> None:
        """Sends the script to the worker that it is leased; `outcome` must be awaited then."""
        self._lease = lease
        facts = self._context.watch.facts
        if self._context.counts_queue and facts.queued is not None and facts.leased is not None:
            self._queued_ms = int((facts.leased - facts.queued) * 1000)
        try:
            self._start(lease)
        except BaseException:
            lease.release()
            raise

    async def outcome(self, queue_ms: int) -> RunResponse:
        """Waits for the script's end, and that of its lease, and gives the response. Not to be cancelled: call
        `abort` instead."""
        try:
            await self._over.wait()
        finally:
            self._deadline.cancel()
            self._lease.release()
        if self._written and not await self._written and self._life.cause is Cause.PARKED:
            assert self._killed_for and self._context.kept
            why = not_written_down(self._killed_for, self._context.kept.refusal)
            self._life.cause, self._killed_for = Cause.STOPPED, why
        if self._life.cause is Cause.LEFT:
            # What is answered now is not to be asked again.
            await self._calls.finish(LEAVE_BOUND_SECONDS)
        if self._settled.is_so and (allowed := self._context.allowed):
            # Whoever has allowed a call expects it made, also where the script has not waited for it.
            self._calls.abandon(but=allowed)
            self._replies.close()
            await self._calls.finish(self._clock.left)
        await self._calls.cancel()
        await self._settled.is_read()
        response = self._response(queue_ms)
        self._let_go()
        return response

    def abort(self) -> None:
        """Kills the worker; `outcome` then cancels the calls in flight and gives a response of its own."""
        if self._is_gone:
            return
        why = self._ending(protocol.Ended(reason="cancelled"))
        self._kill(why, Cause.ABORTED)
        self._calls.abandon()
        if self._life.abort() and self._context.kept:
            self._context.kept.take_back(CANCELLED)
            self._killed_for = why

    def park(self) -> bool:
        """Parks the run if it waits for people and for nothing else. Says whether it is being parked."""
        return not self._is_gone and self._questions is not None and self._questions.parking.park_now()

    def leave(self) -> None:
        """Ends the run here, as its broker stops: one that waits for people is parked, one that is written down as it
        goes is left to another broker, and others are aborted."""
        kept = self._context.kept
        if self.park():
            return
        if kept is None or not kept.is_durable or not self._life.had_worker or self._life.is_over:
            self.abort()
        elif self._kill(self._ending(protocol.Ended(reason="cancelled")), Cause.LEFT):
            kept.is_left = True

    # ---- what the lease tells (LeaseEvents) ----------------------------------------------------------

    def worker_says(self, message: protocol.FromHost, body: bytes) -> None:
        """Takes a message of the host about this run, or of its worker."""
        life = self._life
        if life.state is State.SENT:
            self._has_worker(message)
        if life.state is State.RUNNING and isinstance(message, protocol.Call):
            # Before the others: of most messages this is one.
            if self._is_next(message):
                self._on_call(message, body)
            return
        if life.is_over:
            return
        match message:
            case protocol.Ended():
                self._ended = message
                if life.is_running and message.reason == "finished":
                    self._settled.take(message.outcome, body, logged=bool(self._log.entries))
                self._end()
            case protocol.Log():
                self._within(self._log.log(message, body))
            case protocol.Held():
                self._log.held()
            case _ if not life.is_running:
                # After a kill or an end, nothing but logs is of use; before a lease, nothing is possible.
                return
            case protocol.Query():
                if self._is_next(message):
                    self._on_query(message, body)
            case protocol.Took():
                if self._replies.took(message.bytes):
                    self._queries.go_on()
                else:
                    self._breach(f"it has not read {message.bytes} bytes")
            case protocol.Notice():
                self._within(self._log.notice(body))
            case protocol.Lent():
                self._lender.lent(message)
            case protocol.Noted() | protocol.Live():
                self._on_journal(message, body)
            case _:
                return

    def host_lost(self, why: str) -> None:
        """Ends the run: the host is gone, and the worker with it."""
        if not self._life.is_over:
            self._lost = why
            self._end()

    # ---- inside: the way through the states ----------------------------------------------------------

    def _start(self, lease: Lease) -> None:
        limits = self._limits
        message = protocol.Run(
            timeout_ms=self._timeout_ms,
            cpu_ms=self._cpu_ms,
            memory_bytes=limits.max_memory_bytes,
            log_bytes=limits.max_log_bytes,
            message_bytes=self._context.max_message_bytes,
            lane=hash(lease.client) & 0xFFFF_FFFF,
            key=self._context.key,
            pause_ms=self._pause_ms,
            replay_ms=self._replay_ms,
        )
        self._deadline.at(LEASE_BOUND_SECONDS, "it gave a run no worker")
        self._to_host(lease, message, self._context.plan.body)

    def _to_host(self, lease: Lease, message: RunMessage, body: bytes = b"") -> None:
        try:
            lease.send(message, body)
        except OSError as error:
            self.host_lost(str(error))

    def _kill(self, why: Diagnostic, cause: Cause = Cause.STOPPED) -> bool:
        if not self._life.kill(cause):
            return False
        self._killed_for = why
        self._deadline.at(KILL_BOUND_SECONDS, "it did not confirm a kill")
        self._to_host(self._lease, protocol.Cancel())
        return True

    def _breach(self, detail: str) -> None:
        self._kill(self._ending(protocol.Ended(reason="protocol", detail=detail)))

    def _set_deadline(self, seconds: float) -> None:
        if self._life.is_running:
            self._deadline.at(seconds, "it let a run pass its deadline")

    def _tell(self, message: protocol.Pause | protocol.Resume | protocol.Lend | protocol.Repay) -> None:
        if self._life.is_running:
            self._to_host(self._lease, message)

    def _end(self) -> None:
        if self._life.move(Event.END):
            if self._questions is not None:
                self._questions.parking.close()
            self._queries.close()
            self._deadline.cancel()
            self._over.set()

    def _host_broke_word(self, why: str) -> None:
        # The pool replaces the host and tells every run it had, this one included, through `host_lost`.
        self._lease.host_failed(why)
        self.host_lost(why)

    def _let_go(self) -> None:
        """Lets go of the run's parts, which know the run: else what they hold, such as large inputs, would stay until
        the collector comes by, and keep it long. What still comes for the run finds that it is over."""
        self._is_gone = True
        parts = "calls clock deadline journaled lease lender log queries questions replies settled"
        for part in parts.split():
            delattr(self, f"_{part}")

    # ---- inside: parking -----------------------------------------------------------------------------

    @property
    def _timeout_ms(self) -> int:
        """Gives what is left of the run's time: what it has used before it was parked counts."""
        return max(MIN_LEFT_MS, self._limits.timeout_ms - self._context.used_ms - self._queued_ms)

    @property
    def _cpu_ms(self) -> int:
        """Gives what is left of the run's CPU time."""
        return max(MIN_LEFT_MS, self._limits.max_cpu_ms - self._context.used_cpu_ms)

    @property
    def _replay_ms(self) -> int:
        """Gives the CPU time in which the run comes back to where it was; 0: it was nowhere before."""
        return self._limits.max_cpu_ms + REPLAY_CPU_MS if self._journaled.comes_back else 0

    @property
    def _replays(self) -> bool:
        """Says whether the run still has to come back to the point from which it goes on."""
        return self._journaled.comes_back and not self._journaled.is_live

    def _note_use(self, kept: KeptRun, ended: protocol.Ended) -> None:
        """Notes what the script has used when it is to go on in another process; its replays do not count."""
        # A worker that makes new calls and does not say that it is live is no honest one.
        replayed = ended.replay_cpu_ms if self._journaled.has_replayed else 0
        used = max(kept.earlier_cpu_ms, replayed - REPLAY_CPU_MS)
        kept.earlier_cpu_ms = used + max(0, ended.cpu_ms - replayed) + self._lender.cpu_ms
        kept.used_ms = self._used_ms

    @property
    def _used_ms(self) -> int:
        """Gives how many milliseconds of wall time the run has used, in all its processes."""
        before = self._context.used_ms
        if not self._life.had_worker or self._replays:
            return before
        return before + max(0, int((self._timeout_ms / 1000 + HOST_GRACE_SECONDS - self._clock.left) * 1000))

    def _park(self) -> None:
        """Has the run written down, and its worker killed: what that does from now on is as if it had never been."""
        kept, journal, questions = self._context.kept, self._context.journal, self._questions
        assert kept and journal and questions
        if not self._life.is_running:
            return
        asked = tuple(questions.parking.questions.values())
        parked = Parked(questions=asked, client=self._lease.client, losses=kept.losses)
        if self._context.rules is not None:
            parked = self._context.rules.parked(parked)
        why = run_parked(kept.run_id, parked)
        if journal.lost:
            self._kill(not_written_down(why, journal.lost))
            return
        used_ms = self._used_ms
        left = self._calls.leave({one.call for one in parked.questions if one.holds_call}, kept.came)
        for task in left:
            self._context.generation.until(task)
        self._written = kept.park(parked, used_ms, left, questions.leave())
        self._kill(why, Cause.PARKED)

    # ---- inside: what the worker says ----------------------------------------------------------------

    def _within(self, breach: str | None) -> None:
        if breach is not None:
            self._host_broke_word(breach)

    def _is_next(self, message: protocol.Call | protocol.Query) -> bool:
        """Says whether ids count up as they must (a call that is said twice must not be made twice), and takes the
        events that come with a request; False: the run is over."""
        if message.id <= self._last_id:
            self._breach(f"call id {message.id} comes again")
            return False
        self._last_id = message.id
        return self._journaled.note(message.events)

    def _on_call(self, message: protocol.Call, body: bytes) -> None:
        if self._calls.calls_left <= 0:
            self._kill(call_limit(self._limits.max_tool_calls))
        elif not self._journaled.answers(message, body):
            facts = self._calls.begin(message.id, message.server, message.tool, body)
            self._journaled.begun(message.id, facts)

    def _on_query(self, message: protocol.Query, body: bytes) -> None:
        if self._queries.at_limit:
            self._kill(query_limit(MAX_QUERIES))
            return
        self._has_looked |= message.op in ("listServers", "searchTools")
        if not self._journaled.answers(message, body):
            self._queries.begin(message.id, message.op, body)

    def _on_journal(self, message: protocol.Noted | protocol.Live, body: bytes) -> None:
        self._journaled.hears(message, body)
        if isinstance(message, protocol.Live) and self._replay_ms:
            self._clock.start(self._timeout_ms / 1000 + HOST_GRACE_SECONDS)

    def _has_worker(self, message: protocol.FromHost) -> None:
        """Notes that the run has a worker, which any message about the run implies, but for an end without one."""
        is_end = isinstance(message, protocol.Ended)
        if (is_end and message.outcome == "none") or not self._life.move(Event.LEASED):
            return
        ran_ms = message.wall_ms if isinstance(message, protocol.Leased | protocol.Ended) else 0
        self._context.watch.started(ran_ms / 1000)
        if not is_end:
            replay_ms = protocol.REPLAY_WALL_TIMES * self._replay_ms
            self._clock.start((self._timeout_ms + replay_ms) / 1000 + HOST_GRACE_SECONDS)

    def _reply(self, call_id: int, ok: bool, body: bytes) -> None:
        is_running = self._life.state is State.RUNNING
        if is_running or (self._life.cause is Cause.LEFT and not self._is_gone):
            self._journaled.answered(call_id, ok, body)
        if is_running:
            flow = self._context.rules.flow if self._context.key and self._context.rules else None
            if flow is not None and flow.has_risen and not self._is_last:
                # Those that wait for its process, with the same key, know less.
                self._is_last = True
                self._to_host(self._lease, protocol.Last())
            self._replies.reply(call_id, ok, body)

    def _send_reply(self, call_id: int, ok: bool, body: bytes) -> None:
        if self._life.state is State.RUNNING:
            # What waited too long was replaced by an error.
            self._journaled.answered(call_id, ok, body)
            self._to_host(self._lease, protocol.Reply(id=call_id, ok=ok), body)

    # ---- inside: the response ------------------------------------------------------------------------

    def _response(self, queue_ms: int) -> RunResponse:
        ended = self._ended or protocol.Ended(reason="crashed")
        self._context.watch.facts.worker_end = "host_lost" if self._lost is not None else ended.reason
        is_parked = self._life.cause is Cause.PARKED
        own, notices = self._settled.diagnostics, with_unawaited(self._log.notices, self._script)
        notices = [*notices, *self._calls.remarks.values()]
        if self._has_looked and (catalog := self._context.catalog).unavailable:
            notices.append(not_shown(catalog))
        if self._settled.failed:
            own = [with_calls(one, [], self._calls.may_have_changed()) for one in own]
        diagnostics = [*own, *notices] if self._settled.failed else [*notices, *own]
        kept = self._context.kept
        final = self._killed_for or (None if self._settled.is_so else self._ending(ended))
        is_cut_off = final is not None
        is_lost = self._is_lost(ended)
        if kept and (is_parked or is_lost):
            self._note_use(kept, ended)
            if is_parked:
                kept.parked()
        if is_cut_off:
            told = with_loops(final, self._script)
            if self._calls.calls and not is_parked:
                told = with_certainty(told, self._calls.counts())
                told = with_calls(told, self._calls.calls, self._calls.may_have_changed())
            diagnostics.insert(0, told)
        trace, rules = self._calls.trace(), self._context.rules
        response = RunResponse(
            logs=self._log.entries,
            result=None if is_cut_off or self._settled.failed else self._settled.result,
            diagnostics=diagnostics,
            tool_trace=trace,
            usage=Usage(
                wall_ms=ended.wall_ms,
                cpu_ms=ended.cpu_ms + self._context.account.cpu_ms,
                peak_memory_bytes=max(ended.peak_bytes, self._lender.peak_bytes),
                queue_ms=queue_ms,
                tool_wait_ms=self._calls.wait_ms,
                tool_calls=len(trace),
                approval_wait_ms=rules.waited_ms if rules and rules.asked else None,
                reused=ended.reused if self._context.key else None,
                resumed=None if kept is None else kept.resumed or None,
            ),
            parked=is_parked,
            lost=is_cut_off and is_lost,
            failures=self._calls.failures,
        )
        if not is_parked:
            stopped = self._life.cause is Cause.STOPPED and ended.reason == "cancelled"
            reason = (STOPPED if stopped else ended.reason) if is_cut_off else "finished"
            self._journaled.end(reason, response)
        return response

    def _is_lost(self, ended: protocol.Ended) -> bool:
        """Says whether the run has ended for no fault of its script's, as far as is known."""
        if self._settled.is_so or self._life.cause is not None:
            return False
        # Others may have killed one that crashed; one whose script has done it is lost again, and ends then.
        return self._lost is not None or ended.reason in ("host_stopping", "crashed")

    def _ending(self, ended: protocol.Ended) -> Diagnostic:
        if self._lost is None and self._replays and ended.reason in ("cpu", "timeout"):
            return not_back(self._replay_ms)
        return ending(ended, self._lost, self._limits, started=self._life.had_worker)
