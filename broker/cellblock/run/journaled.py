"""Ties a run to its journal: what the worker says is noted there, and what is recorded is answered from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_object
from cellblock.run.calls import ToolCalls
from cellblock.run.context import RunContext
from cellblock.run.events import CallFacts
from cellblock.run.hook import RecordedCall, RunJournal, diverged, without_place
from cellblock.run.outcome import limit_diagnostic
from cellblock.run.replies import encode_error
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.script.source import Script
from cellblock_worker.wire import protocol
from cellblock_worker.wire.protocol import MAX_LOG_ENTRIES

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Bounds the events of a run that come apart: what ten minutes of timers without a pause make, in one go."""


class Unjournaled:
    """Does nothing for a run without a journal; its worker has been asked for nothing that is noted there.

    Args:
        breach: Ends the run: its worker broke the protocol. Half a sentence.

    Attributes:
        is_live: Whether the worker has said that the script has seen all that is recorded.
    """

    def __init__(self, breach: Callable[[str], None]) -> None:
        self._breach = breach
        self.is_live = False

    @property
    def has_replayed(self) -> bool:
        """Says whether the run goes on and has come back to where it was, or has not said that it makes new calls."""
        return False

    @property
    def comes_back(self) -> bool:
        """Says whether the run goes on, once it has come back to where it was."""
        return False

    def note(self, events: str) -> bool:
        """Takes the events of a message; False: they were none, and the run is over."""
        return True

    def hears(self, message: protocol.Noted | protocol.Live, body: bytes) -> None:
        """Takes what the worker says to the journal alone."""
        self._breach("the run is not journaled")

    def answers(self, message: protocol.Call | protocol.Query, body: bytes) -> bool:
        """Says whether a request is dealt with here; otherwise it is to be made."""
        return False

    def begun(self, call_id: int, facts: CallFacts) -> None:
        """Takes the facts of a call that is being made."""

    def answered(self, call_id: int, ok: bool, body: bytes) -> None:
        """Takes the answer of a request; another one for the same request counts."""

    def end(self, reason: str, response: RunResponse) -> None:
        """Hears how the run has ended."""


class Journaled(Unjournaled):
    """Does for one run what its journal wants.

    Args:
        context: What the run is made of.
        journal: The run's.
        calls: The run's; those that are recorded are counted among them.
        reply: Sends an answer to the worker: id, ok, JSON bytes.
        kill: Ends the run, which is told why.
        breach: As of `Unjournaled`.
    """

    def __init__(
        self,
        context: RunContext,
        journal: RunJournal,
        calls: ToolCalls,
        reply: Callable[[int, bool, bytes], None],
        kill: Callable[[Diagnostic], object],
        breach: Callable[[str], None],
    ) -> None:
        super().__init__(breach)
        self._script = context.plan.script
        self._most = context.max_message_bytes
        self._journal = journal
        self._calls = calls
        self._reply = reply
        self._kill = kill
        self._place: str | None = None
        self._began = time.monotonic()
        self._small = 0
        self._events = 0

    @property
    def has_replayed(self) -> bool:
        return self.comes_back and (self.is_live or self._journal.replaying)

    @property
    def comes_back(self) -> bool:
        return self._journal.past is not None and not self._journal.offline

    def note(self, events: str) -> bool:
        try:
            place = self._journal.note(events)
        except ValueError as error:
            self._breach(str(error))
            return False
        self._place = None if place is None else self._script.place(*place)
        return True

    def hears(self, message: protocol.Noted | protocol.Live, body: bytes) -> None:
        if isinstance(message, protocol.Noted):
            self.flushed(body)
        else:
            self.live()

    def flushed(self, body: bytes) -> None:
        """Takes events that come without a request."""
        self._small += len(body) <= protocol.EVENTS_FLUSH_CHARS
        passed_ms = (time.monotonic() - self._began) * 1000
        # One before each entry and the end, and one of each EVENTS_MS; a timer may be early by a part of it.
        if self._small > MAX_LOG_ENTRIES + 2 + 2 * passed_ms / protocol.EVENTS_MS:
            self._breach("it sends events in too many messages")
            return
        self._events += len(body)
        if self._events > MAX_EVENT_BYTES:
            self._kill(
                limit_diagnostic(
                    f"The script set more timers or read the clock more often than {MAX_EVENT_BYTES} bytes can record.",
                    "Wait for what the script needs with fewer timers and readings of the clock.",
                )
            )
        else:
            self.note(body.decode("ascii", "replace"))

    def answers(self, message: protocol.Call | protocol.Query, body: bytes) -> bool:
        if isinstance(message, protocol.Call):
            found = self._journal.ask(message.id, "call", message.server, message.tool, body, self._place)
        else:
            found = self._journal.ask(message.id, "query", "", message.op, body, self._place)
        match found:
            case None:
                return False
            case Diagnostic():
                self._kill(found)
            case _:
                self._answer(found, message.id)
        return True

    def live(self) -> None:
        """Hears that the script has seen all events of the recording."""
        if self.is_live or self._journal.past is None:
            self._breach("it says twice that it is live")
            return
        self.is_live = True
        if (stop := self._journal.live()) is not None:
            self._kill(stop)

    def begun(self, call_id: int, facts: CallFacts) -> None:
        self._journal.begun(call_id, facts)

    def answered(self, call_id: int, ok: bool, body: bytes) -> None:
        self._journal.answered(call_id, ok, body)

    def end(self, reason: str, response: RunResponse) -> None:
        for call, entry in zip(self._calls.calls, response.tool_trace or (), strict=True):
            # Of one that had no answer, too: a replay tells the same.
            call.duration_ms = entry.duration_ms
        self._journal.end(reason, response.as_json)

    def _answer(self, call: RecordedCall, call_id: int) -> None:
        ok, answer = call.ok, call.answer
        if ok is None and not self._journal.offline:
            ok, answer = False, encode_error(_may_have_run(call), self._most)
            call.error, call.certainty = "may have run before the restart", Certainty.MAY_HAVE_RUN
        if call.kind == "call":
            # One that was answered when the script had ended already is told as it was.
            answered = ok if ok is not None else call.certainty is Certainty.COMPLETED and call.error is None
            self._calls.recorded(call.server, call.tool, call, ok=answered)
        if ok is not None:
            self._reply(call_id, ok, answer)


def another_run(failure: object, script: Script) -> Diagnostic:
    """Tells that the sandbox has found a replay to be another run than the recorded one."""
    told = failure if is_object(failure) else {}
    said, at = told.get("message"), told.get("place")
    place = without_place(at)[1] if isinstance(at, str) else None
    what = said[:200] if isinstance(said, str) else "it is another one"
    return diverged(what, None if place is None else script.place(*place))


def _may_have_run(call: RecordedCall) -> ToolCallError:
    return ToolCallError(
        f"{call.tool} was under way when the run was interrupted, and it is not known whether it took effect.",
        hint="Check whether the call took effect before you make it again.",
        certainty=Certainty.MAY_HAVE_RUN,
        summary="may have run before the restart",
    )
