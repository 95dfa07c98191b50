"""Draws one run: its facts, its stages and calls with their times, its diagnostics and its console output."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cellblock.base.terminal import Painter, cell, milliseconds, plain, wrapped

Data = Mapping[str, Any]

MIB: Final = 1024 * 1024

OUTCOME, TOOK = 10, 9

WORDS: Final = {"parked": "waits for you", "not_sent": "not sent", "not_started": "not sent"}
"""Has what people are shown in place of an outcome's name; `app.js` has it, too."""

STYLES: Final = {"ok": "green", "running": "cyan"}
LEVELS: Final = {"warn": "yellow", "error": "red", "debug": "dim"}


class Part(NamedTuple):
    """A part of a page has a heading, and the lines below it."""

    heading: str
    lines: list[str]


def title(run_id: str, run: Data) -> str:
    state = run["outcome"] if run["state"] == "ended" else run["state"]
    took = f", {milliseconds(run['elapsedMs'])}" if run["steps"] else ""
    return f"run {run_id}: {WORDS.get(state, state)}{took}"


def parts(run: Data, width: int, paint: Painter) -> list[Part]:
    """Draws what `/dashboard/runs/ID` gives in its parts. All texts of servers and scripts are made harmless."""
    diagnostics = list(_diagnostics(run, width, paint))
    return [
        Part("RUN", [plain(f"  {cell(name, 10)}{value}", width) for name, value in _facts(run)]),
        Part(
            f"TIMELINE ({len(run['timeline'])} of {run['calls']} call{'s' * (run['calls'] != 1)})",
            _timeline(run, width, paint),
        ),
        Part("DIAGNOSTICS", diagnostics or [plain("  none", width)]),
        Part(f"CONSOLE ({len(run['logs'])})", list(_logs(run, width, paint)) or [plain("  nothing", width)]),
    ]


# ---- inside ------------------------------------------------------------------------------------------


def _facts(run: Data) -> Iterator[tuple[str, str]]:
    for name in ("outcome", "state", "client"):
        yield name, WORDS.get(run[name], str(run[name]))
    yield "accepted", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["acceptedAt"]))
    yield "script", f"{run['scriptChars']} characters"
    used = run["usage"]
    if used is not None:
        memory = f"{used['peakMemoryBytes'] / MIB:.1f} MiB"
        waited = milliseconds(used["toolWaitMs"])
        yield "used", f"CPU {milliseconds(used['cpuMs'])}, memory {memory}, waited for tools {waited}"
    if run["workerEnd"]:
        yield "worker", str(run["workerEnd"])


def _timeline(run: Data, width: int, paint: Painter) -> list[str]:
    whole = run["elapsedMs"]
    name = min(48, max(8, width - 2 * TOOK - OUTCOME - 4))
    lines = [_lane("", "AT", "TOOK", "OUTCOME", name, width)]
    steps = [0, *(run["steps"].get(step, whole) for step in ("queued", "leased", "started")), whole]
    stages = ("plan", "queue", "worker", "script") if run["steps"] else ()
    for stage, (start, end) in zip(stages, pairwise(steps), strict=False):
        lines.append(_lane(stage, milliseconds(start), milliseconds(end - start), "", name, width))
    for call in run["timeline"]:
        took, outcome = call["durationMs"], call["outcome"]
        shown, at = milliseconds(took) if took else "<1 ms", milliseconds(call["atMs"])
        told = str(WORDS.get(outcome, outcome))
        line = _lane(f"{call['server']}.{call['tool']}", at, shown, told, name, width)
        lines.append(paint(line, STYLES.get(outcome, "red")))
        if call["error"] and outcome not in STYLES:
            lines += [paint(plain(f"    {text}", width), "red") for text in wrapped(call["error"], width - 4)]
    left = run["calls"] - len(run["timeline"])
    return lines + ([plain(f"  ({left} later calls)", width)] if left > 0 else [])


def _lane(name: str, at: str, took: str, outcome: str, named: int, width: int) -> str:
    times = f"{cell(at, TOOK, right=True)} {cell(took, TOOK, right=True)}"
    return plain(f"{cell(f'  {name}', named)} {times} {outcome}", width)


def _diagnostics(run: Data, width: int, paint: Painter) -> Iterator[str]:
    for entry in run["diagnostics"]:
        style = "red" if entry["severity"] == "error" else "yellow"
        for number, text in enumerate(wrapped(f"{entry['code']}: {entry['message']}", width - 4)):
            yield paint(plain(f"{'    ' if number else '  '}{text}", width), style)


def _logs(run: Data, width: int, paint: Painter) -> Iterator[str]:
    if run["logsLeftOut"]:
        yield paint(plain(f"  log entries that are not shown: {run['logsLeftOut']}", width), "dim")
    for entry in run["logs"]:
        head = f"{entry['timeMs']:>8} ms  {cell(entry['level'], 6)}"
        # In a narrow window the message goes below, not into a column of three letters.
        apart = width < 2 * len(head)
        indent = 2 if apart else len(head)
        lines = [f"{' ' * indent}{text}" for text in wrapped(entry["message"], width - indent)]
        lines = [head, *lines] if apart else [head + lines[0][indent:], *lines[1:]]
        style = LEVELS.get(entry["level"])
        for line in lines:
            yield paint(plain(line, width), style) if style else plain(line, width)
