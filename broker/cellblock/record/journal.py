"""A journal accompanies one run: it notes what the script asks and sees, and answers what is recorded already."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cellblock.base.budget import ALL_BYTES, CLIENT_BYTES, Budget, OverBudget
from cellblock.base.database import StoreError
from cellblock.base.errors import Certainty
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.policy import Grant
from cellblock.record.recording import Recording, catalog_of, names_of
from cellblock.run.hook import (
    STOPPED,
    Facts,
    RecordedCall,
    RequestKind,
    digest_of,
    diverged,
    has_order,
    is_events,
    without_place,
)
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.tools.catalog.model import Catalog


class NotYet(StoreError):
    """Tells that a run does not go on for now: what it holds has no place beside what others hold, or a server that it
    needs still starts."""


class JournalBudget(Budget):
    """Counts the bytes that journals hold in memory. Every thread may use it.

    Args:
        each: What those of one client may hold together.
        whole: What all may hold together.
    """

    def __init__(self, each: int = CLIENT_BYTES, whole: int = ALL_BYTES) -> None:
        super().__init__(each, whole, "its client", "journals")
        self._returned: deque[tuple[str, int]] = deque()
        self._taking = threading.Lock()

    def take(self, key: str, size: int) -> None:
        """Counts more bytes of a client, or fewer. Raises OverBudget: they do not fit, and are not counted."""
        with self._taking:
            while self._returned:
                super().give_back(*self._returned.popleft())
            super().take(key, size)

    def give_back(self, key: str, size: int) -> None:
        """Takes bytes off the count. A collector may call it anywhere, also within `take`: so it takes no lock."""
        self._returned.append((key, size))


BUDGET: Final = JournalBudget()
"""Counts the bytes that the journals of this process hold in memory."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Bounds what a journal holds: inputs, answers and events. A run that is over it goes on without one. While it is
written or read, it is in memory three times more."""

SEED_BYTES: Final = 32

BY_ITSELF: Final = ("timeout", "cpu", "memory", "total_memory", "crashed", "protocol", STOPPED)
"""Lists ends of a worker that a replay comes to by itself, as the script did what leads there."""


@dataclass(slots=True)
class _Noted:
    """Holds a request, and what is known of it elsewhere until its answer is recorded."""

    call: RecordedCall
    facts: Facts | None = None
    place: str | None = None

    def as_recorded(self) -> RecordedCall:
        facts = self.facts or self.call
        return replace(
            self.call,
            error=facts.error,
            certainty=facts.certainty,
            duration_ms=facts.duration_ms,
            inner=facts.inner,
            label=facts.label,
        )


class Journal:
    """Records a run, replays a recording, or does one after the other; implements `run.hook.RunJournal`.

    Args:
        past: What is replayed; None: it is a new run. The run comes to its end and then goes on, recorded as before.
        client: Whose run it is.
        offline: Whether the run calls no tool: what is not recorded ends it, unless it is to be made.
        other_script: Is run offline in place of the recorded one. Its calls find their answers by tool and input.
        until: Number of the call, from 1, before which an offline run is to stop.
        live_on_miss: Whether a call of another script that has no recorded answer is made, and asked about before.
        budget: As the attribute; None: the process's.

    Attributes:
        past: What is replayed; None in a new run.
        replaying: Whether the script has asked for nothing yet that is not recorded, nor said that it has seen all.
        lost: Why there is no recording of this run any more, half a sentence; None while there is.
        most_bytes: Bounds what it holds.
        budget: Bounds what those that are recorded hold, of a client and of all; None offline, where no run waits.
        may_repeat: Says of a recorded call that may have run, and has no answer, whether it may be made again.
        missed: The ids of the requests of another script that are made, since no recorded one is like them.
        on_change: Is told of each request when it comes, and again when it has its answer; None: nobody.
    """

    def __init__(
        self,
        past: Recording | None = None,
        client: str = "",
        *,
        offline: bool = False,
        other_script: str | None = None,
        until: int | None = None,
        live_on_miss: Literal["no", "asks", "yes"] = "no",
        budget: JournalBudget | None = None,
    ) -> None:
        self.budget = None if offline else budget or BUDGET
        self._client = client
        self.size = 0
        """Counts the bytes of inputs, answers and events that the journal holds."""

        self.past = past
        self.replaying = past is not None
        self.lost: str | None = None
        self.most_bytes = MAX_BYTES
        self.may_repeat: Callable[[RecordedCall], bool] = lambda call: False
        self.on_change: Callable[[RecordedCall], None] | None = None
        self.offline = offline
        self._other_script = other_script
        self._until = until
        self._live_on_miss = live_on_miss
        self.missed: list[int] = []
        self._events: list[str] = []
        self._noted: dict[int, _Noted] = {}
        self._asked: list[_Noted] = []
        self._answers: defaultdict[tuple[str, str, str], deque[RecordedCall]] = defaultdict(deque)
        self._calls = 0
        self._logs = 0
        self._head: Recording | None = past
        self._catalog = Catalog()
        self._grants: Sequence[Grant] = ()
        self._response: Callable[[], dict[str, Any]] | None = None
        self._ended: str | None = None
        held = 0 if past is None else len(past.events)
        for call in past.calls if past is not None else ():
            if other_script is None:
                self._noted[call.id] = _Noted(replace(call))
                held += len(call.input) + len(call.answer)
            elif call.ok is not None:
                self._answers[call.server, call.tool, call.input_digest].append(call)
        if self.budget is not None:
            self._hold(held)

    def __del__(self) -> None:
        self.let_go()

    # ---- for the executor ----------------------------------------------------------------------------

    def let_go(self) -> None:
        """Gives back the journal's budget: the run is over, or another journal has what it holds."""
        if self.budget is not None and self.size:
            self.budget.give_back(self._client, self.size)
        self.size = 0

    def forget(self) -> None:
        """Forgets all that the journal holds: the run is over here, and what is kept of it is written. The collector
        may take long to come by, and calls of a parked run may take days."""
        self._lose("the run is over")
        self._noted, self._head, self._response, self.past = {}, None, None, None

    @property
    def request(self) -> dict[str, Any]:
        """Gives the request of a run that is not a new one."""
        assert self.past is not None
        if not self.offline:
            return self.past.request
        # The limits in force are those of the settings (`replay`).
        request = {"code": self._other_script or self.past.code, "typecheck": "off"}
        return request | {"grants": {"approve": ["*.*"]}} if self._live_on_miss == "asks" else request

    @property
    def script_name(self) -> str:
        """Gives what places in a recorded script are told by; empty where that is not known, and for another one."""
        return "" if self.past is None or self._other_script is not None else self.past.script_name

    @property
    def plan_body(self) -> bytes | None:
        """Gives the body of the plan that the worker is sent, where an earlier worker was sent the same."""
        return None if self.past is None or self._other_script is not None else self.past.body

    @property
    def is_live(self) -> bool:
        """Says whether calls of another script than the recorded one may be made."""
        return self._live_on_miss != "no"

    def catalog(self, newest: Catalog) -> Catalog:
        """Gives the run's catalog: the newest, or the recorded one where no tool can be called."""
        if self.past is None or not self.offline or self.is_live:
            return newest
        return catalog_of(self.past.catalog)

    def begin(
        self,
        *,
        made_by: str,
        deno: str,
        request: dict[str, Any],
        script_name: str = "",
        body: bytes,
        conventions: bool,
        limits: dict[str, int],
        message_bytes: int,
        catalog: Catalog,
        principal: str = "",
        grants: Sequence[Grant] = (),
        label: str = "",
    ) -> bytes:
        """Notes what a run is made of; gives what its worker is to be sent instead of `body`."""
        events = ""
        self._catalog, self._grants = catalog, grants
        if self.past is None:
            self._head = Recording(
                made_by=made_by,
                deno=deno,
                started_at=time.time(),
                request=request,
                script_name=script_name,
                body=body,
                conventions=conventions,
                limits=limits,
                message_bytes=message_bytes,
                catalog={},
                seed=secrets.token_hex(SEED_BYTES),
                principal=principal,
                label=label,
            )
            seed = self._head.seed
        else:
            seed, events = self.past.seed, "" if self._other_script is not None else self.past.events
        terms: dict[str, Any] = {"seed": seed}
        if self.offline and self.past is not None:
            terms |= {"offline": True, "time": int(self.past.started_at * 1000)}
            if self._other_script is None and (wall_ms := self.past.wall_ms) is not None:
                terms["wall_ms"] = wall_ms
        elif self.past is not None:
            terms["past"] = True
        terms["temporal"] = "Temporal" in (self._other_script or str(request["code"]))
        # A JSON object with members: another one goes before its end. Events need no escapes, and may have megabytes.
        known = json.dumps(terms).encode()[:-1]
        return b"".join(
            [body[:-1], b', "journal": ', known, b', "events": "', events.encode("ascii"), b'"}}']
        )

    def end(self, reason: str, response: Callable[[], dict[str, Any]]) -> None:
        """Notes how the run has ended. `response` gives the run's own response when it is asked for, as JSON data but
        for a large result."""
        self._ended, self._response = reason, response

    def snapshot(self, *, decoded: bool = True) -> Recording:
        """Gives the recording so far, at any moment: all that the script had seen before its last request, console
        entry or end, or some 20 ms before now, and the answers that have come. Raises ValueError when `lost`, or before
        `begin`.

        Args:
            decoded: Whether a large result is decoded, which holds the interpreter; else it stays a `RawJson`.
        """
        if self.lost is not None or self._head is None:
            raise ValueError(self.lost or "the run has not begun")
        head, response = self._head, None if self._response is None else self._response()
        is_past = head is self.past
        if decoded and response is not None and isinstance(result := response["result"], RawJson):
            response["result"] = result.decoded()
        return replace(
            head,
            catalog=head.catalog if is_past else names_of(self._catalog),
            grants=head.grants if is_past else [grant.model_dump(mode="json") for grant in self._grants],
            events="".join([head.events if is_past else "", *self._events]),
            calls=[noted.as_recorded() for _, noted in sorted(self._noted.items())],
            logs=max(self._logs, head.logs),
            response=response,
            ended=self._ended,
        )

    def events_from(self, first: int) -> tuple[str, int]:
        """Gives the events of this run from a place on, and the place behind them; the first is at 0."""
        return "".join(self._events[first:]), len(self._events)

    @property
    def trace(self) -> list[tuple[RecordedCall, str | None]]:
        """Lists the requests of this run, each with its place in the script, where that is known."""
        return [(noted.as_recorded(), noted.place) for noted in self._asked]

    # ---- for the run ---------------------------------------------------------------------------------

    def note(self, events: str) -> tuple[int, int] | None:
        """Takes events that have come with a message; gives the place that stands at their end in a replay.

        Raises:
            ValueError: They are none.
        """
        place = None
        if self.offline:
            events, place = without_place(events)
        if not is_events(events):
            raise ValueError("its events are none")
        if events and self.lost is None:
            self._events.append(events)
            self._hold(len(events))
        return place

    def logged(self) -> bool:
        """Takes note of a console entry; gives whether it has not come before."""
        self._logs += 1
        return self.past is None or self.offline or self._logs > self.past.logs

    def ask(
        self, call_id: int, kind: RequestKind, server: str, tool: str, body: bytes, place: str | None
    ) -> RecordedCall | Diagnostic | None:
        """Takes a request of the script, which stands at this place in it.

        Gives the recorded request, with its answer if it had one; why the run must stop; or None: it is to be made.
        """
        self._calls += kind == "call"
        call = RecordedCall(id=call_id, kind=kind, server=server, tool=tool, input=body)
        if self.offline and kind == "call" and self._calls == self._until:
            self._asked.append(_Noted(call, place=place))
            return Diagnostic(
                severity="info",
                code="REPLAY_STOPPED",
                message=f"Stopped before call {self._calls}, {call.name}, as you asked.",
                hint="Leave --until out to go on to the end.",
                path=place,
            )
        if self.past is not None and self._other_script is not None:
            return self._matching(call, place)
        noted = self._noted.get(call_id)
        if noted is not None:
            return self._same(noted, call, place)
        if self.offline:
            self._asked.append(_Noted(call, place=place))
            return self._beyond(call, place)
        self.replaying = False
        if self.lost is None:
            noted = self._noted[call_id] = _Noted(call)
            self._asked.append(noted)
            self._hold(len(body))
            self._tell(noted)
        return None

    def begun(self, call_id: int, facts: Facts) -> None:
        """Takes the facts of a call that is being made, in which further ones appear."""
        if (noted := self._noted.get(call_id)) is not None:
            noted.facts = facts

    def answered(self, call_id: int, ok: bool, body: bytes) -> None:
        """Takes the answer of a request; another one for the same request counts."""
        noted = self._noted.get(call_id)
        if noted is None or noted.call.answer is body or self.lost is not None:
            return
        call = noted.call
        self._hold(len(body) - len(call.answer))
        call.ok, call.answer = ok, body
        self._tell(noted)

    def live(self) -> Diagnostic | None:
        """Hears that the script has seen all events of the recording. Gives why the run must stop then."""
        self.replaying = False
        if self.past is None or not self.offline or self._other_script is not None:
            return None
        if self.past.ended in BY_ITSELF:
            return None
        if self.past.ended == "finished":
            return diverged("it goes on where the recorded run had ended")
        return _ended(self.past)

    # ---- inside --------------------------------------------------------------------------------------

    def _same(self, noted: _Noted, now: RecordedCall, place: str | None) -> RecordedCall | Diagnostic | None:
        """Holds a request against the recorded one of its id."""
        was = noted.call
        noted.place = place
        self._asked.append(noted)
        where = f"{was.kind} {was.id}"
        if (was.kind, was.server, was.tool) != (now.kind, now.server, now.tool):
            return diverged(f"{where} was {was.name}, and is now {now.kind} {now.name}", place)
        # To compare megabytes takes a fiftieth of the time that their digest takes, on the loop.
        if was.input != now.input and was.input_digest != digest_of(now.input):
            return diverged(f"{where}, {was.name}, has another input than was recorded", place)
        was.input = now.input
        if was.ok is not None:
            return was
        if self.past is None or not self.offline:
            if was.kind == "query" or was.certainty is Certainty.NOT_STARTED or self.may_repeat(was):
                return None
            return was
        if self.past.ended is None and not has_order(self.past.events) and now.id >= self.past.calls[-1].id:
            return _ended(self.past)
        # It had no answer then, and gets none now: the script ends as it ended, or comes to the recording's end.
        return was

    def _matching(self, call: RecordedCall, place: str | None) -> RecordedCall | Diagnostic | None:
        """Finds the answer of the first recorded request that is like this one and has not been used."""
        call.digest = digest_of(call.input)
        noted = _Noted(call, place=place)
        self._asked.append(noted)
        found = self._answers[call.server, call.tool, call.digest]
        if not found and self.is_live:
            self._noted[call.id] = noted
            self.missed.append(call.id)
            return None
        if not found:
            said = f"the recording has no answer for {call.kind} {call.id}, {call.name}, with this input"
            return diverged(said, place)
        was = found.popleft()
        call.ok, call.answer, call.error = was.ok, was.answer, was.error
        call.certainty, call.duration_ms, call.label = was.certainty, was.duration_ms, was.label
        return call

    def _beyond(self, call: RecordedCall, place: str | None) -> Diagnostic:
        if self.past is not None and self.past.ended is None:
            return _ended(self.past)
        return diverged(f"{call.kind} {call.id}, {call.name}, was not made in the recorded run", place)

    def _tell(self, noted: _Noted) -> None:
        if self.on_change is not None:
            self.on_change(noted.as_recorded())

    def _hold(self, size: int) -> None:
        if self.budget is not None:
            try:
                self.budget.take(self._client, size)
            except OverBudget as error:
                self._lose(str(error))
                return
        self.size += size
        if self.size > self.most_bytes:
            self._lose(f"it holds over {self.most_bytes} bytes")

    def _lose(self, why: str) -> None:
        self.lost = why
        self._events.clear()
        self._asked.clear()
        # What is recorded already is answered all the same, and not made again.
        past = () if self.past is None else self.past.calls
        self._noted = {call.id: self._noted[call.id] for call in past if call.id in self._noted}
        self.let_go()


def _ended(past: Recording) -> Diagnostic:
    how = (
        "the run had not ended when it was taken"
        if past.ended is None
        else f"the run ended there ({past.ended})"
    )
    return error_diagnostic(
        "REPLAY_ENDED", f"The recording ends here: {how}.", "Record a whole run to see its end."
    )
