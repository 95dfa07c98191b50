"""Pictures of a daemon under load: the dashboard by a real browser, `cellblock top` in a real terminal.

Writes into docs/images: dashboard-light.png, dashboard-dark.png, dashboard-run.png, top.cast (asciinema's format,
version 2), and of its screens top.svg (the list) and top-run.svg (one run).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import re
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from support.browser import browser
from support.entries import CELLBLOCK
from support.http_daemon import TOOL, Daemon, daemon
from support.pseudo_terminal import Terminal, in_terminal
from support.waits import until, within

ROOT: Final = Path(__file__).resolve().parent.parent.parent

COLUMNS, LINES = 110, 34
LOAD_SECONDS: Final = 65.0
"""Before the first picture, so that the chart of the last minute is full."""

KEYS: Final = (
    (4.0, b"r", "> "),
    (0.6, b"\r", "TIMELINE"),
    (3.0, b"\x1b[F", "CONSOLE"),
    (2.0, b"\x1b", "RECENT"),
    (1.5, b"s", "SCHEMA KNOWLEDGE"),
    (3.0, b"\x1b", "RECENT"),
    (1.0, b"r", "> "),
    (1.5, b"q", ""),
)
"""What is typed into `cellblock top`: seconds before, the key, and what the screen then shows."""

PLAN: Final = (ROOT / "broker/cellblock/cli/demo/plan_week.js").read_text(encoding="utf-8")

SCRIPTS: Final = (
    PLAN,
    PLAN,
    'import { list_issues } from "@codemode/servers/tracker";\n'
    'globalThis.__codemode_result__ = (await list_issues({ status: "open" })).issues.length;',
    'import { wait } from "@codemode/servers/plain"; console.log("waiting for the nightly build");\n'
    "await wait({ ms: 1500 }); await wait({ ms: 900 }); console.log('built');",
    'import { get_issue } from "@codemode/servers/tracker"; await get_issue({ id: 4711 });',
    "let sum = 0; for (let i = 0; i < 3e6; i++) sum += Math.sqrt(i); globalThis.__codemode_result__ = sum;",
)


@contextlib.asynccontextmanager
async def under_load(folder: Path) -> AsyncGenerator[Daemon]:
    """A daemon with servers that are well and one that is not, and clients that keep it busy."""
    servers = {
        "tracker": {"command": sys.executable, "args": ["-m", "cellblock.cli.demo.tracker"]},
        "wiki": {"command": sys.executable, "args": ["-c", "raise SystemExit('no such licence key')"]},
    }
    options: dict[str, Any] = {
        "servers": servers,
        "tools": ["cellblock.cli.demo.team"],
        "pool": {"capacity": 8},
        # A run that is opened is remembered for as long as the pictures take.
    }
    async with daemon(folder, **options) as served:
        clients = [asyncio.create_task(client(served, number)) for number in range(10)]
        try:
            yield served
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def client(served: Daemon, number: int) -> None:
    """Runs scripts one after the other, with short pauses."""
    async with served.client() as session:
        turn = number
        while True:
            await session.call_tool(TOOL, {"code": SCRIPTS[turn % len(SCRIPTS)]})
            turn += 1
            await asyncio.sleep(0.05 * (1 + number % 4))


async def dashboard(served: Daemon, images: Path) -> None:
    """The page in both colours, and one run."""
    process = await asyncio.create_subprocess_exec(
        *(str(CELLBLOCK), "dashboard", "--no-open", "--url", served.url),
        *("--state-dir", str(served.folder / "s")),
        stdout=PIPE,
    )
    url, _ = await within(process.communicate(), 60)
    async with browser() as chromium:
        context = await chromium.new_context(
            viewport={"width": 1440, "height": 1000}, reduced_motion="reduce", color_scheme="light"
        )
        page = await context.new_page()
        await page.goto(url.decode().strip())
        await page.locator("#live tr").nth(2).wait_for()
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            await page.screenshot(path=images / f"dashboard-{scheme}.png")
        rows = page.locator("#recent tr", has_text=re.compile("ok"))
        for at in range(await rows.count()):
            if await rows.nth(at).locator("td").nth(4).inner_text() not in ("0", "1", "2"):
                await rows.nth(at).locator("button").click()
                break
        await page.locator("#detail[open] .lane").nth(8).wait_for()
        await page.screenshot(path=images / "dashboard-run.png")


async def top(served: Daemon, images: Path) -> None:
    """A recording with some keys, and two of its screens as pictures."""
    command = [str(CELLBLOCK), "top", "--url", served.url, "--state-dir", str(served.folder / "s")]
    async with in_terminal(*command, streams=(0, 1, 2)) as terminal:
        terminal.resize(COLUMNS, LINES)
        events: list[tuple[float, str]] = []
        written, started = 0, time.monotonic()

        def take() -> None:
            nonlocal written
            if len(terminal.text) > written:
                events.append((time.monotonic() - started, terminal.text[written:]))
                written = len(terminal.text)

        async def record(seconds: float) -> None:
            until_then = time.monotonic() + seconds
            while time.monotonic() < until_then:
                await asyncio.sleep(0.05)
                take()

        await until(lambda: "RECENT" in last_screen(terminal.text), "the first screen", 60)
        for seconds, key, shown in KEYS:
            if key == b"\r":
                await select_a_run_with_calls(terminal, record)
            await record(seconds)
            if key == b"\x1b[F":
                draw(last_screen(terminal.text), images / "top-run.svg")
            elif key == b"\r":
                draw(last_screen(terminal.text), images / "top.svg")
            terminal.press(key)
            await record(0.3)
            await until(lambda shown=shown: shown in last_screen(terminal.text), f"a screen with {shown}", 60)
        await until(lambda: terminal.process.returncode is not None, "its end")
        take()
    header = {"version": 2, "width": COLUMNS, "height": LINES, "title": "cellblock top"}
    first = events[0][0]
    lines = [json.dumps(header), *(json.dumps([round(at - first, 3), "o", text]) for at, text in events)]
    (images / "top.cast").write_text("\n".join(lines) + "\n", encoding="utf-8")


async def select_a_run_with_calls(terminal: Terminal, record: Callable[[float], Awaitable[None]]) -> None:
    """Goes down the list until there is something to see in a run."""
    for _ in range(20):
        selected = re.search(r"> [0-9a-f]{8} .* (\d+)  \S+ (?:s ago)?", last_screen(terminal.text))
        if selected is not None and int(selected[1]) > 8:
            return
        terminal.press(b"j")
        await record(0.4)


def last_screen(text: str) -> str:
    """The last frame that is whole, with its colours and nothing else."""
    frames = re.findall(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", text, re.S)
    return re.sub(r"\x1b\[\??[0-9;]*[A-Za-ln-z]", "", frames[-1]).replace("\r", "") if frames else ""


def draw(screen: str, file: Path) -> None:
    """A screen as SVG."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip("\n")), no_wrap=True, overflow="crop")
    svg = console.export_svg(title="cellblock top")
    # No font from elsewhere: the picture is whole by itself.
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


async def main() -> None:
    """Makes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--load-seconds", type=float, default=LOAD_SECONDS)
    parser.add_argument("--only", choices=("dashboard", "top"), help="make those alone (default: all)")
    arguments = parser.parse_args()
    arguments.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cellblock-pictures-") as folder:
        async with under_load(Path(folder)) as served:
            await asyncio.sleep(arguments.load_seconds)
            if arguments.only != "top":
                await dashboard(served, arguments.images)
            if arguments.only != "dashboard":
                await top(served, arguments.images)


if __name__ == "__main__":
    asyncio.run(main())
