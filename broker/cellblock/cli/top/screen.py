"""Screen shows `cellblock top` on a terminal: keys as they are pressed, and a daemon asked again and again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final

from cellblock.base.tasks import at_most, end_tasks
from cellblock.base.terminal import Painter
from cellblock.cli.top.keys import Key, Keyboard
from cellblock.cli.top.model import Top

REFRESH_SECONDS: Final = 1.0

ESCAPE_SECONDS: Final = 0.05
"""Bounds the wait for the rest of what a key sends after its Esc; then it was the key Esc."""

SILENCE_SECONDS: Final = 3.0
"""Bounds the time that an answer may take without a word about it."""

MAX_READ_BYTES: Final = 1024

ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
FRAME, FRAME_END = "\x1b[?2026h", "\x1b[?2026l"
"""Has terminals that know how to show at once what is between them; the others take no notice."""

Data = Mapping[str, Any]
Ask = Callable[[], Awaitable[Data]]
AskRun = Callable[[str], Awaitable[Data | None]]


async def watch(ask: Ask, ask_run: AskRun) -> None:
    """Shows the screen until somebody quits; draws it anew after each key, each answer, and a change of its size.

    Raises:
        CellblockError: The daemon cannot be asked; the terminal is then as it was.
    """
    top = Top(await ask())
    paint = Painter(sys.stdout)
    changed, wanted = asyncio.Event(), asyncio.Event()
    with contextlib.ExitStack() as screen, _listening(top, screen, changed, wanted):
        screen.enter_context(_alternate_screen())
        asking = asyncio.create_task(_keep_asking(top, ask, ask_run, changed, wanted))
        asking.add_done_callback(lambda _: changed.set())
        try:
            while not top.done and not asking.done():
                changed.clear()
                silent = time.monotonic() - top.asked if top.asked is not None else 0.0
                top.silent_seconds = silent if silent >= SILENCE_SECONDS else None
                _draw(top, paint)
                async with at_most(REFRESH_SECONDS):
                    await changed.wait()
        finally:
            await end_tasks(asking)
    if not asking.cancelled():
        asking.result()


async def _keep_asking(
    top: Top, ask: Ask, ask_run: AskRun, changed: asyncio.Event, wanted: asyncio.Event
) -> None:
    """Asks the daemon, and never ends by itself."""
    while True:
        async with at_most(REFRESH_SECONDS):
            await wanted.wait()
        wanted.clear()
        top.asked = time.monotonic()
        run_id = top.run_id
        if run_id is not None and not top.forgotten and not (top.paused and top.run):
            top.heard_run(run_id, await ask_run(run_id))
            changed.set()
        if not top.paused:
            top.heard(await ask())
            changed.set()
        top.asked = None


@contextlib.contextmanager
def _listening(
    top: Top, screen: contextlib.ExitStack, changed: asyncio.Event, wanted: asyncio.Event
) -> Generator[None]:
    """Has keys and signals change what is shown while the block runs."""
    loop = asyncio.get_running_loop()
    descriptor, keyboard = sys.stdin.fileno(), Keyboard()
    timer: asyncio.TimerHandle | None = None

    def press(keys: list[Key]) -> None:
        before = top.run_id, top.paused
        for key in keys:
            if not top.done:
                top.press(key)
        changed.set()
        if (top.run_id, top.paused) != before:
            wanted.set()

    def on_input() -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        try:
            data = os.read(descriptor, MAX_READ_BYTES)
        except OSError:
            data = b""
        press(keyboard.typed(data) if data else [Key.QUIT])
        timer = (
            loop.call_later(ESCAPE_SECONDS, lambda: press(keyboard.nothing_came()))
            if keyboard.waiting
            else None
        )

    def stop() -> None:
        screen.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        screen.enter_context(_alternate_screen())
        changed.set()

    handlers = {
        signal.SIGWINCH: changed.set,
        signal.SIGINT: lambda: press([Key.QUIT]),
        signal.SIGTERM: lambda: press([Key.QUIT]),
        signal.SIGTSTP: stop,
    }
    loop.add_reader(descriptor, on_input)
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        loop.remove_reader(descriptor)
        if timer is not None:
            timer.cancel()


def _draw(top: Top, paint: Painter) -> None:
    # Not the environment's COLUMNS: that stays when the window's size changes.
    size = os.get_terminal_size(sys.stdout.fileno())
    columns, height = size.columns or 80, size.lines or 24
    lines = top.lines(columns, height, paint)
    # A line is cleared before it is written: after a full one, its last column would go.
    body = "\r\n".join(f"{CLEAR_LINE}{line}" for line in lines)
    below = f"\r\n{CLEAR_BELOW}" if len(lines) < height else ""
    sys.stdout.write(f"{FRAME}{HOME}{body}{below}{FRAME_END}")
    sys.stdout.flush()


@contextlib.contextmanager
def _alternate_screen() -> Generator[None]:
    """Takes the terminal while the block runs: the alternate screen, and keys one by one without an echo."""
    before = termios.tcgetattr(sys.stdin.fileno())
    tty.setcbreak(sys.stdin.fileno())
    sys.stdout.write(ALTERNATE_SCREEN)
    sys.stdout.flush()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        sys.stdout.write(MAIN_SCREEN)
        sys.stdout.flush()
