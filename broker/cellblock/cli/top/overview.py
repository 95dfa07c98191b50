"""Overview draws the first screen of `cellblock top`: pool, queue, latencies, servers, runs; and the servers' page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

from cellblock.base.terminal import Painter, cell, columns, milliseconds, plain

SPARKS: Final = " ▁▂▃▄▅▆▇█"

RATE_SECONDS: Final = 10
"""Counts the seconds that the mean of runs per second is over."""

RUN_LINES: Final = 8
"""Counts the lines that the runs have at least, whatever else there is to show."""

BARE_LINES: Final = 6
"""Counts the lines below which runs are shown without headings."""

KINDS: Final = {
    "given": ("█", "cyan"),
    "declared": ("▓", "green"),
    "observed": ("▒", "yellow"),
    "unknown": ("░", "dim"),
}
"""Maps the sources of an output's type, the best first, to what draws them: they differ without colour too."""

BAR: Final = 24
"""Counts the columns for all tools of a server."""

_SERVER: Final = (("TOOLS", -7), ("CALLS", -9), ("FAILED", -8), ("p50", -10), ("p95", -10), ("TYPED", -8))
_RUN: Final = (("TOOK", -9), ("QUEUE", -9), ("CALLS", -7), ("", 2), ("ENDED", 11))
_OUTCOME: Final = 22

Data = Mapping[str, Any]


def row(*cells: tuple[object, int]) -> str:
    """Lays out the cells of a row, each with its columns; negative ones put the text to the right."""
    return "".join(cell(text, abs(width), right=width < 0) for text, width in cells)


def _below(head: tuple[tuple[str, int], ...], *values: object) -> Iterator[tuple[object, int]]:
    return ((value, width) for value, (_, width) in zip(values, head, strict=True))


def runs_of(state: Data) -> list[str]:
    """Returns the ids of the runs in the order of the screen."""
    return [run["id"] for run in (*state["live"], *state["recent"])]


def render(state: Data, width: int, height: int, paint: Painter, selected: str | None = None) -> list[str]:
    """Draws the screen's lines. All texts of servers and scripts are made harmless.

    Args:
        state: What `/dashboard/state` gives.
        width: Columns.
        height: Lines; 0: as many as there are.
        paint: Colours, or none.
        selected: The id of the run that is marked, and always among those shown.
    """
    live, recent = list(state["live"]), list(state["recent"])
    above, between = list(_head(state, width, paint)), ["", *servers(state, width, paint), ""]
    rows = live_room = len(live) + len(recent)
    if height:
        above = [*above, *_cut(between, height - RUN_LINES - 5, width, paint)][: max(1, height - RUN_LINES)]
        rows = height - len(above)
        bare = rows < BARE_LINES
        rows -= 0 if bare else 3
        live_room = rows if bare else max(rows // 2, rows - len(recent))
    else:
        above, bare = above + between, False

    def shown(runs: list[Data], room: int) -> list[str]:
        return [_run_line(run, state, width, paint, selected) for run in _window(runs, room, selected)]

    if bare:
        return [*above, *shown([*live, *recent], rows)][:height]
    live_room = min(len(live), live_room)
    head = row(("  RUN", 11), ("OUTCOME", _OUTCOME), *_RUN) + "CLIENT / LAST LOG"
    return [
        *above,
        paint(plain(f"LIVE ({len(live)})", width), "bold"),
        *shown(live, live_room),
        paint(plain(f"RECENT ({len(recent)})", width), "bold"),
        paint(plain(head, width), "dim"),
        *shown(recent, rows - live_room),
    ][: height or None]


def servers(state: Data, width: int, paint: Painter) -> list[str]:
    """Draws a heading and one line for each upstream server: state, calls, latency."""
    known = {types["id"]: types for types in state["knowledge"]}
    name = _name_columns(width)
    lines = [paint(plain(row(("SERVER", name), *_SERVER) + "  STATE", width), "bold")]
    for server in state["upstreams"]:
        calls, took = sum(server["calls"].values()), server["latency"]
        failed = calls - server["calls"].get("ok", 0)
        types = known.get(server["id"], {})
        typed = f"{types.get('tools', 0) - types.get('unknown', 0)}/{types.get('tools', 0)}"
        percentiles = milliseconds(took["p50"]), milliseconds(took["p95"])
        values = _below(_SERVER, server["tools"], calls, failed, *percentiles, typed)
        fixed = plain(row((server["name"], name), *values) + "  ", width)
        ready = server["state"] == "ready"
        text = "ready" if ready else f"{server['state']}: {server['reason']}"
        lines.append(fixed + paint(plain(text, width - columns(fixed)), "green" if ready else "red"))
    return lines


def knowledge(state: Data, width: int, paint: Painter) -> list[str]:
    """Draws a heading and a line for each server: how many tools have an output type, from whom, after how many
    results."""
    head, name = (("TOOLS", -7), ("RESULTS SEEN", -14), ("", 2)), _name_columns(width)
    lines = [paint(plain(row(("SERVER", name), *head, ("OUTPUT TYPES", BAR)), width), "bold")]
    for types in state["knowledge"]:
        fixed = plain(row((types["id"], name), *_below(head, types["tools"], types["samples"], "")), width)
        room = width - columns(fixed)
        counts = {kind: types[kind] for kind in KINDS if types[kind]}
        text = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no tools"
        if types.get("disagreeing"):
            text += f"; results differ: {types['disagreeing']}"
        lines.append(fixed + _stacked(counts, room, paint) + plain(f"  {text}", max(0, room - BAR)))
    if not state["knowledge"]:
        lines.append(plain("nothing is known yet", width))
    legend = "  ".join(f"{mark} {kind}" for kind, (mark, _) in KINDS.items())
    return [*lines, "", paint(plain(legend, width), "dim")]


# ---- inside ------------------------------------------------------------------------------------------


def _name_columns(width: int) -> int:
    return min(28, max(12, width - 72))


def _stacked(counts: Mapping[str, int], width: int, paint: Painter) -> str:
    """Draws a bar of `BAR` columns or fewer, shared out by the counts."""
    whole, room = sum(counts.values()), max(0, min(BAR, width))
    if not whole:
        return " " * room
    edges = [round(end / whole * room) for end in (0, *accumulate(counts.values()))]
    parts = zip(counts, pairwise(edges), strict=True)
    return "".join(paint(KINDS[kind][0] * (end - start), KINDS[kind][1]) for kind, (start, end) in parts)


def _cut(lines: list[str], room: int, width: int, paint: Painter) -> list[str]:
    """Cuts the servers to fewer lines, and says how many are left out."""
    if len(lines) <= max(0, room) or room < 4:
        return lines
    left = len(lines) - room + 1
    more = paint(plain(f"… and {left} more servers (s shows them all)", width), "dim")
    return [*lines[: room - 2], more, ""]


def _window(runs: list[Data], room: int, selected: str | None) -> list[Data]:
    """Returns as many runs as there is room for, from the first on unless the selected one is further down."""
    at = next((number for number, run in enumerate(runs) if run["id"] == selected), 0)
    start = max(0, at - room + 1)
    return runs[start : start + max(0, room)]


def _head(state: Data, width: int, paint: Painter) -> Iterator[str]:
    pool, runs = state["pool"], state["runs"]
    up = milliseconds(state["uptimeSeconds"] * 1000)
    yield paint(cell(f"cellblock {state['version']}  up {up}", width), "reverse")
    running, capacity = pool["running"], pool["capacity"]
    filled = min(20, round(running / capacity * 20)) if capacity else 0
    places = f"places  {'█' * filled}{'░' * (20 - filled)} {running}/{capacity}"
    yield paint(plain(places, width), "yellow" if 0 < capacity <= running else "green")
    waiting = f"    {state['parked']} parked, waiting for you" if state.get("parked") else ""
    yield plain(
        f"queue   {pool['queued']} of {pool['queueSize']}    warm {pool['warm']}/{pool['warmWanted']}"
        f"    booting {pool['booting']}    hosts {pool['hostCount']}{waiting}",
        width,
    )
    run, queue = (
        {share: milliseconds(value) for share, value in state["latency"][of].items() if share != "count"}
        for of in ("run", "queue")
    )
    yield plain(
        f"run     p50 {run['p50']}  p95 {run['p95']}  p99 {run['p99']}"
        f"    queue p50 {queue['p50']}  p95 {queue['p95']}",
        width,
    )
    failed = runs["total"] - sum(runs["byOutcome"].get(well, 0) for well in ("ok", "parked"))
    per_second = [counts[0] for counts in state["perSecond"]]
    newest, highest = per_second[-RATE_SECONDS:], max(per_second, default=0)
    rate = sum(newest) / max(1, len(newest))
    line = f"runs    {runs['total']} ({failed} with an error)    {rate:.1f}/s, highest {highest}  "
    # Where there is no room for all seconds, the newest are shown.
    shown = per_second[max(0, len(per_second) - max(0, width - len(line))) :]
    most = max(shown, default=0) or 1
    yield plain(line + "".join(SPARKS[-(-value * (len(SPARKS) - 1) // most)] for value in shown), width)


def _run_line(run: Data, state: Data, width: int, paint: Painter, selected: str | None) -> str:
    ended, is_selected = run["state"] == "ended", run["id"] == selected
    outcome = cell(run["outcome"] if ended else run["state"], _OUTCOME)
    start = row((">" if is_selected else "", 2), (run["id"][:8], 9))
    ago = _ago(state["time"] - run["acceptedAt"] - run["elapsedMs"] / 1000) if ended else ""
    times = milliseconds(run["elapsedMs"]), milliseconds(run["queueMs"])
    rest = row(*_below(_RUN, *times, run["calls"], "", ago)) + (run.get("lastLog") or run["client"])
    if is_selected:
        return paint(cell(start + outcome + rest, width), "reverse")
    colour = {"ok": "green", "parked": "yellow"}.get(outcome.strip(), "red") if ended else "cyan"
    shown = paint(plain(outcome, max(0, width - 11)), colour)
    return plain(start, width) + shown + plain(rest, max(0, width - 33))


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 3600 else f"{seconds / 3600:.0f} h ago"
