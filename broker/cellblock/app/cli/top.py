"""What `cellblock top` prints of a daemon's state: pool, servers, the runs under way and the last ones."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from cellblock.base.tasks import at_most, end_tasks
from cellblock.base.terminal import Painter, cell, columns, draw, milliseconds, plain

REFRESH_SECONDS: Final = 1.0

RATE_SECONDS: Final = 10
"""Counts the seconds that the mean of runs per second is over."""

_CLEAR, _HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"

_SERVER: Final = (("TOOLS", -7), ("CALLS", -9), ("FAILED", -8), ("p50", -10), ("p95", -10), ("", 2))
_RUN: Final = (
    ("RUN", 9),
    ("OUTCOME", 22),
    ("TOOK", -9),
    ("QUEUE", -9),
    ("CALLS", -7),
    ("", 2),
    ("ENDED", 11),
)

Data = Mapping[str, Any]


async def watch(ask: Callable[[], Awaitable[Data]]) -> None:
    """Shows a daemon's state, again each second, until SIGINT or SIGTERM.

    Raises:
        CellblockError: The daemon cannot be asked.
    """
    loop, over, paint = asyncio.get_running_loop(), asyncio.Event(), Painter(sys.stdout)
    state = await ask()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, over.set)
    leaving = asyncio.create_task(over.wait())
    try:
        draw(sys.stdout, _CLEAR)
        while not over.is_set():
            # Not the environment's COLUMNS: that stays when the window's size changes.
            size = os.get_terminal_size(sys.stdout.fileno())
            lines = render(state, size.columns or 80, (size.lines or 24) - 1, paint)
            body = "".join(f"{_CLEAR_LINE}{line}\n" for line in lines)
            draw(sys.stdout, f"{_HOME}{body}{_CLEAR_BELOW}")
            sys.stdout.flush()
            async with at_most(REFRESH_SECONDS):
                await over.wait()
            asking = asyncio.ensure_future(ask())
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await end_tasks(asking)
                return
            state = asking.result()
    finally:
        await end_tasks(leaving)
        for number in numbers:
            loop.remove_signal_handler(number)


def render(state: Data, width: int, height: int, paint: Painter) -> list[str]:
    """Draws the screen's lines. All texts of servers and scripts are made harmless.

    Args:
        state: What `/dashboard/state` gives.
        width: Columns.
        height: Lines; 0: as many as there are.
        paint: Colours, or none.
    """
    head = [*_head(state, width, paint), ""]
    servers = [_server_line(server, width, paint) for server in state["upstreams"]]
    live = [_run_line(run, state, width, paint) for run in state["live"]]
    recent = [_run_line(run, state, width, paint) for run in state["recent"]]
    if height:
        # A third at most for the servers, and at most half of what is left for the runs under way.
        servers = _cut(servers, max(1, height // 3), width)
        live = _cut(
            live, max(1, (height - len(head) - len(servers) - 6) // 2, height // 2 - len(recent)), width
        )
    lines = [
        *head,
        paint(plain(_row((("SERVER", _name_columns(width)), *_SERVER)) + "STATE", width), "bold"),
        *servers,
        "",
        paint(plain(f"RUNNING ({len(state['live'])})", width), "bold"),
        *live,
        "",
        paint(plain(_row(_RUN) + "CLIENT", width), "bold"),
        *recent,
    ]
    return lines[: height or None]


def _head(state: Data, width: int, paint: Painter) -> Iterator[str]:
    pool, runs = state["pool"], state["runs"]
    up = milliseconds(state["uptimeSeconds"] * 1000)
    yield paint(cell(f"cellblock {state['version']}  up {up}", width), "reverse")
    full = 0 < pool["capacity"] <= pool["running"]
    waiting = f"    {state['parked']} parked, waiting for you" if state.get("parked") else ""
    yield paint(
        plain(
            f"running  {pool['running']}/{pool['capacity']}    queue {pool['queued']} of {pool['queueSize']}    "
            f"warm {pool['warm']}/{pool['warmWanted']}    booting {pool['booting']}    hosts {pool['hostCount']}"
            f"{waiting}",
            width,
        ),
        "yellow" if full else "green",
    )
    failed = runs["total"] - sum(runs["byOutcome"].get(well, 0) for well in ("ok", "parked"))
    newest = [counts[0] for counts in state["perSecond"]][-RATE_SECONDS:]
    took, queued = state["latency"]["run"], state["latency"]["queue"]
    yield plain(
        f"runs    {runs['total']} ({failed} with an error)    {sum(newest) / max(1, len(newest)):.1f}/s    "
        f"p50 {milliseconds(took['p50'])}  p95 {milliseconds(took['p95'])}  p99 {milliseconds(took['p99'])}    "
        f"queue p95 {milliseconds(queued['p95'])}",
        width,
    )


def _server_line(server: Data, width: int, paint: Painter) -> str:
    calls, took = sum(server["calls"].values()), server["latency"]
    failed = sum(server["calls"].get(outcome, 0) for outcome in ("failed", "uncertain"))
    values = (server["tools"], calls, failed, milliseconds(took["p50"]), milliseconds(took["p95"]), "")
    fixed = plain(_row(((server["name"], _name_columns(width)), *_below(_SERVER, values))), width)
    ready = server["state"] == "ready"
    text = "ready" if ready else f"{server['state']}: {server['reason']}"
    return fixed + paint(plain(text, width - columns(fixed)), "green" if ready else "red")


def _run_line(run: Data, state: Data, width: int, paint: Painter) -> str:
    """Draws a run: one under way with the call that it waits for, or else with what it has logged last."""
    ended = run["state"] == "ended"
    outcome = run["outcome"] if ended else run["state"]
    ago = _ago(state["time"] - run["acceptedAt"] - run["elapsedMs"] / 1000) if ended else ""
    times = milliseconds(run["elapsedMs"]), milliseconds(run["queueMs"])
    values = (run["id"][:8], outcome, *times, run["calls"], "", ago)
    current = next((text for text in (run.get("call"), run.get("lastLog")) if text and not ended), "")
    line = plain(_row(_below(_RUN, values)) + (f"{current}  " if current else "") + run["client"], width)
    colour = {"ok": "green", "parked": "yellow"}.get(outcome, "red") if ended else "cyan"
    return line[:9] + paint(line[9:31], colour) + line[31:]


def _row(cells: Iterator[tuple[object, int]] | tuple[tuple[object, int], ...]) -> str:
    """Lays out the cells of a row, each with its columns; negative ones put the text to the right."""
    return "".join(cell(text, abs(width), right=width < 0) for text, width in cells)


def _below(head: tuple[tuple[str, int], ...], values: tuple[object, ...]) -> Iterator[tuple[object, int]]:
    return ((value, width) for value, (_, width) in zip(values, head, strict=True))


def _name_columns(width: int) -> int:
    return min(28, max(12, width - 72))


def _cut(lines: list[str], room: int, width: int) -> list[str]:
    left = len(lines) - room + 1
    return lines if left <= 1 else [*lines[: room - 1], plain(f"… and {left} more", width)]


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 3600 else f"{seconds / 3600:.0f} h ago"
