"""Kept_views are what is shown of runs that are written down, in lists and one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, cast

from cellblock.journal import pieces
from cellblock.journal.recording import RecordedCall
from cellblock.journal.rows import Head, Piece, parked_questions, waiting_in
from cellblock.telemetry.board import Data

NO_END: Final = "no end"
"""Names the outcome of a run that goes on, or was lost with its broker."""


def facts_in(kept: Sequence[Piece]) -> Data | None:
    """Returns what was written down for people of a run that has ended; None of one that has not."""
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
    if (facts := facts_in(kept)) is not None:
        return facts
    recording = pieces.recording_in(kept)
    calls = [] if recording is None else [call for call in recording.calls if call.kind == "call"]
    state = head.state if head.state == "parked" else head.outcome or NO_END
    waits, working = list[Data](), list[Data]()
    if head.state == "parked":
        waits = [
            asdict(one) | {"number": one.number, "round": bool(one.round)}
            for one in parked_questions(head, kept)
        ]
        asking = {one["call"] for one in waits}
        calls_at_work = waiting_in(kept)[0].working if head.owner is not None else ()
        working = [asdict(one) for one in calls_at_work if one.call not in asking]
    return {
        **head_data(head),
        "kept": True,
        "client": head.principal,
        "state": state,
        "outcome": state,
        "waitsFor": waits,
        "atWork": working,
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


def _call(call: RecordedCall) -> Data:
    outcome = call.certainty.value if call.ok is None else "ok" if call.ok else "failed"
    step = {"server": call.server, "tool": call.tool, "atMs": 0, "durationMs": 0}
    return {**step, "outcome": outcome, "error": call.error}
