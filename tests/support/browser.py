"""A real browser without a window, for tests and screenshots: whatever Chromium or Chrome the machine has."""

import contextlib
import os
import shutil
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

WHERE_FROM = (
    "no Chromium or Chrome: install one (Debian: apt-get install chromium), or name it in CELLBLOCK_BROWSER"
)

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
]


def browser_path() -> str | None:
    """The browser's program, or None."""
    return os.environ.get("CELLBLOCK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.asynccontextmanager
async def browser() -> AsyncGenerator["Browser"]:
    """Starts it; at the end its processes are gone."""
    # Imported here: each process that collects tests would do it.
    from playwright.async_api import async_playwright

    # As root, Chromium does not start with its own sandbox.
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    options: dict[str, Any] = {"executable_path": browser_path(), "args": flags, "timeout": 60_000}
    async with async_playwright() as driver:
        running = await driver.chromium.launch(**options)
        try:
            yield running
        finally:
            await running.close()
