"""Pieces makes what the store keeps of a recording, whole or as it grows, and a recording of that again.

A run that is written down on its way has one piece from its beginning, and one for each step of a call: when it is
asked for, when it is made, when it has its answer. Each has the events that the script had seen by then.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import msgpack

from cellblock.base.errors import Certainty
from cellblock.base.json import is_object
from cellblock.base.offload.raw import RawJson
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.record.rows import AnyPiece, Head, LatePiece, Piece
from cellblock.run.hook import Facts, Parked
from cellblock.tools.catalog.modules import IMPORT_SPECIFIER, SERVERS_PREFIX

LARGE_BYTES: Final = 64 * 1024
"""Sets from which size on an input or an answer has a piece of its own in a recording that is written whole."""


def whole(recording: Recording) -> list[AnyPiece]:
    """Returns the pieces of a recording: each large input and answer has one of its own, and so has a large result,
    which is not decoded."""
    rest, large = recording, list[AnyPiece]()
    response = recording.response
    if response is not None and isinstance(result := response["result"], RawJson):
        rest = replace(rest, response=response | {"result": None})
        large.append(Piece("result", result.raw))
    calls: list[RecordedCall] = []
    for call in recording.calls:
        fields = {
            name: body for name in ("input", "answer") if len(body := getattr(call, name)) > LARGE_BYTES
        }
        large += [_late(call.id, name, body) for name, body in fields.items()]
        calls.append(replace(call, digest=call.input_digest, **dict.fromkeys(fields, b"")))
    return [Piece("recording", replace(rest, calls=calls).pack()), *large]


def request_piece(call: RecordedCall, events: str) -> Piece:
    """Returns the piece of a call that a script asks for; it is not made yet."""
    step = {"kind": call.kind, "server": call.server, "tool": call.tool, "input": call.input}
    return _step(call.id, events, **step, digest=call.input_digest, certainty=Certainty.NOT_STARTED.value)


def events_piece(events: str) -> Piece:
    """Returns the piece of events that came with no call."""
    return _step(0, events)


def sending_piece(call_id: int) -> Piece:
    """Returns the piece that says that a call is being made."""
    return _step(call_id, "", certainty=Certainty.MAY_HAVE_RUN.value)


def answer_piece(call: RecordedCall, events: str) -> Piece:
    """Returns the piece of a call that has its answer."""
    return _step(call.id, events, ok=call.ok, answer=call.answer, **_known(call))


def late_answer_piece(call_id: int, facts: Facts, body: bytes, *, ok: bool) -> Piece:
    """Returns the piece of a call whose answer came when its run was parked."""
    return _step(call_id, "", ok=ok, answer=body, **_known(facts))


def recording_in(pieces: Sequence[AnyPiece], *, decoded: bool = False) -> Recording | None:
    """Returns the recording in a run's pieces, as far as it was written; None where there is none. Of a run that holds
    32 MiB this takes 20 ms.

    Args:
        pieces: What was written of the run.
        decoded: Whether a large result is decoded, which holds the interpreter; else it stays a `RawJson`.

    Raises:
        UnreadableRecording: Another release has made it.
    """
    found = next((piece for piece in pieces if piece.kind == "recording"), None)
    if found is None:
        return None
    recording = Recording.unpack(found.body)
    result = next((piece.body for piece in pieces if piece.kind == "result"), None)
    if result is not None and recording.response is not None:
        recording.response["result"] = RawJson(result).decoded() if decoded else RawJson(result)
    steps = [_read(piece.body) for piece in pieces if piece.kind == "call"]
    if not steps:
        return recording
    calls = {call.id: call for call in recording.calls}
    grown: dict[int, dict[str, Any]] = {}
    for step in steps:
        grown.setdefault(step["id"], {}).update(step["fields"])
    try:
        for call_id, fields in grown.items():
            if "certainty" in fields:
                fields["certainty"] = Certainty(fields["certainty"])
            if call_id in calls:
                calls[call_id] = replace(calls[call_id], **fields)
            elif "tool" in fields:
                # One whose first step was not written, for want of room, tells nothing.
                calls[call_id] = RecordedCall(id=call_id, **fields)
    except (TypeError, ValueError) as error:
        raise UnreadableRecording("The recording is damaged.", hint="Delete the run.") from error
    events = "".join([recording.events, *(step["events"] for step in steps)])
    return replace(recording, calls=[call for _, call in sorted(calls.items())], events=events)


def needed_in(read: tuple[Head, list[Piece]] | None, parked: Parked | None) -> set[tuple[str, str]]:
    """Lists what a run needs to go on, as far as that is known: servers that its script imports, an empty tool for
    each, and tools of calls that were to be made. A script that computes its imports may do without any.

    Args:
        read: The run with the piece of its recording.
        parked: What it waits for; None where it was not parked.
    """
    needed: set[tuple[str, str]] = set()
    if parked is not None:
        needed = {(one.server, one.tool) for one in parked.questions}
    recording = None
    with contextlib.suppress(UnreadableRecording):
        # Whoever takes it is told.
        recording = None if read is None else recording_in(read[1])
    modules: dict[str, str] = {} if recording is None else json.loads(recording.body)["modules"]
    if IMPORT_SPECIFIER not in modules:
        found = (name.removeprefix(SERVERS_PREFIX) for name in modules if name.startswith(SERVERS_PREFIX))
        needed |= {(server, "") for server in found}
    return needed


# ---- inside ------------------------------------------------------------------------------------------


def _known(facts: Facts) -> dict[str, Any]:
    return {"error": facts.error, "certainty": facts.certainty.value, "duration_ms": facts.duration_ms}


def _step(call_id: int, events: str, **fields: Any) -> Piece:
    step = {"id": call_id, "events": events, "fields": fields}
    return Piece("call", cast("bytes", msgpack.packb(step)))  # pyright: ignore[reportUnknownMemberType]


def _late(call_id: int, name: str, body: bytes) -> LatePiece:
    """Returns the piece of one large field of a call."""
    # The step of a body without bytes has one byte for its kind, and one for its length, which is four then.
    size = len(_step(call_id, "", **{name: b""}).body) + len(body) + 3
    return LatePiece("call", size, lambda: _step(call_id, "", **{name: body}).body)


def _read(body: bytes) -> dict[str, Any]:
    found = cast("object", msgpack.unpackb(body))  # pyright: ignore[reportUnknownMemberType]
    if not is_object(found):
        raise UnreadableRecording("The recording is damaged.", hint="Delete the run.")
    return found
