"""Starts VS Code without a window: code-server, which is VS Code's own code, in a Chromium that nobody sees.

It takes the user's files from the usual folder below HOME, where `cellblock install vscode` writes. It starts
Cellblock by VS Code's `MCP: List Servers`, as `install` says, and prints its row of that list. Then an extension calls
the tool in a model's place, the call is approved as a person does it, and what came back is printed. `scripts/clients
--installed vscode` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from playwright.async_api import Page, TimeoutError as PlaywrightTimeout

from clients_start import CODE_SERVER, NODE, ROOT, SUCCEEDS
from support.browser import browser
from support.http_server import free_port

EXTENSION: Final = ROOT / "tests" / "clients" / "programs" / "vscode"
WAIT_S: Final = 110.0
"""Bounds each wait for VS Code, which takes half a minute for its first page on a busy machine."""
ENTRY_MS: Final = 8_000
"""Bounds the wait for one entry of a list: who waits for it opens the list again."""
PAUSE_S: Final = 0.3
"""Separates two looks at what VS Code does not tell by itself."""
APPROVES: Final = "Yes"
"""Names the button with which a person approves of the call."""


@contextlib.asynccontextmanager
async def vscode(home: Path, told: Path) -> AsyncGenerator[str]:
    """Serves VS Code with the user's files; gives its URL."""
    settings = home / ".config" / "Code"
    extensions = home / "extensions"
    if not extensions.exists():
        shutil.copytree(EXTENSION, extensions / "cellblock.caller-1.0.0")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *(
            NODE,
            CODE_SERVER / "out" / "node" / "entry.js",
            "--auth",
            "none",
            "--bind-addr",
            f"127.0.0.1:{port}",
        ),
        *("--user-data-dir", settings, "--extensions-dir", extensions),
        *("--disable-telemetry", "--disable-update-check", "--disable-workspace-trust", home),
        env={**environment, "SCRIPT": SUCCEEDS, "TOLD": str(told)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}/"
        await asyncio.to_thread(answered, f"{url}healthz")
        yield f"{url}?folder={home}"
    finally:
        process.terminate()
        await process.wait()


def answered(url: str) -> None:
    """Waits until VS Code answers."""
    # Not by the proxy that stands in the variables, which notes and refuses what clients ask of the network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(url, timeout=WAIT_S):
            return
        time.sleep(PAUSE_S)
    raise TimeoutError(url)


async def choose(page: Page, *choices: str) -> str:
    """Opens the palette and takes one entry after the other, as a person does; returns the last one's row.

    The last is only looked at where it ends in `?`.
    """
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+Shift+P")
    await page.locator(".quick-input-widget input").first.fill(f">{choices[0]}")
    row = ""
    for choice in choices:
        entry = page.locator(".quick-input-list .monaco-list-row").filter(has_text=choice.rstrip("?")).first
        row = await entry.get_attribute("aria-label", timeout=ENTRY_MS) or ""
        if not choice.endswith("?"):
            await entry.click(timeout=ENTRY_MS)
    return row


async def started(page: Page) -> str:
    """Starts Cellblock by VS Code's list of servers, until that list has it running; returns its row.

    It tries again: while VS Code starts, its palette has not all commands, and a server is not started by a click.
    """
    deadline, row = time.monotonic() + WAIT_S, ""
    while time.monotonic() < deadline:
        with contextlib.suppress(PlaywrightTimeout):
            row = await choose(page, "MCP: List Servers", "cellblock?")
            if "Running" in row:
                return row
            if "Stopped" in row:
                await choose(page, "MCP: List Servers", "cellblock", "Start Server")
        await asyncio.sleep(PAUSE_S)
    raise TimeoutError(f"cellblock in `MCP: List Servers`: {row or 'not there'}")


async def session() -> None:
    """Has VS Code start Cellblock, list it and call its tool, and prints the row of its list and the response."""
    home = Path.home()
    told = home / "told.json"
    async with vscode(home, told) as url, browser() as chromium:
        page = await chromium.new_page()
        await page.goto(url, timeout=WAIT_S * 1000)
        print(await started(page))
        await page.keyboard.press("Escape")
        told.with_suffix(".go").touch()
        deadline = time.monotonic() + WAIT_S
        while not told.exists() and time.monotonic() < deadline:
            button = page.get_by_role("button", name=APPROVES, exact=True)
            if await button.count():
                await button.first.click(timeout=ENTRY_MS)
            await asyncio.sleep(PAUSE_S)
        print(told.read_text(encoding="utf-8"))


if __name__ == "__main__":
    asyncio.run(session())
