"""Show runs the command `demo`: a real script against two real servers, shown step by step."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from cellblock import Broker, LogEntry, Observer, TraceEntry, tool
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.importing.known import own_command
from cellblock.app.cli.streams import say
from cellblock.app.config.load import parse_settings
from cellblock.record.journal import Journal
from cellblock.run.policy.asking import Caller

SCRIPT = Path(__file__).parent / "plan_week.js"
TRACKER = "cellblock.app.cli.demo.tracker"


async def run(parsed: argparse.Namespace) -> int:
    """Runs the demo and prints it. Logs go to a temporary directory unless `--state-dir` is given."""
    if parsed.state_dir is not None:
        return await _show(parsed.state_dir)
    with tempfile.TemporaryDirectory(prefix="cellblock-demo-") as temporary:
        return await _show(Path(temporary))


async def _show(state_dir: Path) -> int:
    settings = parse_settings(
        {
            "mcpServers": {"tracker": {"command": sys.executable, "args": ["-P", "-m", TRACKER]}},
            "cellblock": {"upstream": {"connect_timeout_ms": 120_000}},
        }
    ).with_state_dir(state_dir)
    code = SCRIPT.read_text(encoding="utf-8")
    _heading("The script")
    print(code)
    journal = Journal()
    async with Broker(settings, tools=[capacity, finish_date]) as broker:
        await broker.installed(say)
        if "tracker" in broker.catalog.unavailable:
            say(f"the demo's own server is not connected: {broker.catalog.unavailable['tracker']}")
            return EXIT_NO
        _heading("Its calls")
        caller = Caller(observer=Observer(on_log=_print_log, on_call=_print_call))
        response = (await broker.run_request({"code": code}, caller, journal=journal)).decoded()
    _heading("Its answer")
    print(json.dumps(response.result))
    for found in response.diagnostics:
        print(found.message)
    if not response.ok:
        return EXIT_NO  # it may not have begun, and then nothing is recorded
    answers = [len(call.answer) for call in journal.snapshot().calls]
    _heading("What the model reads")
    print(f"  call by call  {len(answers)} answers of tools, {_size(sum(answers))}")
    print(f"  this script   1 answer, {_size(len(json.dumps(response.result)))}")
    _heading("Next")
    print(
        f"  {shlex.join(own_command())} install claude-code   # or another client: install --help names them"
    )
    return EXIT_OK


def _size(characters: int) -> str:
    return f"{characters:,} characters (about {round(characters / 4):,} tokens)"


def _heading(text: str) -> None:
    print(f"\n── {text} {'─' * (70 - len(text))}")


def _print_call(entry: TraceEntry) -> None:
    outcome = "ok" if entry.ok else f"failed: {entry.error}"
    print(f"  call  {entry.server_id}.{entry.tool_name}  {entry.duration_ms} ms  {outcome}", flush=True)


def _print_log(entry: LogEntry) -> None:
    print(f"  {entry.level:5} {entry.message}", flush=True)


_HOURS_A_WEEK = {"mira": 32.0, "jonas": 24.0, "priya": 40.0, "tomasz": 16.0}
_DEFAULT_HOURS = 8.0
_HOURS_A_DAY = 8.0
_SATURDAY = 5


@dataclass
class Capacity:
    """Says what one person can take on in a week."""

    person: str
    hours: float


@tool()
def capacity(person: str) -> Capacity:
    """Hours that a person of the team has for issues this week."""
    return Capacity(person, _HOURS_A_WEEK.get(person, _DEFAULT_HOURS))


@tool()
def finish_date(start: date, hours: float) -> date:
    """The working day on which work of so many hours ends that starts on `start`."""
    if hours < 0:
        raise ValueError("hours must not be negative")
    day, left = start, hours
    while left > _HOURS_A_DAY or day.weekday() >= _SATURDAY:
        if day.weekday() < _SATURDAY:
            left -= _HOURS_A_DAY
        day += timedelta(days=1)
    return day
