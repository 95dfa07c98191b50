"""What a client is told of its run: one line of progress, and logs from the level that it has set."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.run.response import LogEntry, TraceEntry
from cellblock.serve.mcp import live
from cellblock.serve.mcp.live import MAX_SHOWN_CHARS, MAX_WAITING_LOGS, LiveRun, LogLevels, one_line
from support.waits import until

CALL = TraceEntry(server_id="a", tool_name="b", duration_ms=1, ok=True)


class Session:
    """Takes what is sent; `reads` False: a client that does not."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.logs: list[tuple[str, Any]] = []
        self.progress: list[tuple[float, str]] = []

    async def send_notification(
        self, notification: types.LoggingMessageNotification, related: object
    ) -> None:
        assert related == 7
        if not self.reads:
            await asyncio.sleep(1e6)
        self.logs.append((notification.params.level, notification.params.data))

    async def report_progress(self, progress: float, total: float | None, message: str) -> None:
        self.progress.append((progress, message))


def context(session: Session, **fields: Any) -> Any:
    values = {"session": session, "request_id": 7, "protocol_version": "2025-11-25", "meta": None}
    return cast("Any", SimpleNamespace(**{**values, **fields}))


def log(level: Any, message: str = "m") -> LogEntry:
    return LogEntry(level=level, message=message, time_ms=1)


async def told(level: types.LoggingLevel | None, *entries: LogEntry) -> list[tuple[str, Any]]:
    session, run = Session(), LiveRun(level, 60)
    async with run.reporting(context(session)):
        for entry in entries:
            assert run.observer.on_log is not None
            run.observer.on_log(entry)
    return session.logs


EVERY = [log("debug", "d"), log("log", "l"), log("warn", "w"), log("error", "e")]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, []),
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("notice", ["warning", "error"]),
        ("error", ["error"]),
        ("critical", []),
    ],
)
async def test_logs_from_the_clients_level_on(level: types.LoggingLevel | None, expected: list[str]) -> None:
    assert [sent for sent, _ in await told(level, *EVERY)] == expected


async def test_of_too_many_logs_the_newest_are_sent() -> None:
    sent = await told("debug", *(log("log", str(number)) for number in range(2 * MAX_WAITING_LOGS)))
    assert [data for _, data in sent] == [
        str(number) for number in range(MAX_WAITING_LOGS, 2 * MAX_WAITING_LOGS)
    ]


async def test_a_client_that_does_not_read_does_not_hold_its_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "FAREWELL_SECONDS", 0.05)
    run = LiveRun("debug", 60)
    async with asyncio.timeout(20), run.reporting(context(Session(reads=False))):
        assert run.observer.on_log is not None
        run.observer.on_log(log("error"))


async def test_progress_grows_and_says_what_there_is() -> None:
    session, run = Session(), LiveRun(None, 0.01)
    assert run.observer.on_call is not None and run.observer.on_log is not None
    async with run.reporting(context(session)):
        await until(lambda: len(session.progress) >= 2, "it is told twice")
        run.observer.on_call(CALL)
        run.observer.on_log(log("log", "a\nb\x1b[31m"))
        seen = len(session.progress)
        await until(lambda: len(session.progress) >= seen + 2, "it is told again")
    values = [progress for progress, _ in session.progress]
    assert values == sorted(set(values))
    assert session.progress[0][1] == "0 s, 0 tool calls"
    assert session.progress[-1][1].endswith(" s, 1 tool call; last log: a b\ufffd[31m")


@given(st.text(max_size=2_000))
def test_a_log_message_is_one_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= MAX_SHOWN_CHARS + 1
    assert line.isprintable()


def test_levels_of_both_generations() -> None:
    levels = LogLevels()
    old, new = context(Session()), context(Session(), protocol_version="2026-07-28")
    assert levels.level_for(old, "one") is None
    levels.set("one", "warning")
    assert (levels.level_for(old, "one"), levels.level_for(old, "two"), levels.level_for(new, "one")) == (
        "warning",
        None,
        None,
    )
    key = "io.modelcontextprotocol/logLevel"
    cases: list[tuple[Any, str | None]] = [("error", "error"), ("nonsense", None), (7, None), ([], None)]
    for wanted, expected in cases:
        assert (
            levels.level_for(context(Session(), protocol_version="2026-07-28", meta={key: wanted}), "one")
            == expected
        )
    for number in range(3 * live.MAX_CLIENTS):
        levels.set(str(number), "debug")
    assert levels.level_for(old, "one") is None


def test_what_a_server_reports_of_a_call_is_shown_until_the_call_ends() -> None:
    """Its words are its own: they can neither break the line nor fill it."""
    run = LiveRun(None, 60)
    run.call_progress("files", "copy", 1, 4, "one\n\x1b[2Jof four")
    assert run.progress_text() == "0 s, 0 tool calls; files.copy: 1 of 4 one \ufffd[2Jof four"
    run.call_progress("files", "copy", 2.5, None, "x" * 10_000)
    assert "files.copy: 2.5 xxx" in run.progress_text() and len(run.progress_text()) < 2 * MAX_SHOWN_CHARS
    assert run.observer.on_call is not None
    run.observer.on_call(CALL)
    assert run.progress_text() == "0 s, 1 tool call"
