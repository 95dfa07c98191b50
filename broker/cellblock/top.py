"""`cellblock top`: the dashboard of a running daemon in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Final

from cellblock.terminal import Painter
from cellblock.terminal_text import cell, columns, milliseconds, plain

REFRESH_SECONDS: Final = 1.0

SPARKS: Final = " ▁▂▃▄▅▆▇█"

ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

QUIT: Final = (b"q", b"Q", b"\x03", b"\x04", b"\x1b")

Data = Mapping[str, Any]
Ask = Callable[[], Awaitable[Data]]


def render(state: Data, width: int, height: int, paint: Painter) -> list[str]:
    """The screen's lines. All texts of servers and scripts are made harmless.

    Args:
        state: What `/dashboard/state` gives.
        width: Columns.
        height: Lines; 0: as many as there are.
        paint: Colours, or none.
    """
    head = list(_head(state, width, paint))
    upstreams = _upstreams(state, width, paint)
    room = height - len(head) - len(upstreams) - 6 if height else 1_000
    live = [_run_line(run, width, paint) for run in state["live"]]
    live_room = min(len(live), max(3, room // 2))
    recent = [_run_line(run, width, paint) for run in state["recent"]]
    columns_of_runs = paint(_columns_line(width), "dim")
    lines = [
        *head,
        "",
        *upstreams,
        "",
        paint(plain(f"LIVE ({len(live)})", width), "bold"),
        *live[:live_room],
        paint(plain("RECENT", width), "bold"),
        columns_of_runs,
        *recent[: max(1, room - live_room)],
    ]
    return lines[:height] if height else lines


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
        f"    queue p95 {milliseconds(queue['p95'])}",
        width,
    )
    rate = sum(per_second[-10:]) / max(1, len(per_second[-10:]))
    yield plain(
        f"runs    {runs['total']} ({failed} with an error)    {rate:.1f}/s  {_spark(per_second)}", width
    )


def _upstreams(state: Data, width: int, paint: Painter) -> list[str]:
    known = {row["id"]: row for row in state["knowledge"]}
    name = min(28, max(12, width - 62))
    head = (
        cell("SERVER", name)
        + cell("TOOLS", 7, right=True)
        + cell("CALLS", 9, right=True)
        + cell("FAILED", 8, right=True)
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
            + cell(milliseconds(server["latency"]["p95"]), 10, right=True)
            + cell(f"{typed}/{row.get('tools', 0)}", 8, right=True)
            + "  "
        )
        said = "ready" if ready else f"{server['state']}: {server['reason']}"
        fixed = plain(fixed, width)
        lines.append(fixed + paint(plain(said, width - columns(fixed)), "green" if ready else "red"))
    return lines


def _columns_line(width: int) -> str:
    head = (
        cell("RUN", 10) + cell("OUTCOME", 22) + cell("TOOK", 10, right=True) + cell("QUEUE", 10, right=True)
    )
    return plain(head + cell("CALLS", 7, right=True) + "  CLIENT / LAST LOG", width)


def _run_line(run: Data, width: int, paint: Painter) -> str:
    ended = run["state"] == "ended"
    said = run["outcome"] if ended else run["state"]
    start = cell(run["id"][:8], 10)
    rest = (
        cell(milliseconds(run["elapsedMs"]), 10, right=True)
        + cell(milliseconds(run["queueMs"]), 10, right=True)
        + cell(run["calls"], 7, right=True)
        + "  "
        + (run.get("lastLog") or run["client"])
    )
    colour = "cyan" if not ended else "green" if said == "ok" else "red"
    return (
        plain(start, width)
        + paint(plain(cell(said, 22), max(0, width - 10)), colour)
        + plain(rest, max(0, width - 32))
    )


def _bar(value: int, most: int, width: int) -> str:
    full = min(width, round(value / most * width)) if most else 0
    return "█" * full + "░" * (width - full)


def _spark(values: list[int]) -> str:
    most = max(values, default=0) or 1
    return "".join(SPARKS[-(-value * (len(SPARKS) - 1) // most)] for value in values)


async def watch(ask: Ask) -> None:
    """Shows the screen until q, Esc or Ctrl-C; redraws each second, and at once when the window's size changes.

    Raises:
        CellblockError: The daemon cannot be asked.
    """
    loop = asyncio.get_running_loop()
    done, resized = asyncio.Event(), asyncio.Event()
    paint = Painter(sys.stdout)

    def on_key() -> None:
        key = os.read(sys.stdin.fileno(), 32)
        # Of an escape sequence (an arrow key) nothing is meant for us; Esc comes alone.
        if key in QUIT or not key:
            done.set()

    state = await ask()
    with _screen():
        loop.add_reader(sys.stdin.fileno(), on_key)
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
        loop.add_signal_handler(signal.SIGINT, done.set)
        try:
            while not done.is_set():
                _draw(state, paint)
                waiting = [asyncio.create_task(event.wait()) for event in (done, resized)]
                await asyncio.wait(waiting, timeout=REFRESH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
                if resized.is_set():
                    resized.clear()
                elif not done.is_set():
                    state = await ask()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(sys.stdin.fileno())


def _draw(state: Data, paint: Painter) -> None:
    size = shutil.get_terminal_size()
    lines = render(state, size.columns, size.lines - 1, paint)
    body = "".join(f"{line}{CLEAR_LINE}\r\n" for line in lines)
    sys.stdout.write(f"{HOME}{body}{paint(plain('q: quit', size.columns), 'dim')}{CLEAR_LINE}{CLEAR_BELOW}")
    sys.stdout.flush()


@contextlib.contextmanager
def _screen() -> Generator[None]:
    """The alternate screen, and keys one by one without an echo; everything is put back at the end."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(ALTERNATE_SCREEN)
        sys.stdout.flush()
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        sys.stdout.write(MAIN_SCREEN)
        sys.stdout.flush()
