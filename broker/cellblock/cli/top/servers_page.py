"""The upstream servers, and where the types of their tools' outputs come from."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

from cellblock.base.terminal import Painter
from cellblock.base.terminal_text import cell, columns, milliseconds, plain

Data = Mapping[str, Any]

KINDS: Final = {
    "given": ("█", "cyan"),
    "declared": ("▓", "green"),
    "observed": ("▒", "yellow"),
    "unknown": ("░", "dim"),
}
"""Sources of an output's type, the best first, with what draws them: they differ without colour too."""

BAR: Final = 24
"""Columns for all tools of a server."""


def servers(state: Data, width: int, paint: Painter) -> list[str]:
    """A heading and one line for each upstream server: state, calls, latency."""
    known = {row["id"]: row for row in state["knowledge"]}
    name = min(28, max(12, width - 72))
    head = (
        cell("SERVER", name)
        + cell("TOOLS", 7, right=True)
        + cell("CALLS", 9, right=True)
        + cell("FAILED", 8, right=True)
        + cell("p50", 10, right=True)
        + cell("p95", 10, right=True)
        + cell("TYPED", 8, right=True)
        + "  STATE"
    )
    lines = [paint(plain(head, width), "bold")]
    for server in state["upstreams"]:
        calls = sum(server["calls"].values())
        ready = server["state"] == "ready"
        row = known.get(server["id"], {})
        typed = row.get("tools", 0) - row.get("unknown", 0)
        fixed = (
            cell(server["name"], name)
            + cell(server["tools"], 7, right=True)
            + cell(calls, 9, right=True)
            + cell(calls - server["calls"].get("ok", 0), 8, right=True)
            + cell(milliseconds(server["latency"]["p50"]), 10, right=True)
            + cell(milliseconds(server["latency"]["p95"]), 10, right=True)
            + cell(f"{typed}/{row.get('tools', 0)}", 8, right=True)
            + "  "
        )
        said = "ready" if ready else f"{server['state']}: {server['reason']}"
        fixed = plain(fixed, width)
        lines.append(fixed + paint(plain(said, width - columns(fixed)), "green" if ready else "red"))
    return lines


def knowledge(state: Data, width: int, paint: Painter) -> list[str]:
    """A heading and one line for each server: how many tools have an output type, from whom, after how many results."""
    name = min(28, max(12, width - 72))
    head = cell("SERVER", name) + cell("TOOLS", 7, right=True) + cell("RESULTS SEEN", 14, right=True)
    lines = [paint(plain(f"{head}  {cell('OUTPUT TYPES', BAR)}", width), "bold")]
    for row in state["knowledge"]:
        fixed = cell(row["id"], name) + cell(row["tools"], 7, right=True)
        fixed = plain(f"{fixed}{cell(row['samples'], 14, right=True)}  ", width)
        counts = {kind: row[kind] for kind in KINDS if row[kind]}
        bar = _stacked(counts, width - columns(fixed), paint)
        said = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no tools"
        if row.get("disagreeing"):
            said += f"; results differ: {row['disagreeing']}"
        room = width - columns(fixed) - BAR
        lines.append(fixed + bar + plain(f"  {said}", max(0, room)))
    if not state["knowledge"]:
        lines.append(plain("nothing is known yet", width))
    legend = "  ".join(f"{mark} {kind}" for kind, (mark, _) in KINDS.items())
    return [*lines, "", paint(plain(legend, width), "dim")]


def _stacked(counts: Mapping[str, int], width: int, paint: Painter) -> str:
    """A bar of `BAR` columns or fewer, shared out by the counts."""
    whole, room = sum(counts.values()), min(BAR, width)
    if room <= 0:
        return ""
    if not whole:
        return " " * room
    edges = [0, *accumulate(counts.values())]
    drawn = ""
    for kind, (start, end) in zip(counts, pairwise(edges), strict=True):
        mark, style = KINDS[kind]
        drawn += paint(mark * (round(end / whole * room) - round(start / whole * room)), style)
    return drawn
