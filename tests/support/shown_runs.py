"""What a daemon says of its runs, for tests: with texts that want to control the terminal."""

import re
from typing import Any

from cellblock.base.errors import Certainty
from cellblock.run.board import Board
from cellblock.run.events import CallFacts, RunFacts
from cellblock.run.response import Diagnostic, LogEntry, RunResponse, Usage

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nlive \u202egnp"

NOW = 1_700_000_000.0


def run_id(number: int) -> str:
    """Ids that differ in their first letters, as those of a daemon do."""
    return f"{number:08d}cdef"


def bare(line: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def whole_run(*, logs: int = 3, calls: int = 3, ended: bool = True) -> dict[str, Any]:
    """What `/dashboard/runs/ID` gives, from a real board: a run of 1 s with 100 ms of each stage before its script."""
    board = Board(10)
    run = RunFacts(id=run_id(7), client=HOSTILE, code="1" * 42, accepted_at=NOW, accepted=1000.0)
    board.run_accepted(run)
    run.queued, run.leased, run.started = 1000.1, 1000.2, 1000.3
    for number in range(calls):
        call = CallFacts("plain", f"tool{number}", 1000.5, duration_ms=250, ok=True, error=None, over=True)
        call.certainty = Certainty.COMPLETED
        run.calls.append(call)
    if calls:
        run.calls[-1].ok, run.calls[-1].error = False, HOSTILE
    for number in range(logs):
        level = ("log", "warn", "error")[number % 3]
        board.run_logged(run, LogEntry(level=level, message=f"entry {number} {HOSTILE}", time_ms=number))
    if not ended:
        return board.run(run.id) or {}
    run.ended = 1001.0
    run.worker_end = "done"
    diagnostic = Diagnostic(severity="error", code="TOOL_ERROR", message=HOSTILE)
    run.response = RunResponse(logs=[], diagnostics=[diagnostic], usage=Usage(wall_ms=700, cpu_ms=12))
    board.run_ended(run)
    return board.run(run.id) or {}
