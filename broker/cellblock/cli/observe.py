"""The commands that look at a running daemon: `dashboard` and `top`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import webbrowser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import json_text
from cellblock.cli.http import add_daemon_options
from cellblock.cli.options import Commands, add_common, add_json
from cellblock.cli.streams import write_data

if TYPE_CHECKING:
    from cellblock.frontend.stdio.connect import Daemon


def add_parsers(commands: Commands) -> None:
    """The two commands."""
    dashboard = commands.add_parser(
        "dashboard",
        help="open the page of a running daemon in the browser",
        description="Prints a URL that is good for one login within a minute, and opens it in the browser where there "
        "is one. The daemon is a `cellblock serve --http`.",
    )
    dashboard.add_argument("--no-open", action="store_true", help="only print the URL")
    top = commands.add_parser(
        "top",
        help="show a running daemon in the terminal",
        description="Shows pool, queue, latencies, servers and runs of a running `cellblock serve --http`. The arrow "
        "keys or j and k select a run, Enter opens it: its timeline, calls, diagnostics and console output. s shows "
        "what is known of the servers' tools, ? all keys, Esc goes back, q quits.",
    )
    top.add_argument(
        "--once", action="store_true", help="print it once and exit (as when output is no terminal)"
    )
    add_json(top, "with --once: print JSON")
    for parser in (dashboard, top):
        add_daemon_options(parser)
        add_common(parser)


async def dashboard(parsed: argparse.Namespace, daemon: Daemon) -> None:
    """Prints the URL, and opens it unless told otherwise."""
    given: Any = await _ask(daemon, "POST", "/dashboard/code")
    url = urljoin(daemon.url, given["path"])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    if not parsed.no_open and sys.stdout.isatty():
        # A browser of the console would take the terminal for itself.
        await asyncio.to_thread(webbrowser.open, url)


async def top(parsed: argparse.Namespace, daemon: Daemon) -> None:
    """Shows the daemon until the user has seen enough."""
    from cellblock.base.terminal import Painter
    from cellblock.cli.top.overview import render
    from cellblock.cli.top.screen import watch

    if parsed.json and not parsed.once:
        raise ConfigError("--json is of use only with --once.", hint="Add --once.")

    async def ask() -> Any:
        return await _ask(daemon, "GET", "/dashboard/state")

    if parsed.json:
        write_data(json_text(await ask()) + "\n")
    elif parsed.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        width = max(40, shutil.get_terminal_size((120, 24)).columns)
        lines = render(await ask(), width, 0, Painter(sys.stdout))
        sys.stdout.write("\n".join(line.rstrip() for line in lines) + "\n")
    else:
        await watch(ask, lambda run_id: _ask_run(daemon, run_id))


async def _ask_run(daemon: Daemon, run_id: str) -> Any:
    """One run; None when the daemon no longer remembers it."""
    return await _ask(daemon, "GET", f"/dashboard/runs/{quote(run_id, safe='')}", absent=True)


async def _ask(daemon: Daemon, method: str, path: str, *, absent: bool = False) -> Any:
    """What the daemon answers; with `absent`, None for what it has not."""
    from cellblock.frontend.relay.channel import Broken, whole
    from cellblock.frontend.stdio.connect import DaemonUnavailable

    async with daemon.channel() as channel:
        try:
            async with channel.ask(method, urljoin(daemon.url, path)) as answer:
                status, body = answer.status, await whole(answer)
        except Broken as error:
            raise daemon.gone(str(error)) from None
        if status == 200:
            with contextlib.suppress(ValueError):
                return json.loads(body)
            raise DaemonUnavailable(f"{daemon.url} is no Cellblock daemon.", hint="Check --url.")
        if status == 404 and absent:
            return None
        if status == 404:
            raise DaemonUnavailable(
                f"The daemon at {daemon.url} has no dashboard.",
                hint="Set cellblock.dashboard.enabled to true in its configuration.",
            )
        await daemon.check(channel)
        raise DaemonUnavailable(
            f"The daemon at {daemon.url} answers with status {status}.",
            hint="Try again in a moment.",
        )
