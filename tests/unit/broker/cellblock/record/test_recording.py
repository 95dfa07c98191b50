"""Recordings and what is in them: events as text, and what is known of a parked run. What was written in pieces on its
way is a recording again, as far as it came.
"""

import base64
import contextlib
import json
import math
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.errors import Certainty
from cellblock.base.questions import ParkedQuestion
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.state import JournalSettings
from cellblock.record import recording as recordings, rows
from cellblock.record.journal import MAX_BYTES
from cellblock.record.recording import (
    RecordedCall,
    Recording,
    UnreadableRecording,
    catalog_of,
    names_of,
    read,
    redacted,
    write,
)
from cellblock.record.rows import ADDED_BYTES, Head, Piece
from cellblock.run.hook import Parked, digest_of, has_order, is_events, without_place
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld
from support.opened_journals import opened_journals

SECRET = "hunter2-hunter2"
FEW_VALUES = 100_000
ODD = b'{"a": "\\ud800", "b": 1.0, "a": 2}'


def module(source: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"


def sample(**changes: Any) -> Recording:
    calls = [
        RecordedCall(
            id=1, kind="call", server="s", tool="t", input=ODD, digest=digest_of(ODD), ok=True, answer=b"1"
        ),
        RecordedCall(
            id=3, kind="query", server="", tool="listServers", input=b"\xff", digest=digest_of(b"\xff")
        ),
        RecordedCall(
            id=4,
            kind="call",
            server="s",
            tool="t",
            ok=False,
            error="failed",
            certainty=Certainty.MAY_HAVE_RUN,
        ),
    ]
    body = json.dumps(
        {"main": module("1"), "modules": {"@codemode/servers/token": module("2")}, "refused": {}}
    )
    made: dict[str, Any] = {
        "made_by": "0.1.0",
        "deno": "2.9.8",
        "started_at": 1.5,
        "request": {"code": "1"},
        "body": body.encode(),
        "conventions": True,
        "limits": {"timeout_ms": 1},
        "message_bytes": 1,
        "catalog": names_of(Catalog()),
        "seed": "ab" * 32,
        "events": "c5a1",
        "calls": calls,
        "response": {"logs": [], "result": None, "diagnostics": []},
        "ended": "finished",
    }
    return Recording(**made | changes)


def hide(text: str) -> str:
    return text.replace(SECRET, "[redacted]")


def test_a_recording_survives_its_bytes_and_its_file() -> None:
    recording = sample()
    assert Recording.unpack(recording.pack()) == recording
    assert read(write(recording)) == recording
    assert write(recording).count("\n") == 5


def test_grants_and_name_are_recorded_and_a_file_without_them_is_read() -> None:
    recording = sample(principal="token:ci", grants=[{"tools": ["s.*"]}], script_name="a.js")
    assert read(write(recording)) == recording
    added = ("principal", "grants", "script_name")
    head, *rest = write(sample()).splitlines()
    old = {name: value for name, value in json.loads(head).items() if name not in added}
    assert read("\n".join([json.dumps(old), *rest])) == sample()


def test_without_secrets_nothing_changes() -> None:
    assert redacted(sample(), hide, hide) == (sample(), [])


def test_secrets_are_taken_out_wherever_they_stand() -> None:
    answer = json.dumps({"password": "short", "n": 1}).encode()
    recording = sample(
        calls=[call(1, input=f'["{SECRET}"]'.encode(), digest="d", answer=answer, ok=True)],
        request={"code": f"use('{SECRET}')"},
        body=json.dumps({"main": module(f"use('{SECRET}')"), "modules": {}, "refused": {}}).encode(),
        response={"result": {"deep": [SECRET]}},
    )
    found, changed = redacted(recording, hide, hide)
    assert changed == ["call 1: input", "call 1: answer", "script", "modules", "response"]
    assert not found.exact
    assert found.calls[0].digest == digest_of(found.calls[0].input)
    text = write(found)
    secrets = (SECRET, "short", base64.b64encode(f"use('{SECRET}')".encode()).decode())
    assert not any(secret in text for secret in secrets)
    assert json.loads(found.calls[0].answer) == {"password": "[redacted]", "n": 1}


def test_secrets_that_are_names_are_taken_out() -> None:
    answer = json.dumps({"by": {SECRET: 1}}).encode()
    found, changed = redacted(sample(calls=[call(1, answer=answer, ok=True)]), hide, hide)
    assert changed == ["call 1: answer"]
    assert SECRET not in write(found)


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\r\n"])
def test_a_file_is_cut_at_the_ends_of_its_lines_alone(mark: str) -> None:
    recording = sample(request={"code": f"'{mark}'"})
    raw = "".join(
        f"{json.dumps(json.loads(line), ensure_ascii=False)}\n" for line in write(recording).splitlines()
    )
    assert read(raw) == recording


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no recording"),
        ("{}", "no recording"),
        ("[1]", "no recording"),
        ("{", "no recording"),
        ('{"cellrun": 2, "made_by": "9.9"}', "has format 2 (Cellblock 9.9); this release reads format 1"),
        ('{"cellrun": 1}', "damaged"),
        (write(sample()) + "[1]\n", "damaged"),
        (write(sample()) + '{"id": 4, "kind": "call"}\n', "damaged"),
        (write(sample()).replace('"c5a1"', '"nonsense"'), "its events are none"),
        (write(sample()).replace('"ab', '"xy', 1), "damaged"),
        (write(sample(seed="abcd")), "its seed has not 64 hex digits"),
        (write(sample(catalog={})), "its catalog is none"),
        (write(sample(catalog=names_of(Catalog()) | {"servers": {"s": {"name": 1}}})), "its catalog is none"),
        (write(sample(body=b"null")), "its plan is none"),
        (write(sample(body=b'{"main": "", "modules": {"a": 1}, "refused": {}}')), "its plan is none"),
        (write(sample(request={"code": 1})), "there is no script"),
        (write(sample(started_at=math.inf)), "damaged"),
        (write(sample(response={"diagnostics": 5})), "its diagnostics are none"),
        (write(sample(response={"diagnostics": [5]})), "its diagnostics are none"),
        (write(sample()) + '{"response": ' + "[" * 1_000_000, "no recording"),
        (write(sample()) + '["' + '\\"' * 1_000_000, "no recording"),
    ],
    ids=range(21),
)
def test_what_is_no_recording_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnreadableRecording, match="recording") as caught:
        read(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["{}", '"x"', "1.5", "[{}]"])
def test_more_values_than_a_run_has_are_refused_unread(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded they would take 30 to 120 times the bytes that they have in the file."""
    monkeypatch.setattr(recordings, "MOST_VALUES", FEW_VALUES)
    text = f'{write(sample())}{{"response": {{"result": [{",".join([value] * (FEW_VALUES + 1))}]}}}}\n'
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableRecording, match="values"):
            read(text)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()


def test_what_is_in_texts_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_VALUES", FEW_VALUES)
    recording = sample(calls=[call(1, input=b'["a", ' * FEW_VALUES)])
    assert read(write(recording)) == recording


def test_a_catalog_keeps_its_names() -> None:
    server = ServerEntry(
        "files",
        "Files",
        "my files",
        tools=(ToolEntry("read-file", "read_file", "long"),),
        withheld=(Withheld("x", "x", "why", "hint"),),
    )
    catalog = Catalog(7, {"files": server}, {"down": "why"}, {"denied": "hint"}, {"my files": "files"})
    named = replace(server, tools=(ToolEntry("read-file", "read_file"),))
    expected = replace(catalog, servers={"files": named})
    assert catalog_of(json.loads(json.dumps(names_of(catalog)))) == expected


@pytest.mark.parametrize("text", ["", "a1", "c1795524565651*3c0t2a4i0e1", "c5*2"])
def test_what_a_sandbox_writes_are_events(text: str) -> None:
    assert is_events(text)


@pytest.mark.parametrize(
    "text", ["x1", "a", "1", "a1 ", "a1\n", "c1*", "a-1", "@1:2", "a12345678901", "\u0661", "a\u0661"]
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_events(text)


def test_the_clock_is_no_order() -> None:
    assert [has_order(events) for events in ("c1*2c3", "c1*2t3")] == [False, True]


@pytest.mark.parametrize(
    ("events", "expected"),
    [("a1@12:3", ("a1", (12, 3))), ("a1", ("a1", None)), ("@1:2a1", ("@1:2a1", None))],
)
def test_the_place_of_a_call_is_taken_from_the_end(events: str, expected: Any) -> None:
    assert without_place(events) == expected


PARKED = Parked(
    questions=(ParkedQuestion(call=1, server="s", tool="t", destructive=True, input="{}", bytes=2),),
    allowed=(3,),
    asked=1,
    waited_ms=7,
    client="c",
    losses=("The run's process was lost.",),
)


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (PARKED.pack(), PARKED),
        (
            json.dumps(
                {
                    **json.loads(PARKED.pack()),
                    "mood": "good",
                    "working": [{"call": 2, "server": "s", "tool": "u"}],
                }
            ).encode(),
            PARKED,
        ),
        (b'{"questions": []}', Parked(questions=())),
    ],
    ids=["as it was", "of a later release", "of an earlier one"],
)
def test_what_is_known_of_a_parked_run_is_read(packed: bytes, expected: Parked) -> None:
    assert Parked.unpack(packed) == expected


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
    data: dict[str, Any] = {"tool": f"t{number}", "input": b"{}", **fields}
    return RecordedCall(id=number, kind="call", server="s", **{"digest": digest_of(data["input"]), **data})


def test_a_recording_grows_by_the_steps_of_its_calls() -> None:
    kept = [*rows.whole(BEGUN), rows.request_piece(call(1), "c5"), rows.request_piece(call(2), "a1")]
    answered = call(1, ok=True, answer=b"1", certainty=Certainty.COMPLETED)
    kept += [rows.sending_piece(1), rows.answer_piece(answered, "")]
    kept += [rows.request_piece(call(3), "t1"), rows.sending_piece(3)]
    calls = [
        answered,
        call(2, certainty=Certainty.NOT_STARTED),
        call(3, certainty=Certainty.MAY_HAVE_RUN),
    ]
    assert rows.recording_in(kept) == replace(BEGUN, events="c5a1t1", calls=calls)


REFUSED = call(1, ok=False, answer=b"{}", error="denied", certainty=Certainty.NOT_STARTED, duration_ms=7)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (
            [*rows.whole(BEGUN), rows.request_piece(call(1), ""), rows.answer_piece(REFUSED, "a1")],
            replace(BEGUN, events="a1", calls=[REFUSED]),
        ),
        ([Piece("facts", b"{}"), *rows.whole(BEGUN)], BEGUN),
        ([Piece("facts", b"{}")], None),
        ([*rows.whole(BEGUN), rows.sending_piece(4), rows.answer_piece(call(4, ok=True), "")], BEGUN),
    ],
    ids=[
        "an answer tells how it came about",
        "without steps it is the recording itself",
        "without a recording there is none",
        "a step whose beginning was not written tells nothing",
    ],
)
def test_the_recording_in_pieces(kept: list[Piece], expected: Recording | None) -> None:
    assert rows.recording_in(kept) == expected


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\xc0", b"\x91\x01", b"\x81\xa6format\x02"],
    ids=["empty", "no MessagePack", "null", "a list", "newer"],
)
def test_what_is_no_recording_is_said(body: bytes) -> None:
    with pytest.raises(UnreadableRecording):
        rows.recording_in([Piece("recording", body)])


def test_a_large_result_has_a_piece_of_its_own() -> None:
    response = {"logs": [], "result": RawJson(b'{"a":[1]}'), "diagnostics": []}
    kept = rows.whole(replace(BEGUN, response=response, ended="finished"))
    assert kept[1:] == [Piece("result", b'{"a":[1]}')]
    assert rows.recording_in(kept).response == response
    assert rows.recording_in(kept, decoded=True).response == {**response, "result": {"a": [1]}}


def test_what_a_run_may_hold_is_read_in_a_moment() -> None:
    """The journals' thread reads it, and holds the interpreter for as long: whatever the events are."""
    half = MAX_BYTES // 2
    calls = [call(number, answer=b" " * 2**20, ok=True) for number in range(1, half // 2**20)]
    kept = rows.whole(replace(BEGUN, events="c1" * (half // 2), calls=calls))
    before = time.thread_time()
    found = rows.recording_in(kept)
    assert time.thread_time() - before < 0.1
    assert (len(found.events), len(found.calls)) == (half, len(calls))


def test_what_is_large_is_written_apart_and_comes_back() -> None:
    large = {"input": b'"' + b"i" * 70_000 + b'"', "answer": b"[" + b"1," * 40_000 + b"1]"}
    calls = [
        call(1, ok=True, answer=b"1", certainty=Certainty.COMPLETED),
        call(2, ok=True, certainty=Certainty.COMPLETED, **large),
        RecordedCall(id=4, kind="query", server="", tool="search", input=large["input"]),
    ]
    kept = rows.whole(replace(BEGUN, calls=calls, events="a1"))
    assert [piece.kind for piece in kept] == ["recording", "call", "call", "call"]
    assert kept[0].size < 2_000 and all(piece.size == len(piece.body) for piece in kept)
    expected = [replace(one, digest=digest_of(one.input)) for one in calls]
    assert rows.recording_in(kept) == replace(BEGUN, calls=expected, events="a1")
    # Steps that come behind are its continuation, as behind a small one.
    more = rows.recording_in([*kept, rows.answer_piece(replace(calls[2], ok=True, answer=b"[]"), "a4")])
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
                Head("r", "cli", time.time(), time.time(), "ok"), rows.whole(replace(BEGUN, calls=calls))
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20_000_000, "more than one answer was copied at a time"
        found, pieces = store.read("r")
    assert found.bytes == sum(len(piece.body) + ADDED_BYTES for piece in pieces)
    assert [one.answer for one in rows.recording_in(pieces).calls] == answers
