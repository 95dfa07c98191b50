"""The first screen of `cellblock top`: pool, queue, latencies, servers, and the runs under way and ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cellblock.base.terminal import Painter
from cellblock.base.terminal_text import cell, milliseconds, plain
from cellblock.cli.top.servers_page import servers

SPARKS: Final = " ▁▂▃▄▅▆▇█"

RATE_SECONDS: Final = 10
"""What the mean of runs per second is over."""

RUN_LINES: Final = 8
"""Lines that the runs have at least, whatever else there is to show."""

BARE_LINES: Final = 6
"""In fewer lines, runs are shown without headings."""

Data = Mapping[str, Any]


def runs_of(state: Data) -> list[str]:
    """The ids of the runs in the order of the screen."""
    return [run["id"] for run in (*state["live"], *state["recent"])]


def render(state: Data, width: int, height: int, paint: Painter, selected: str | None = None) -> list[str]:
    """The screen's lines. All texts of servers and scripts are made harmless.

    Args:
        state: What `/dashboard/state` gives.
        width: Columns.
        height: Lines; 0: as many as there are.
        paint: Colours, or none.
        selected: The id of the run that is marked, and always among those shown.
    """
    top = ["", *servers(state, width, paint), ""]
    live, recent = list(state["live"]), list(state["recent"])
    if not height:
        above, live_room, recent_room = [*_head(state, width, paint), *top], len(live), len(recent)
    else:
        above = [*_head(state, width, paint), *_cut(top, height - RUN_LINES - 5, width, paint)]
        above = above[: max(1, height - RUN_LINES)]
        room = height - len(above)
        rows = room - (0 if room < BARE_LINES else 3)
        if room < BARE_LINES:
            shown = _window([*live, *recent], rows, selected)
            return [*above, *(_run_line(run, state, width, paint, selected) for run in shown)][:height]
        live_room = min(len(live), max(rows // 2, rows - len(recent)))
        recent_room = rows - live_room
    return [
        *above,
        paint(plain(f"LIVE ({len(live)})", width), "bold"),
        *(_run_line(run, state, width, paint, selected) for run in _window(live, live_room, selected)),
        paint(plain(f"RECENT ({len(recent)})", width), "bold"),
        paint(_columns_line(width), "dim"),
        *(_run_line(run, state, width, paint, selected) for run in _window(recent, recent_room, selected)),
    ][: height or None]


def _cut(lines: list[str], room: int, width: int, paint: Painter) -> list[str]:
    """The servers in fewer lines: how many are left out is said."""
    if len(lines) <= max(0, room) or room < 4:
        return lines
    left = len(lines) - room + 1
    more = paint(plain(f"… and {left} more servers (s shows them all)", width), "dim")
    return [*lines[: room - 2], more, ""]


def _window(runs: list[Data], room: int, selected: str | None) -> list[Data]:
    """As many runs as there is room for, from the first on unless the selected one is further down."""
    at = next((number for number, run in enumerate(runs) if run["id"] == selected), 0)
    start = max(0, at - room + 1)
    return runs[start : start + max(0, room)]


def _head(state: Data, width: int, paint: Painter) -> Iterator[str]:
    pool, latency, runs = state["pool"], state["latency"], state["runs"]
    failed = runs["total"] - runs["byOutcome"].get("ok", 0)
    per_second = [counts[0] for counts in state["perSecond"]]
    title = f"cellblock {state['version']}  up {milliseconds(state['uptimeSeconds'] * 1000)}"
    yield paint(cell(title, width), "reverse")
    places = _bar(pool["running"], pool["capacity"], 20)
    full = pool["capacity"] > 0 and pool["running"] >= pool["capacity"]
    yield (
        paint(
            plain(f"places  {places} {pool['running']}/{pool['capacity']}", width),
            "yellow" if full else "green",
        )
    )
    yield plain(
        f"queue   {pool['queued']} of {pool['queueSize']}    warm {pool['warm']}/{pool['warmWanted']}"
        f"    booting {pool['booting']}    hosts {pool['hostCount']}",
        width,
    )
    run, queue = latency["run"], latency["queue"]
    yield plain(
        f"run     p50 {milliseconds(run['p50'])}  p95 {milliseconds(run['p95'])}  p99 {milliseconds(run['p99'])}"
        f"    queue p50 {milliseconds(queue['p50'])}  p95 {milliseconds(queue['p95'])}",
        width,
    )
    rate = sum(per_second[-RATE_SECONDS:]) / max(1, len(per_second[-RATE_SECONDS:]))
    highest = max(per_second, default=0)
    line = f"runs    {runs['total']} ({failed} with an error)    {rate:.1f}/s, highest {highest}  "
    # Where there is no room for all seconds, the newest are shown.
    room = max(0, width - len(line))
    yield plain(line + _spark(per_second[len(per_second) - min(room, len(per_second)) :]), width)


def _columns_line(width: int) -> str:
    head = (
        cell("  RUN", 11) + cell("OUTCOME", 22) + cell("TOOK", 9, right=True) + cell("QUEUE", 9, right=True)
    )
    return plain(head + cell("CALLS", 7, right=True) + "  " + cell("ENDED", 11) + "CLIENT / LAST LOG", width)


def _run_line(run: Data, state: Data, width: int, paint: Painter, selected: str | None) -> str:
    ended = run["state"] == "ended"
    said = cell(run["outcome"] if ended else run["state"], 22)
    start = ("> " if run["id"] == selected else "  ") + cell(run["id"][:8], 9)
    rest = (
        cell(milliseconds(run["elapsedMs"]), 9, right=True)
        + cell(milliseconds(run["queueMs"]), 9, right=True)
        + cell(run["calls"], 7, right=True)
        + "  "
        + cell(_ago(state["time"] - run["acceptedAt"] - run["elapsedMs"] / 1000) if ended else "", 11)
        + (run.get("lastLog") or run["client"])
    )
    if run["id"] == selected:
        return paint(cell(start + said + rest, width), "reverse")
    colour = "cyan" if not ended else "green" if said.strip() == "ok" else "red"
    return (
        plain(start, width) + paint(plain(said, max(0, width - 11)), colour) + plain(rest, max(0, width - 33))
    )


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 3600 else f"{seconds / 3600:.0f} h ago"


def _bar(value: int, most: int, width: int) -> str:
    full = min(width, round(value / most * width)) if most else 0
    return "█" * full + "░" * (width - full)


def _spark(values: list[int]) -> str:
    most = max(values, default=0) or 1
    return "".join(SPARKS[-(-value * (len(SPARKS) - 1) // most)] for value in values)
