"""The books: what every run was told, against what the upstream servers recorded. Pure; knows no process."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from soak.load import Planned

NEVER_SENT: Final = "not called"
"""How a trace entry begins whose call had not left the broker when its run ended."""

NO_PROGRAM: Final = ["no program"]
GIVEN_TO_THE_ATTACKER: Final = "given to a native worker"

_COUNTS: Final = re.compile(
    r"Tool calls: (\d+) completed, (\d+) in flight \(may have run\), (\d+) not started"
)

SHOWN_MOST: Final = 20
"""Breaches kept in full for each invariant; all are counted."""


@dataclass
class Record:
    """One run and how it has ended; `sent` is by the monotonic clock."""

    number: int
    kind: str
    sent: float
    cancelled: bool
    ending: str = "no answer"


@dataclass
class _Told:
    """What one answer says of its run's calls, in the order in which they were made."""

    completed: set[int] = field(default_factory=set[int])
    not_started: set[int] = field(default_factory=set[int])
    made: int = 0
    counts: tuple[int, ...] | None = None


class Books:
    """Collects answers and breaches; `settle` compares them with the ledgers."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.wrong: list[str] = []
        self.broken: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        """Counts what is in the ledgers, and what runs were told is completed, not started or uncertain."""
        self._told: dict[int, _Told] = {}
        self._most: dict[int, int] = {}

    def breach(self, invariant: str, *found: str) -> None:
        """Notes what breaks an invariant, if anything does."""
        assert invariant in INVARIANTS
        for what in found:
            self.broken[invariant] += 1
            if self.broken[invariant] <= SHOWN_MOST:
                self.wrong.append(f"{invariant}: {what}")

    def sent(self, number: int, planned: Planned, now: float) -> Record:
        """Opens the record of a run."""
        record = Record(number, planned.kind, now, cancelled=planned.cancel_after is not None)
        self.records.append(record)
        self._most[number] = planned.calls_most
        return record

    def answered(self, record: Record, planned: Planned, message: Mapping[str, Any]) -> None:
        """Enters the answer of a run, as JSON-RPC has it."""
        record.ending = "well"
        name = f"run {record.number} ({record.kind})"
        result = cast("dict[str, Any]", message.get("result") or {})
        if planned.malformed:
            if "error" not in message and not result.get("isError"):
                self.breach("right ending", f"{name} was accepted")
            return
        response = cast("dict[str, Any]", result.get("structuredContent") or {})
        if not {"logs", "result", "diagnostics"} <= set(response):
            if not record.cancelled:
                self.breach("structured response", f"{name}: {str(message)[:500]}")
            return
        if response["result"] == NO_PROGRAM:
            # The run's worker is the attacker, which has answered a script that was not meant for it: no lie of
            # Cellblock's, and no figure of an honest run's.
            record.kind = GIVEN_TO_THE_ATTACKER
            return
        errors: list[Any] = [found for found in response["diagnostics"] if found["severity"] == "error"]
        if errors:
            record.ending = errors[0]["code"]
        self._judge_ending(name, planned, response, errors)
        if planned.counted:
            self._told[record.number] = _told_by(response, errors)

    def settle(
        self, answers: Mapping[object, int], requests: Mapping[int, Record], ledger: Iterable[tuple[int, int]]
    ) -> None:
        """Compares, after everything has ended.

        Args:
            answers: How often each request id was answered.
            requests: The record of each request id.
            ledger: (run, call) of every call that an upstream has recorded.
        """
        for request, record in requests.items():
            count = answers.get(request, 0)
            if count > 1 or (count == 0 and not record.cancelled):
                self.breach(
                    "one response for each run", f"run {record.number} ({record.kind}): {count} answers"
                )
        unasked = [f"an answer to {one!r}, which was never asked" for one in answers if one not in requests]
        self.breach("one response for each run", *unasked)
        recorded = Counter(ledger)
        self.calls["in the ledgers"] = recorded.total()
        by_run: defaultdict[int, set[int]] = defaultdict(set)
        for (run, call), count in recorded.items():
            by_run[run].add(call)
            if count > 1:
                self.breach("each call at most once", f"call {run}/{call}: {count} times")
        for run, calls in by_run.items():
            if len(calls) > self._most.get(run, 0):
                self.breach("maxToolCalls", f"run {run}: {len(calls)} calls, at most {self._most.get(run)}")
        for run, told in self._told.items():
            self._settle_run(run, told, by_run.get(run, set()))

    # ---- inside --------------------------------------------------------------------------------------

    def _judge_ending(self, name: str, planned: Planned, response: Any, errors: list[Any]) -> None:
        if "*" in planned.right:
            return
        if wrong := [found for found in errors if found["code"] not in planned.right]:
            self.breach("right ending", f"{name}: {str(wrong)[:500]}")
        if not errors and planned.must_fail:
            self.breach("right ending", f"{name} ended well: {str(response)[:500]}")
        if not errors and planned.result is not None and not planned.result(response["result"]):
            self.breach("right result", f"{name}: {str(response)[:500]}")

    def _settle_run(self, run: int, told: _Told, recorded: set[int]) -> None:
        self.calls["told completed"] += len(told.completed)
        self.calls["told not started"] += len(told.not_started)
        self.calls["told uncertain"] += told.made - len(told.completed | told.not_started)
        unmade = [f"call {run}/{call} is not in a ledger" for call in told.completed - recorded]
        self.breach("told completed: once", *unmade)
        made = [f"call {run}/{call} is in a ledger" for call in told.not_started & recorded]
        self.breach("told not started: never", *made)
        if unsaid := {call for call in recorded if call >= told.made}:
            self.breach("every call is in its trace", f"run {run}: {told.made} told, recorded also {unsaid}")
        if told.counts is not None:
            completed, in_flight, not_started = told.counts
            is_whole = completed + in_flight + not_started == told.made
            if not (is_whole and completed <= len(recorded) <= completed + in_flight):
                self.breach(
                    "counts of the diagnostic",
                    f"run {run}: {told.counts} of {told.made} told, {len(recorded)} recorded",
                )


def _told_by(response: Any, errors: list[Any]) -> _Told:
    trace = response.get("toolTrace", [])
    told = _Told(made=len(trace))
    said: list[Any] = [
        *(response["result"] if isinstance(response["result"], list) else []),
        *((call, "completed") for call, entry in enumerate(trace) if entry["ok"]),
        *(
            (call, "not_started")
            for call, entry in enumerate(trace)
            if not entry["ok"] and entry["error"].startswith(NEVER_SENT)
        ),
    ]
    told.completed = {call for call, word in said if word == "completed"}
    told.not_started = {call for call, word in said if word == "not_started"}
    if errors and (found := _COUNTS.search(errors[0]["message"])):
        told.counts = tuple(map(int, found.groups()))
    return told


INVARIANTS: Final = {
    "one response for each run": "every request has exactly one answer; one that was cancelled, at most one",
    "structured response": "every answer is a whole response of the specification",
    "right ending": "each kind of run ends as it may, or says that a part of Cellblock was lost",
    "right result": "a run without an error has the right result, and sees nothing of another run",
    "each call at most once": "no call id is twice in the upstreams' ledgers",
    "told completed: once": "a call that a run was told is completed is in a ledger",
    "told not started: never": "a call that a run was told was never sent is in no ledger",
    "every call is in its trace": "no call is in a ledger that its run's response does not tell of",
    "counts of the diagnostic": "completed + in flight + not started are all calls; the ledgers agree",
    "maxToolCalls": "no run has more calls in the ledgers than it was given",
    "no leaked process": "after the load and after the end, no process is left that should not be",
    "no leaked descriptor": "broker and host have no more descriptors of any kind than at rest before the load",
    "no leaked file": "nothing in TMPDIR, HOME and the working directory, and no socket, after the end",
    "memory does not grow": "resident memory of broker and host does not rise steadily, and stays under 400 MiB",
    "the loop computes briefly": "the broker's loop never computes for over 100 ms before it looks at what is due",
    "clean logs": "no traceback in the logs of broker and host, nothing on stdout that is no message",
    "neighbours are served": "a quiet client's trivial runs end well, but for those whose worker or host was killed",
    "hostile requests are refused": "what is no request, or has no right to be one, is answered with 4xx or hung up on",
    "runs outlive their daemon": "beside it another daemon is killed at random: each run that waits for people has its "
    "one end, its calls are made once, as it and its client were told, and nothing is left",
    "alive to the end": "the broker never dies, exits with 0 when its client leaves, and hosts come back",
}
"""Everything that is checked, by name."""
