"""Recordings and what is in them: events as text, and what is known of a parked run."""

import base64
import json
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from cellblock.base.errors import Certainty
from cellblock.base.questions import ParkedQuestion
from cellblock.record import recording as recordings
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
from cellblock.run.hook import Parked, digest_of, has_order, is_events, pieces, without_place
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld

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
    recording = sample()
    found, changed = redacted(recording, hide, hide)
    assert found == recording
    assert changed == []


def test_secrets_are_taken_out_wherever_they_stand() -> None:
    call = RecordedCall(id=1, kind="call", server="s", tool="t", input=f'["{SECRET}"]'.encode(), digest="d")
    call = replace(call, answer=json.dumps({"password": "short", "n": 1}).encode(), ok=True)
    recording = sample(
        calls=[call],
        request={"code": f"use('{SECRET}')"},
        body=json.dumps({"main": module(f"use('{SECRET}')"), "modules": {}, "refused": {}}).encode(),
        response={"result": {"deep": [SECRET]}},
    )
    found, changed = redacted(recording, hide, hide)
    assert changed == ["call 1: input", "call 1: answer", "script", "modules", "response"]
    assert not found.exact
    assert found.calls[0].digest == digest_of(found.calls[0].input)
    text = write(found)
    assert SECRET not in text
    assert "short" not in text
    assert base64.b64encode(f"use('{SECRET}')".encode()).decode() not in text
    assert json.loads(found.calls[0].answer) == {"password": "[redacted]", "n": 1}


def test_secrets_that_are_names_are_taken_out() -> None:
    answer = json.dumps({"by": {SECRET: 1}}).encode()
    call = RecordedCall(id=1, kind="call", server="s", tool="t", digest="d", answer=answer, ok=True)
    found, changed = redacted(sample(calls=[call]), hide, hide)
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
    text = b'["a", ' * FEW_VALUES
    recording = sample(
        calls=[RecordedCall(id=1, kind="call", server="s", tool="t", input=text, digest=digest_of(text))]
    )
    assert read(write(recording)) == recording


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"format": 7})], ids=range(4)
)
def test_bytes_that_are_no_recording_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableRecording):
        Recording.unpack(data)


def test_a_catalog_keeps_its_names() -> None:
    server = ServerEntry(
        "files",
        "Files",
        "my files",
        tools=(ToolEntry("read-file", "read_file", "long"),),
        withheld=(Withheld("x", "x", "why", "hint"),),
    )
    catalog = Catalog(7, {"files": server}, {"down": "why"}, {"denied": "hint"}, {"my files": "files"})
    found = catalog_of(json.loads(json.dumps(names_of(catalog))))
    assert found.version == 7
    assert found.servers["files"].tools == (ToolEntry("read-file", "read_file"),)
    assert found.servers["files"].withheld == server.withheld
    assert (found.unavailable, found.denied, found.ids) == (catalog.unavailable, catalog.denied, catalog.ids)


@pytest.mark.parametrize("text", ["", "a1", "c1795524565651*3c0t2a4i0e1", "c5*2"])
def test_what_a_sandbox_writes_are_events(text: str) -> None:
    assert is_events(text)
    assert "".join(pieces(text)) == text


@pytest.mark.parametrize(
    "text", ["x1", "a", "1", "a1 ", "a1\n", "c1*", "a-1", "@1:2", "a12345678901", "\u0661", "a\u0661"]
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_events(text)


def test_the_clock_is_no_order() -> None:
    assert not has_order("c1*2c3")
    assert has_order("c1*2t3")


def test_the_place_of_a_call_is_taken_from_the_end() -> None:
    assert without_place("a1@12:3") == ("a1", (12, 3))
    assert without_place("a1") == ("a1", None)
    assert without_place("@1:2a1") == ("@1:2a1", None)


QUESTION = ParkedQuestion(call=1, server="s", tool="t", destructive=True, input="{}", bytes=2)
PARKED = Parked(
    questions=(QUESTION,),
    allowed=(3,),
    asked=1,
    waited_ms=7,
    client="c",
    losses=("The run's process was lost.",),
)


def test_it_comes_back_as_it_was() -> None:
    assert Parked.unpack(PARKED.pack()) == PARKED


def test_one_of_another_release_is_read() -> None:
    working = [{"call": 2, "server": "s", "tool": "u"}]
    later = {**json.loads(PARKED.pack()), "mood": "good", "working": working}
    assert Parked.unpack(json.dumps(later).encode()) == PARKED
    assert Parked.unpack(b'{"questions": []}') == Parked(questions=())
