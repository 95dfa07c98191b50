"""Attach runs the commands that speak with a daemon: `connect`, which may start it, `dashboard` and `top`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import webbrowser
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.cli.arguments import DEFAULT_ADDRESS, default_file
from cellblock.cli.help import EXIT_OK
from cellblock.cli.loading import reading, warn
from cellblock.cli.streams import write_json
from cellblock.config.file.plain_state_dir import default_state_dir, plain_state_dir
from cellblock.frontend.http.address import config_mark
from cellblock.frontend.http.token import FILE_NAME
from cellblock.frontend.relay.channel import CONNECT_SECONDS, Broken, whole
from cellblock.frontend.stdio.connect import Daemon, DaemonUnavailable, relay_stdio, startable_address

if TYPE_CHECKING:
    from cellblock.config.settings import Settings


class Found(NamedTuple):
    """Pairs a daemon with what tells the user what is wrong with the configuration."""

    daemon: Daemon
    warn: Callable[[], None]


def url_of(parsed: argparse.Namespace) -> str:
    """Returns where the daemon is that the options name."""
    return parsed.url or f"http://{DEFAULT_ADDRESS}/mcp"


def found_daemon(
    parsed: argparse.Namespace, config: str | None = None, *, makes_token: bool = False
) -> Found:
    """Returns the daemon that the options name; its token is read.

    Args:
        parsed: The options.
        config: As for `Daemon`.
        makes_token: Whether the daemon makes a token file that is not there yet.

    Raises:
        ConfigError: The token, or the URL, or the `state_dir` of the configuration cannot be used.
    """
    given: Path | None = parsed.token_file
    file = state_dir_of(parsed) / FILE_NAME if given is None else given

    def warn_all() -> None:
        if parsed.config is not None:
            warn(*_needed(parsed)[1])

    # A daemon with --no-auth has none; one that wants a token will say so.
    optional = given is None or makes_token
    daemon = Daemon(
        url_of(parsed),
        token_file=file,
        token_optional=optional,
        own=given is None,
        tls_ca=parsed.tls_ca,
        config=config,
    )
    return Found(daemon, warn_all)


def _needed(parsed: argparse.Namespace) -> tuple[Settings, list[str]]:
    from cellblock.cli.config_needed import load_needed

    return load_needed(
        parsed.config, state_dir=parsed.state_dir, has_token_file=parsed.token_file is not None
    )


def state_dir_of(parsed: argparse.Namespace) -> Path:
    """Returns the state directory that the options, or else the configuration, name for the daemon.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    folder: Path | None = parsed.state_dir
    if folder is None:
        folder = default_state_dir() if parsed.config is None else plain_state_dir(parsed.config)
    return _needed(parsed)[0].state_dir if folder is None else folder.absolute()


def daemon_of(parsed: argparse.Namespace) -> Daemon:
    """Returns the daemon that the options name, and tells the user at once what is wrong with the configuration."""
    found = found_daemon(parsed)
    found.warn()
    return found.daemon


def connect(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the token of the daemon. Returns what relays until the client closes standard input."""
    given = parsed.config is not None and Path(parsed.config) != default_file()
    config = config_mark(parsed.config) if given and not parsed.no_start else None

    def find() -> Found:
        return found_daemon(parsed, config, makes_token=not parsed.no_start)

    try:
        return _connect(parsed, find, find())
    except ConfigError as error:
        # The client is told, too.
        return _connect(parsed, find, error)


async def _connect(parsed: argparse.Namespace, find: Callable[[], Found], first: Found | ConfigError) -> int:
    """Relays between the client and the daemon. What is wrong with the configuration is looked for when the client has
    its first answer, or when all is over.
    """
    looking: list[asyncio.Future[None]] = []

    def look() -> None:
        if not looking and isinstance(first, Found):
            looking.append(asyncio.get_running_loop().run_in_executor(None, first.warn))

    async def tell() -> None:
        with contextlib.suppress(ConfigError):
            # The token of a daemon that was started meanwhile is a new one.
            await tell_not_started(find().daemon)

    def answered() -> None:
        look()
        looking.append(asyncio.ensure_future(tell()))

    def found() -> Daemon:
        if isinstance(first, ConfigError):
            raise first
        return first.daemon

    async def start() -> Daemon:
        from cellblock.cli.start_daemon import DaemonStart

        assert address is not None  # looked at below
        return await DaemonStart(address, state_dir_of(parsed), _options(parsed), lambda: find().daemon)()

    address = None if parsed.no_start else startable_address(url_of(parsed))
    try:
        await relay_stdio(found, on_answer=answered, start=None if address is None else start)
    finally:
        look()
        await asyncio.gather(*looking)
    return EXIT_OK


def _options(parsed: argparse.Namespace) -> list[str]:
    """Returns the options that `serve` has, too; it runs in another folder."""
    files = (("--config", parsed.config), ("--token-file", parsed.token_file))
    return [word for name, file in files if file for word in (name, str(Path(file).expanduser().absolute()))]


@reading(daemon_of)
async def dashboard(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Prints the URL of the dashboard, and opens it unless told otherwise."""
    answer: Any = await ask_daemon(daemon, "POST", "/dashboard/code")
    url = urljoin(daemon.url, answer["path"])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    await tell_not_started(daemon)
    if not parsed.no_open and sys.stdout.isatty():
        # A browser of the console would take the terminal for itself.
        await asyncio.to_thread(webbrowser.open, url)
    return EXIT_OK


@reading(daemon_of)
async def top(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Shows the daemon until the user has seen enough."""
    from cellblock.base.terminal import Painter
    from cellblock.cli.top import render, watch

    if parsed.json and not parsed.once:
        raise ConfigError("--json is of use only with --once.", hint="Add --once.")

    async def ask() -> Any:
        return await ask_daemon(daemon, "GET", "/dashboard/state")

    if parsed.once:
        await tell_not_started(daemon)
    if parsed.json:
        write_json(await ask())
    elif parsed.once or not sys.stdout.isatty():
        width = max(40, shutil.get_terminal_size((120, 24)).columns)
        lines = render(await ask(), width, 0, Painter(sys.stdout))
        sys.stdout.write("\n".join(line.rstrip() for line in lines) + "\n")
    else:
        await watch(ask)
    return EXIT_OK


async def tell_not_started(daemon: Daemon) -> None:
    """Tells which servers the daemon does not start, since its environment lacks what their entries refer to."""
    # Who may not know, and a daemon of another version, are told nothing.
    with contextlib.suppress(CellblockError, TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            answer: Any = await ask_daemon(daemon, "GET", "/servers/", absent=True)
        for name, why in answer["not_started"].items() if answer is not None else ():
            warn(
                f"the daemon does not start the server {name}: {why}. Set it where the daemon runs; for a variable, "
                "start the daemon anew."
            )


async def ask_daemon(daemon: Daemon, method: str, path: str, *, absent: bool = False) -> Any:
    """Returns what the daemon answers; with `absent`, None for what it does not know."""
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
        if status == 403:
            raise DaemonUnavailable(
                f"The daemon at {daemon.url} does not show its dashboard to this token.",
                hint="Use the token of its token file: a named one does not open it.",
            )
        raise DaemonUnavailable(
            f"The daemon at {daemon.url} answers with status {status}.", hint="Try again in a moment."
        )
