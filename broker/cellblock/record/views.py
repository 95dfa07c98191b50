"""Views tell of runs that were written down: to people, programs and front-ends, of their rows and pieces."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, cast

from cellblock.base.questions import ParkedQuestion, QuestionId
from cellblock.record.recording import RecordedCall, UnreadableRecording
from cellblock.record.rows import Head, Piece, open_questions, recording_in, waiting_in
from cellblock.run.board import Data
from cellblock.run.hook import Parked
from cellblock.run.outcome import run_parked
from cellblock.run.response import RunResponse, Usage

logger = logging.getLogger("cellblock.journal")

NO_END: Final = "no end"
"""Names the outcome of a run that goes on, or was lost with its broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRun:
    """Describes a run that waits for a person.

    Args:
        id: The run.
        principal: Whom it is for.
        began: When, in Unix time.
        expires: Until when it waits, in Unix time.
        questions: What is not answered yet.
        turn: Counts the rounds in which it was parked.
        config: The configuration file with which it goes on; empty where it has none.
    """

    id: str
    principal: str
    began: float
    expires: float | None
    questions: tuple[ParkedQuestion, ...]
    turn: int
    config: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedStatus:
    """Says where a run is that was parked, or left by its client. Times are Unix time in seconds.

    Args:
        id: The run.
        began: When it began.
        changed: When it was last written down.
        until: Until when it is kept at least.
        state: Whether it waits for a person, goes on, or is over.
        outcome: How it ended; None until then.
        questions: What is asked and not answered, of one that waits.
        response: Of one that is over; None where none is written down.
    """

    id: str
    began: float
    changed: float
    until: float
    state: Literal["parked", "running", "ended"]
    outcome: str | None = None
    questions: tuple[ParkedQuestion, ...] = ()
    response: RunResponse | None = None


def parked_run(head: Head, kept: list[Piece]) -> ParkedRun:
    """Describes a parked run of its row and pieces. Raises StoreError: It is not parked."""
    return described(head, *waiting_in(kept))


def waiting_run(head: Head, kept: list[Piece]) -> ParkedRun | None:
    """Describes a run of its row and pieces; None where it waits for nobody."""
    return parked_run(head, kept) if head.state == "parked" else None


def described(head: Head, parked: Parked, known: Collection[QuestionId]) -> ParkedRun:
    """Describes a parked run of what it waits for, and of the questions that are known to be answered."""
    return ParkedRun(
        id=head.id,
        principal=head.principal,
        began=head.began,
        expires=head.expires,
        questions=open_questions(head, parked, known),
        turn=head.turn,
        config=parked.config,
    )


def kept_response(head: Head, kept: list[Piece]) -> RunResponse | None:
    """Reads the response of a run that has ended; None where none is written down, or by another release."""
    try:
        response = response_in(kept)
    except UnreadableRecording as error:
        logger.info("the response of run %s cannot be read: %s", head.id, error)
        return None
    if response is None:
        return None
    return response.model_copy(update={"usage": response.usage.model_copy(update={"run_id": head.id})})


def parked_response(run_id: str, questions: tuple[ParkedQuestion, ...]) -> RunResponse:
    """Makes the response of a run that waits, and has not run since its last one."""
    diagnostic = run_parked(run_id, Parked(questions=questions))
    return RunResponse(logs=[], diagnostics=[diagnostic], usage=Usage(run_id=run_id), parked=True)


def response_in(kept: Sequence[Piece]) -> RunResponse | None:
    """Returns the response of a run that has ended; None where none is written down.

    Raises:
        UnreadableRecording: Another release has made it.
    """
    recording = recording_in(kept)
    if recording is None or recording.response is None:
        return None
    # The recorded one is what a replay comes to; what was said beside it, such as what became of its processes, is not.
    told = {name: facts[name] for name in ("diagnostics", "usage")} if (facts := _facts_in(kept)) else {}
    return RunResponse.model_validate(recording.response | told)


def _facts_in(kept: Sequence[Piece]) -> Data | None:
    found = next((piece.body for piece in kept if piece.kind == "facts"), None)
    return None if found is None else cast("Data", json.loads(found))


def head_data(head: Head) -> Data:
    """Returns what is shown of a kept run in a list."""
    return {
        "id": head.id,
        "principal": head.principal,
        "acceptedAt": head.began,
        "endedAt": head.ended,
        "outcome": head.outcome,
        "calls": head.calls,
        "bytes": head.bytes,
        "state": head.state,
        "expiresAt": head.expires,
    }


def shown(head: Head, kept: list[Piece]) -> Data:
    """Returns a kept run as the dashboard shows it; of one without an end, what is known of it.

    Raises:
        UnreadableRecording: Another release has made it.
    """
    if (facts := _facts_in(kept)) is not None:
        return facts
    recording = recording_in(kept)
    calls = [] if recording is None else [call for call in recording.calls if call.kind == "call"]
    state = head.state if head.state == "parked" else head.outcome or NO_END
    waits, client = list[Data](), head.principal
    if head.state == "parked":
        parked, answers = waiting_in(kept)
        client = parked.client or client
        waits = [question_data(one) for one in open_questions(head, parked, answers)]
    return {
        **head_data(head),
        "kept": True,
        "client": client,
        "state": state,
        "outcome": state,
        "waitsFor": waits,
        "calls": len(calls),
        "elapsedMs": 0,
        "scriptChars": 0 if recording is None else len(recording.code),
        "script": "" if recording is None else recording.code,
        "workerEnd": None,
        "usage": None,
        "steps": {},
        "timeline": [_call(call) for call in calls],
        "diagnostics": [],
        "logs": [],
        # A replay says them again.
        "logsLeftOut": 0 if recording is None else recording.logs,
    }


def question_data(question: ParkedQuestion) -> Data:
    return asdict(question) | {"number": str(question.id), "round": bool(question.round)}


def _call(call: RecordedCall) -> Data:
    outcome = call.certainty.value if call.ok is None else "ok" if call.ok else "failed"
    step = {"server": call.server, "tool": call.tool, "atMs": 0, "durationMs": 0}
    return {**step, "outcome": outcome, "error": call.error}
