"""Logs and notices of one run: what is kept, and what only a host that lies can send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.run.events import Observer, RunEvents
from cellblock.run.response import LogEntry
from cellblock.run.run_log import LOG_NOTE_BYTES, RunLog
from cellblock.script.source import Script
from cellblock_worker.wire import protocol
from cellblock_worker.worker.log_budget import MAX_LOG_ENTRIES
from cellblock_worker.worker.states import MAX_NOTICES

LINE = protocol.Log(level="warn", ms=3)


def said(max_log_bytes: int = 100, heard: list[LogEntry] | None = None) -> RunLog:
    events = RunEvents()
    if heard is not None:
        events.add(Observer(on_log=heard.append))
    return RunLog(Script("1"), max_log_bytes, events.open("tests", "1"))


def test_entries_are_kept_in_order_and_told() -> None:
    heard: list[LogEntry] = []
    one = said(heard=heard)
    assert [one.log(LINE, text.encode()) for text in ("a", "b")] == [None, None]
    assert [(entry.level, entry.message, entry.time_ms) for entry in one.entries] == [
        ("warn", "a", 3), ("warn", "b", 3),
    ]  # fmt: skip
    assert heard == one.entries


def test_what_is_no_utf8_is_shown_as_such() -> None:
    one = said()
    assert one.log(LINE, b"\xff") is None and one.entries[0].message == "\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        '<script src="data:text/javascript;base64,Zm9vKCk7"></script>',
        "data:application/javascript;base64,Zm9v:1:2",
        "data:application/typescript;base64,Zm9v and data:application/script",
    ],
)
def test_what_a_script_logs_is_not_changed(text: str) -> None:
    one = said(max_log_bytes=1000)
    assert one.log(LINE, text.encode()) is None
    assert one.notice(json.dumps({"code": "C", "message": text}).encode()) is None
    assert (one.entries[0].message, one.notices[0].message) == (text, text)


def test_places_in_stacks_are_the_scripts() -> None:
    one = said(max_log_bytes=1000)
    frame = "    at f (data:application/script:2:7)"
    assert one.log(LINE, frame.encode()) is None
    assert one.notice(json.dumps({"code": "C", "message": frame}).encode()) is None
    assert (one.entries[0].message, one.notices[0].message) == ("    at f (script.js:2:7)",) * 2


def test_a_host_that_lets_more_pass_has_lied() -> None:
    one = said(max_log_bytes=10)
    assert one.log(LINE, b"x" * (10 + LOG_NOTE_BYTES)) is None
    breach = one.log(LINE, b"x")
    assert breach is not None and "more logs" in breach and len(one.entries) == 1


def test_entries_without_bytes_are_counted_too() -> None:
    one = said()
    assert all(one.log(LINE, b"") is None for _ in range(MAX_LOG_ENTRIES + 1))
    assert one.log(LINE, b"") is not None


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1]", b'"text"', b"\xff"])
def test_a_notice_that_is_none_is_passed_over(body: bytes) -> None:
    one = said()
    assert one.notice(body) is None and one.notices == []


def test_a_notice_is_cut_to_a_warning() -> None:
    one = said()
    sent: dict[str, Any] = {"code": "C" * 99, "message": "m" * 9999, "hint": "h" * 999, "path": 7}
    assert one.notice(json.dumps(sent).encode()) is None
    (found,) = one.notices
    assert (found.severity, found.code, len(found.message)) == ("warning", "C" * 64, 1000)
    assert found.hint == "h" * 500 and found.path is None


def test_notices_are_counted_whatever_they_hold() -> None:
    one = said()
    assert all(one.notice(b"") is None for _ in range(MAX_NOTICES))
    breach = one.notice(b"{}")
    assert breach is not None and "more notices" in breach and one.notices == []
