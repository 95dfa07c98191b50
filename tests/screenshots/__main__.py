"""Pictures of the dashboard of a daemon under load, by a real browser.

Writes into docs/images: dashboard-light.png, dashboard-dark.png, dashboard-run.png.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from support.browser import browser
from support.commands import cellblock
from support.http_daemon import TOOL, Daemon, daemon

ROOT: Final = Path(__file__).resolve().parent.parent.parent

LOAD_SECONDS: Final = 65.0
"""Before the first picture, so that the chart of the last minute is full."""

PLAN: Final = (ROOT / "broker/cellblock/app/cli/demo/plan_week.js").read_text(encoding="utf-8")

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
        "tracker": {"command": sys.executable, "args": ["-m", "cellblock.app.cli.demo.tracker"]},
        "wiki": {"command": sys.executable, "args": ["-c", "raise SystemExit('no such licence key')"]},
    }
    tools = ["cellblock.app.cli.demo.show"]
    async with daemon(folder, servers=servers, tools=tools, pool={"capacity": 8}) as served:
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
    place = ("--url", served.url, "--state-dir", served.folder / "s")
    opened = await cellblock("dashboard", "--no-open", *place, code=0)
    async with browser() as chromium:
        context = await chromium.new_context(
            viewport={"width": 1440, "height": 1000}, reduced_motion="reduce", color_scheme="light"
        )
        page = await context.new_page()
        await page.goto(opened.out.strip())
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


async def main() -> None:
    """Makes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--load-seconds", type=float, default=LOAD_SECONDS)
    arguments = parser.parse_args()
    arguments.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cellblock-pictures-") as folder:
        async with under_load(Path(folder)) as served:
            await asyncio.sleep(arguments.load_seconds)
            await dashboard(served, arguments.images)


if __name__ == "__main__":
    asyncio.run(main())
