"""Pieces of a recording: what was written on its way is a recording again, as far as it came."""

import contextlib
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.errors import Certainty
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.state import JournalSettings
from cellblock.record import rows as pieces
from cellblock.record.journal import MAX_BYTES
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.record.rows import ADDED_BYTES, Head, Piece
from cellblock.run.hook import digest_of
from support.opened_journals import opened_journals

BEGUN = Recording(
    made_by="1",
    deno="",
    started_at=1.0,
    request={"code": "x"},
    body=b'{"main": "", "modules": {}, "refused": {}}',
    conventions=True,
    message_bytes=4096,
    catalog={"version": 1, "servers": {}, "unavailable": {}, "denied": {}, "ids": {}},
    limits={},
    seed="ab" * 32,
)


def call(number: int, **fields: object) -> RecordedCall:
    data: dict[str, Any] = {"input": b"{}", "digest": digest_of(b"{}"), **fields}
    return RecordedCall(id=number, kind="call", server="s", tool=f"t{number}", **data)


def test_a_recording_grows_by_the_steps_of_its_calls() -> None:
    kept = [*pieces.whole(BEGUN), pieces.request_piece(call(1), "c5"), pieces.request_piece(call(2), "a1")]
    answered = call(1, ok=True, answer=b"1", certainty=Certainty.COMPLETED)
    kept += [pieces.sending_piece(1), pieces.answer_piece(answered, "")]
    kept += [pieces.request_piece(call(3), "t1"), pieces.sending_piece(3)]
    found = pieces.recording_in(kept)
    assert found is not None
    assert (found.events, found.request, found.ended) == ("c5a1t1", {"code": "x"}, None)
    assert [(one.id, one.ok, one.answer, one.certainty) for one in found.calls] == [
        (1, True, b"1", Certainty.COMPLETED),
        (2, None, b"", Certainty.NOT_STARTED),
        (3, None, b"", Certainty.MAY_HAVE_RUN),
    ]
    assert {one.digest for one in found.calls} == {digest_of(b"{}")}


def test_an_answer_tells_how_it_came_about() -> None:
    refused = call(1, ok=False, answer=b"{}", error="denied", certainty=Certainty.NOT_STARTED, duration_ms=7)
    kept = [*pieces.whole(BEGUN), pieces.request_piece(call(1), ""), pieces.answer_piece(refused, "a1")]
    found = pieces.recording_in(kept)
    assert found is not None and found.calls == [refused]


def test_without_steps_it_is_the_recording_itself_and_without_one_there_is_none() -> None:
    assert pieces.recording_in([Piece("facts", b"{}"), *pieces.whole(BEGUN)]) == BEGUN
    assert pieces.recording_in([Piece("facts", b"{}")]) is None


def test_a_step_whose_beginning_was_not_written_tells_nothing() -> None:
    found = pieces.recording_in(
        [*pieces.whole(BEGUN), pieces.sending_piece(4), pieces.answer_piece(call(4, ok=True), "")]
    )
    assert found is not None and found.calls == []


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x81\xa6format\x02"], ids=["empty", "no object", "newer"])
def test_what_is_no_recording_is_said(body: bytes) -> None:
    with pytest.raises(UnreadableRecording):
        pieces.recording_in([Piece("recording", body)])


def test_a_large_result_has_a_piece_of_its_own() -> None:
    response = {"logs": [], "result": RawJson(b'{"a":[1]}'), "diagnostics": []}
    kept = pieces.whole(replace(BEGUN, response=response, ended="finished"))
    assert kept[1:] == [Piece("result", b'{"a":[1]}')]
    found = pieces.recording_in(kept)
    assert found is not None
    assert found.response == {"logs": [], "result": RawJson(b'{"a":[1]}'), "diagnostics": []}
    shown = pieces.recording_in(kept, decoded=True)
    assert shown is not None
    assert shown.response == {"logs": [], "result": {"a": [1]}, "diagnostics": []}


def test_what_a_run_may_hold_is_read_in_a_moment() -> None:
    """The journals' thread reads it, and holds the interpreter for as long: whatever the events are."""
    half = MAX_BYTES // 2
    calls = [call(number, answer=b" " * 2**20, ok=True) for number in range(1, half // 2**20)]
    kept = pieces.whole(replace(BEGUN, events="c1" * (half // 2), calls=calls))
    before = time.thread_time()
    found = pieces.recording_in(kept)
    assert time.thread_time() - before < 0.1
    assert found is not None and len(found.events) == half and len(found.calls) == len(calls)


def test_what_is_large_is_written_apart_and_comes_back() -> None:
    large = {"input": b'"' + b"i" * 70_000 + b'"', "answer": b"[" + b"1," * 40_000 + b"1]"}
    calls = [
        RecordedCall(
            id=1, kind="call", server="s", tool="t", ok=True, answer=b"1", certainty=Certainty.COMPLETED
        ),
        RecordedCall(
            id=2, kind="call", server="s", tool="t", ok=True, certainty=Certainty.COMPLETED, **large
        ),
        RecordedCall(id=4, kind="query", server="", tool="search", input=large["input"]),
    ]
    recording = replace(BEGUN, calls=calls, events="a1")
    kept = pieces.whole(recording)
    assert [piece.kind for piece in kept] == ["recording", "call", "call", "call"]
    assert kept[0].size < 2_000 and all(piece.size == len(piece.body) for piece in kept)
    found = pieces.recording_in(kept)
    assert found == recording
    assert [one.digest for one in found.calls] == [digest_of(one.input) for one in calls]
    # Steps that come behind are its continuation, as behind a small one.
    more = pieces.recording_in([*kept, pieces.answer_piece(replace(calls[2], ok=True, answer=b"[]"), "a4")])
    assert more is not None
    assert (more.events, more.calls[2].answer, more.calls[2].input) == ("a1a4", b"[]", large["input"])


def test_a_large_piece_is_in_memory_only_while_it_is_written(tmp_path: Path) -> None:
    answers = [b'"' + bytes([97 + number]) * 4_000_000 + b'"' for number in range(8)]
    calls = [call(number, ok=True, answer=answer) for number, answer in enumerate(answers, 1)]
    with contextlib.closing(
        opened_journals(tmp_path / "journals", lambda: [bytes(32)], JournalSettings())
    ) as store:
        tracemalloc.start()
        try:
            store.write(
                Head("r", "cli", time.time(), time.time(), "ok"), pieces.whole(replace(BEGUN, calls=calls))
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20_000_000, "more than one answer was copied at a time"
        found = store.read("r")
    assert found is not None and found[0].bytes == sum(len(piece.body) + ADDED_BYTES for piece in found[1])
    recording = pieces.recording_in(found[1])
    assert recording is not None and [one.answer for one in recording.calls] == answers
