"""Attach runs the commands that need a daemon which runs already: `connect`, `dashboard` and `top`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urljoin

from cellblock.base.errors import ConfigError
from cellblock.cli.arguments import DEFAULT_ADDRESS
from cellblock.cli.help import EXIT_OK
from cellblock.cli.loading import reading, warn
from cellblock.cli.streams import write_json
from cellblock.config.file.plain_state_dir import default_state_dir, plain_state_dir
from cellblock.frontend.http.token import FILE_NAME
from cellblock.frontend.relay.channel import Broken, whole
from cellblock.frontend.stdio.connect import Daemon, DaemonUnavailable, relay_stdio

if TYPE_CHECKING:
    from cellblock.config.settings import Settings


class Found(NamedTuple):
    """Found is a daemon, and what tells the user what is wrong with the configuration beside."""

    daemon: Daemon
    warn: Callable[[], None]


def found_daemon(parsed: argparse.Namespace) -> Found:
    """Returns the daemon that the options name; its token is read.

    Raises:
        ConfigError: The token, or the URL, or the `state_dir` of the configuration cannot be used.
    """
    given: Path | None = parsed.token_file

    def needed() -> tuple[Settings, list[str]]:
        from cellblock.cli.config_needed import load_needed

        return load_needed(parsed.config, state_dir=parsed.state_dir, has_token_file=given is not None)

    def warn_all() -> None:
        if parsed.config is not None:
            warn(*needed()[1])

    file = given
    if file is None:
        folder: Path | None = parsed.state_dir
        if folder is None:
            folder = default_state_dir() if parsed.config is None else plain_state_dir(parsed.config)
        file = (needed()[0].state_dir if folder is None else folder.absolute()) / FILE_NAME
    url = parsed.url or f"http://{DEFAULT_ADDRESS}/mcp"
    # A daemon with --no-auth has none; one that wants a token will say so.
    return Found(Daemon(url, token_file=file, token_optional=given is None, tls_ca=parsed.tls_ca), warn_all)


def daemon_of(parsed: argparse.Namespace) -> Daemon:
    """Returns the same daemon; what is wrong with the configuration is told at once."""
    found = found_daemon(parsed)
    found.warn()
    return found.daemon


@reading(found_daemon)
async def connect(_: argparse.Namespace, found: Found) -> int:
    """Relays until the client closes standard input.

    What is wrong with the configuration is looked for when the client has its first answer, or when all is over.
    """
    looking: list[asyncio.Future[None]] = []

    def look() -> None:
        if not looking:
            looking.append(asyncio.get_running_loop().run_in_executor(None, found.warn))

    try:
        await relay_stdio(found.daemon, on_answer=look)
    finally:
        look()
        await looking[0]
    return EXIT_OK


@reading(daemon_of)
async def dashboard(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Prints the URL of the dashboard, and opens it unless told otherwise."""
    answer: Any = await _ask(daemon, "POST", "/dashboard/code")
    url = urljoin(daemon.url, answer["path"])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    if not parsed.no_open and sys.stdout.isatty():
        # A browser of the console would take the terminal for itself.
        await asyncio.to_thread(webbrowser.open, url)
    return EXIT_OK


@reading(daemon_of)
async def top(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Shows the daemon until the user has seen enough."""
    from cellblock.base.terminal import Painter
    from cellblock.cli.top.overview import render
    from cellblock.cli.top.screen import watch

    if parsed.json and not parsed.once:
        raise ConfigError("--json is of use only with --once.", hint="Add --once.")

    async def ask() -> Any:
        return await _ask(daemon, "GET", "/dashboard/state")

    async def ask_run(run_id: str) -> Any:
        return await _ask(daemon, "GET", f"/dashboard/runs/{quote(run_id, safe='')}", absent=True)

    if parsed.json:
        write_json(await ask())
    elif parsed.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        width = max(40, shutil.get_terminal_size((120, 24)).columns)
        lines = render(await ask(), width, 0, Painter(sys.stdout))
        sys.stdout.write("\n".join(line.rstrip() for line in lines) + "\n")
    else:
        await watch(ask, ask_run)
    return EXIT_OK


async def _ask(daemon: Daemon, method: str, path: str, *, absent: bool = False) -> Any:
    """Returns what the daemon answers; with `absent`, None for what it does not remember."""
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
            f"The daemon at {daemon.url} answers with status {status}.", hint="Try again in a moment."
        )
