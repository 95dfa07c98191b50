"""Parked_views are what is told of runs that were written down, made of their rows and pieces."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cellblock.execution.outcome import run_parked
from cellblock.execution.response import RunResponse, Usage, error_diagnostic
from cellblock.journal.parked import Parked, ParkedQuestion, WorkingCall
from cellblock.journal.recording import UnreadableRecording
from cellblock.journal.rows import Head, Piece, parked_questions, waiting_in
from cellblock.telemetry.keeper import response_in

logger = logging.getLogger("cellblock.journal")


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
        working: Calls that a broker goes on with meanwhile.
    """

    id: str
    principal: str
    began: float
    expires: float | None
    questions: tuple[ParkedQuestion, ...]
    turn: int
    working: tuple[WorkingCall, ...] = ()


def parked_run(head: Head, pieces: list[Piece]) -> ParkedRun:
    """Describes a parked run of its row and pieces. Raises StoreError: It is not parked."""
    return ParkedRun(
        id=head.id,
        principal=head.principal,
        began=head.began,
        expires=head.expires,
        questions=parked_questions(head, pieces),
        turn=head.turn,
        working=waiting_in(pieces)[0].working if head.owner is not None else (),
    )


def kept_response(head: Head, pieces: list[Piece]) -> RunResponse | None:
    """Reads the response of a run that has ended; None where none is written down, or by another release."""
    try:
        response = response_in(pieces)
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


def ended_meanwhile(response: RunResponse) -> RunResponse:
    """Makes the response of a run that somebody has ended while it waited for tools."""
    diagnostic = error_diagnostic(
        "CANCELLED",
        "The run was cancelled while it waited for its tools; their calls may have run.",
        "Check whether they took effect, and run the script again if it is still wanted.",
    )
    return response.model_copy(update={"diagnostics": [diagnostic], "parked": False})
