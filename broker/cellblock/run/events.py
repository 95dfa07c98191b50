"""Tells facts about runs from one place: all that watches (logs, audit, metrics, traces, dashboard) hears them here.

A watcher is told each step of each run while it happens, in the broker's loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from cellblock.base.callbacks import tell
from cellblock.base.errors import Certainty
from cellblock.base.internal import internal
from cellblock.run.response import LogEntry, RunResponse, TraceEntry

NEVER_SENT = "not called: the run had ended before"

WAITS = "not called yet: the run waits for you"


def new_run_id() -> str:
    """Returns the name of a new run; it is shown in logs, and no secret."""
    return secrets.token_hex(8)


@dataclass(slots=True, eq=False)
class CallFacts:
    """Describes one tool call of a run. Times are of `time.monotonic`; `error` is one of a few fixed phrases,
    never a tool's text."""

    server: str
    tool: str
    started: float
    arguments: bytes = b""
    """Holds JSON, only while the call is under way."""
    number: int = 0
    """Counts the calls of a run from 1."""
    export: str | None = None
    """Holds the tool's export when the tool exists: until then, `server` and `tool` are whatever the script has
    written."""
    result: bytes | None = None
    """Holds the JSON that the script got, until watchers have seen it."""
    duration_ms: int = 0
    ok: bool = False
    error: str | None = NEVER_SENT
    certainty: Certainty = Certainty.NOT_STARTED
    over: bool = False
    within: str | None = None
    """Names the kept script that has made the call, where another run has called that."""
    inner: int = 0
    """Counts the calls of a kept script that was called."""
    label: str = ""
    """Holds the label of what came of it, packed; empty where flows are off, or nothing has come."""

    def entry(self) -> TraceEntry:
        """Gives the call's entry in the trace; of a call that is under way, with the time until now."""
        duration = self.duration_ms if self.over else int((time.monotonic() - self.started) * 1000)
        return TraceEntry(
            server_id=self.server,
            tool_name=self.tool,
            duration_ms=duration,
            ok=self.ok,
            error=self.error,
            within=self.within,
        )


@dataclass(slots=True, eq=False)
class RunFacts:
    """Describes one run so far. Times are of `time.monotonic`, None before they are; `accepted_at` is Unix time
    in seconds."""

    id: str
    client: str
    code: str
    accepted_at: float
    accepted: float
    queued: float | None = None
    leased: float | None = None
    """Says when the run got its place."""
    started: float | None = None
    """Says when a worker had the script."""
    ended: float | None = None
    principal: str = ""
    calls: list[CallFacts] = field(default_factory=list[CallFacts])
    worker_end: str | None = None
    """Says why the run's worker ended: a reason of `protocol.Ended`, or `host_lost`; None when it never had one."""
    response: RunResponse | None = None
    """Holds the response when the run has ended; None then when the run was given up before it had a worker."""

    @property
    def state(self) -> str:
        """Names the run's state: `planning`, `queued`, `starting`, `running` or `ended`."""
        if self.ended is not None:
            return "ended"
        if self.started is not None:
            return "running"
        if self.leased is not None:
            return "starting"
        return "planning" if self.queued is None else "queued"

    @property
    def outcome(self) -> str:
        """Gives `ok`, `running`, or the code of the first error, such as `SANDBOX_LIMIT`: only codes of
        Cellblock's own."""
        if self.ended is None:
            return "running"
        if self.response is None:
            return "CANCELLED"
        if self.response.parked:
            return "parked"
        errors = (entry.code for entry in self.response.diagnostics if entry.severity == "error")
        return next(errors, "ok")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Tells what a person has said to calls of a parked run.

    Args:
        run: The run's id.
        verdict: `accepted`, `declined` or `cancelled`; the last one ends the run.
        calls: The numbers of the calls; none of a run that was cancelled.
        by: Who it was: `token`, a browser's login, or `cli`: who can write to the state directory.
    """

    run: str
    verdict: str
    calls: tuple[int, ...]
    by: str


class Watcher:
    """Hears of runs: a subclass overrides what it wants to hear. Methods are called in the loop, must return at
    once, and may raise: that is logged and harms nobody else."""

    def run_accepted(self, run: RunFacts) -> None:
        """Hears that a well-formed request has come. Called in the caller's context (`contextvars`)."""

    def run_queued(self, run: RunFacts) -> None:
        """Hears that the run is planned and wants a place."""

    def run_leased(self, run: RunFacts) -> None:
        """Hears that the run has a place at a host."""

    def run_started(self, run: RunFacts) -> None:
        """Hears that a worker has the script."""

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        """Hears that the script has written to its console."""

    def call_begun(self, run: RunFacts, call: CallFacts) -> None:
        """Hears that a tool call begins. Called in the task, and so the context, in which the upstream will be
        called."""

    def call_sent(self, run: RunFacts, call: CallFacts) -> None:
        """Hears that a call was not refused, and goes to its tool; again, where it is sent again after a login."""

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        """Hears that a call is over, or was given up with the run."""

    def run_ended(self, run: RunFacts) -> None:
        """Hears that a run is over; `ended` is set."""

    def run_decided(self, decision: Decision) -> None:
        """Hears what a person has said to a parked run."""


@dataclass(frozen=True)
class Observer(Watcher):
    """Sees a run while it runs: an observer is told each console entry as it comes and each tool call as it ends."""

    on_log: Callable[[LogEntry], None] | None = None
    on_call: Callable[[TraceEntry], None] | None = None

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        """Tells `on_log` of a console entry."""
        if self.on_log is not None:
            self.on_log(entry)

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        """Tells `on_call` of a call that has an answer; a call that was given up with the run has none."""
        if self.on_call is not None and call.over:
            self.on_call(call.entry())


@cache
def _hears(kind: type[Watcher], step: str) -> bool:
    return getattr(kind, step) is not getattr(Watcher, step)


class RunWatch:
    """Tells the watchers of one run what happens to it."""

    __slots__ = ("_deferred", "_watchers", "facts")

    def __init__(self, watchers: tuple[Watcher, ...], facts: RunFacts) -> None:
        self._watchers = watchers
        self._deferred = False
        self.facts = facts
        self._tell("run_accepted")

    def queued(self) -> None:
        """Tells that the run wants a place."""
        self.facts.queued = time.monotonic()
        self._tell("run_queued")

    def leased(self) -> None:
        """Tells that the run has a place at a host."""
        self.facts.leased = time.monotonic()
        self._tell("run_leased")

    def started(self, ago_seconds: float = 0.0) -> None:
        """Tells that a worker has had the script for so long, as its host says."""
        self.facts.started = max(self.facts.leased or self.facts.accepted, time.monotonic() - ago_seconds)
        self._tell("run_started")

    def logged(self, entry: LogEntry) -> None:
        """Tells that a console entry has come."""
        self._tell("run_logged", entry)

    def call_begun(self, call: CallFacts) -> None:
        """Tells that a tool call begins."""
        self.call_recorded(call)
        self._tell("call_begun", call)

    def call_recorded(self, call: CallFacts) -> None:
        """Counts a call; of one that is only recorded, nobody is told."""
        self.facts.calls.append(call)
        call.number = len(self.facts.calls)

    def call_sent(self, call: CallFacts) -> None:
        """Tells that a call goes to its tool."""
        self._tell("call_sent", call)

    def call_ended(self, call: CallFacts) -> None:
        """Tells that a call is over; of a run that has ended, nothing more is told, unless its tools go on."""
        ended_with = self.facts.response
        if self.facts.ended is None or (ended_with is not None and ended_with.parked and call.over):
            self._tell("call_ended", call)

    def ended(self, response: RunResponse | None) -> None:
        """Tells once that the run is over."""
        if self.facts.ended is None:
            self.facts.ended = time.monotonic()
            self.facts.response = response
            self._tell("run_ended")

    def _tell(self, step: str, *more: LogEntry | CallFacts) -> None:
        """Calls the method of this name of each watcher that has one of its own."""
        for watcher in self._watchers:
            if _hears(type(watcher), step):
                tell(getattr(watcher, step), self.facts, *more)

    def ends_with(self, task: asyncio.Task[RunResponse]) -> None:
        """Notes that the caller has gone; the run is over when its clean-up is."""
        self._deferred = True
        task.add_done_callback(
            lambda done: self.ended(None if done.cancelled() or done.exception() else done.result())
        )

    def given_up(self) -> None:
        """Notes that the caller gets no response: the run is over, unless its clean-up will say so."""
        if not self._deferred:
            self.ended(None)


class RunEvents:
    """Adds watchers and takes them away. A run is told to those that watched when it was accepted."""

    def __init__(self) -> None:
        self._watchers: tuple[Watcher, ...] = ()

    def add(self, watcher: Watcher) -> None:
        """Watches all runs from now on."""
        self._watchers = (*self._watchers, watcher)

    def remove(self, watcher: Watcher) -> None:
        """Watches no further run; of those under way it still hears."""
        self._watchers = tuple(known for known in self._watchers if known is not watcher)

    @internal
    def decided(self, decision: Decision) -> None:
        """Tells all watchers what a person has said to a parked run."""
        for watcher in self._watchers:
            tell(watcher.run_decided, decision)

    @internal
    def open(
        self, client: str, code: str, *also: Watcher | None, principal: str = "", run_id: str = ""
    ) -> RunWatch:
        """Makes the watch of one run.

        Args:
            client: Whose run it is.
            code: The script.
            also: Watch this run only.
            principal: As in `Grantee`.
            run_id: Names a run that goes on; empty: it is a new one.
        """
        watchers = (*self._watchers, *(one for one in also if one is not None))
        run_id = run_id or new_run_id()
        return RunWatch(
            watchers, RunFacts(run_id, client, code, time.time(), time.monotonic(), principal=principal)
        )


def call_outcome(call: CallFacts) -> str:
    """Returns `ok`, `failed` (the tool said so), `not_sent` (refused before), or `uncertain` (may have run)."""
    if call.ok:
        return "ok"
    if call.certainty is Certainty.NOT_STARTED:
        return "not_sent"
    return "failed" if call.certainty is Certainty.COMPLETED else "uncertain"
