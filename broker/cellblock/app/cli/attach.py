"""Commands that speak with a daemon: `connect`, which may start it, `dashboard`, `top`, `restart` and `logs`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin

from cellblock import __version__
from cellblock.app.cli.arguments import DEFAULT_ADDRESS, default_file
from cellblock.app.cli.help import EXIT_OK, EXIT_UNAVAILABLE
from cellblock.app.cli.loading import reading, warn

# Not later: this version may be removed while it relays.
from cellblock.app.cli.start_daemon import DaemonStart
from cellblock.app.cli.streams import say, write_data
from cellblock.base.browser import open_privately
from cellblock.base.daemon_socket import addresses
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.settings.syntax import TOML_SUFFIX, SyntaxFault, parse
from cellblock.base.state_dir import DAEMON_LOG, LOGS, default_state_dir
from cellblock.base.terminal import harmless
from cellblock.serve.http.address import MCP_PATH, config_mark
from cellblock.serve.stdio.connect import relay_stdio
from cellblock.serve.stdio.daemon import Daemon, Link, local_address
from cellblock_worker.base.folders import Folder


def url_of(parsed: argparse.Namespace) -> str:
    """Returns where the daemon is that the options name."""
    return parsed.url or f"http://{DEFAULT_ADDRESS}/mcp"


def found_daemon(parsed: argparse.Namespace, config: str | None = None) -> Daemon:
    """Returns the daemon that the options name.

    Args:
        parsed: The options.
        config: As for `Daemon`.

    Raises:
        ConfigError: The token, or the URL, or the `state_dir` of the configuration cannot be used.
    """
    url, given = url_of(parsed), parsed.token_file
    # Another machine's, whose token is given, needs no state directory of this one.
    known = state_dir_of(parsed) if given is None or local_address(url) is not None else None
    return Daemon(url, state_dir=known, token_file=given, tls_ca=parsed.tls_ca, config=config)


def state_dir_of(parsed: argparse.Namespace) -> Path:
    """Returns the state directory that the options, or else the configuration, name for the daemon. It looks at nothing
    else of the configuration: the secrets of the servers are in the daemon's environment, and not in ours.

    Raises:
        ConfigError: The configuration cannot be read, or this in it.
    """
    if parsed.state_dir is not None:
        return parsed.state_dir.absolute()
    if parsed.config is None:
        return default_state_dir()
    file = Path(parsed.config)
    # Importing the models of settings takes longer than a `connect` has before its client's first answer.
    with contextlib.suppress(OSError, UnicodeDecodeError, SyntaxFault, AttributeError):
        raw: Any = parse(file.read_text(encoding="utf-8-sig"), toml=file.suffix.lower() == TOML_SUFFIX)
        given = raw.get("cellblock", {}).get("state_dir", "")
        if isinstance(given, str) and "$" not in given:
            return Path(given).absolute() if given else default_state_dir()
    from cellblock.app.config.load import state_dir_in

    return state_dir_in(file).absolute()


def daemon_of(parsed: argparse.Namespace) -> Daemon:
    """Returns the daemon that the options name, or else the only one that runs with the state directory."""
    if parsed.url is None and parsed.token_file is None:
        known = addresses(state_dir_of(parsed))
        if len(known) == 1:
            parsed.url = f"http://{known[0]}{MCP_PATH}"
    return found_daemon(parsed)


def connect(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Looks for the daemon that the options name. Returns what relays until the client closes standard input."""
    given = parsed.config is not None and Path(parsed.config) != default_file()
    config = config_mark(parsed.config) if given and not parsed.no_start else None

    find = partial(found_daemon, parsed, config)
    try:
        return _connect(parsed, find, find())
    except ConfigError as error:
        # The client is told, too.
        return _connect(parsed, find, error)


async def _connect(
    parsed: argparse.Namespace, find: Callable[[], Daemon], first: Daemon | ConfigError
) -> int:
    """Relays between the client and the daemon."""

    def found() -> Daemon:
        if isinstance(first, ConfigError):
            raise first
        return first

    async def start() -> Link:
        assert address is not None  # looked at below
        return await DaemonStart(address, state_dir_of(parsed), _options(parsed), find)()

    address = None if parsed.no_start else local_address(url_of(parsed))
    await relay_stdio(found, None if address is None else start, lambda link: _tell_of(link.facts))
    return EXIT_OK


def _tell_of(facts: dict[str, Any] | None) -> None:
    """Tells what a daemon has said of itself that a person should know."""
    if facts is None:
        return
    warn(*facts.get("warnings", ()))
    if (version := facts.get("version")) != __version__:
        warn(
            f"the daemon is of version {version}, and this command of {__version__}. Start it anew for the new "
            "version: `systemctl --user restart cellblock` for a service; another one ends when no editor is connected."
        )


def _options(parsed: argparse.Namespace) -> list[str]:
    """Returns the options that `serve` has, too; it runs in another folder."""
    files = (("--config", parsed.config), ("--token-file", parsed.token_file))
    return [word for name, file in files if file for word in (name, str(Path(file).expanduser().absolute()))]


@reading(daemon_of)
async def dashboard(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Prints the URL of the dashboard, and opens it unless told otherwise."""
    answer: Any = await daemon.ask("POST", "/dashboard/code")
    url = urljoin(daemon.url, answer["path"])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    _tell_of(daemon.facts)
    if not parsed.no_open and sys.stdout.isatty():
        # A browser of the console would take the terminal for itself.
        # The next one takes the file's place; its code is good once, and for a minute.
        await asyncio.to_thread(open_privately, state_dir_of(parsed), "dashboard.html", url)
    return EXIT_OK


RESTART_SECONDS: Final = 60.0
"""Bounds the wait until a server that is started again is connected; the daemon goes on trying."""

LOOK_SECONDS: Final = 0.2
"""Passes between two looks at a log or at a server."""


@reading(daemon_of)
async def restart(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Has the daemon start the server again, and waits for what comes of it."""
    name: str = parsed.server
    path = f"/servers/{quote(name, safe='')}"
    row: Any = await daemon.ask("POST", path, absent=True)
    _tell_of(daemon.facts)
    if row is None:
        raise ConfigError(
            f"The daemon at {daemon.url} has no server {name} that it could start again.",
            hint="`cellblock status` shows those that it has. A disabled one is started by `cellblock enable`.",
        )
    try:
        async with asyncio.timeout(RESTART_SECONDS):
            while row is not None and row["state"] == "connecting":
                await asyncio.sleep(LOOK_SECONDS)
                row = await daemon.ask("GET", path, absent=True)
    except TimeoutError:
        pass
    if row is not None and row["state"] == "ready":
        sys.stdout.write(f"{name} runs again, with {row['tools']} tools.\n")
        return EXIT_OK
    why = "it is gone" if row is None else row["reason"] or row["state"]
    say(f"{name} was ended, and is not connected again: {why}. `cellblock logs {name}` shows what it said.")
    return EXIT_UNAVAILABLE


async def logs(parsed: argparse.Namespace) -> int:
    from cellblock.tools.upstream.stderr_log import upstream_log

    name: str | None = parsed.server
    folder = state_dir_of(parsed) / LOGS
    file = folder / DAEMON_LOG if name is None else upstream_log(folder, name)
    tail = _Tail(file)
    begun = tail.news()
    if begun is None:
        what = "no daemon that `connect` has started" if name is None else f"no server {name} of a daemon"
        raise ConfigError(
            f"There is no log: {what} has had one in {folder}.",
            hint="`cellblock status` names the servers. Is it the daemon's --state-dir?",
        )
    if not begun:
        say("the log is empty: nothing was written to stderr, and no connection has failed")
    lines = begun.splitlines(keepends=True)
    _write("".join(deque(lines, parsed.lines) if parsed.lines else lines))
    try:
        daemon = daemon_of(parsed)
        async with daemon.http() as http:
            await daemon.check(http)
        _tell_of(daemon.facts)
    except CellblockError as error:
        say(f"that is all for now: {error.message}")
    while parsed.follow:
        await asyncio.sleep(LOOK_SECONDS)
        _write(tail.news() or "")
    return EXIT_OK


class _Tail:
    """Reads what is new in a log that is started anew when it is full."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0

    def news(self) -> str | None:
        """Returns the part of the log that was written since the last look; None where there is no log.

        Raises:
            ConfigError: It cannot be read.
        """
        try:
            with Folder.inside(self._file.parent) as folder:
                log = folder.open(self._file.name, os.O_RDONLY)
            with os.fdopen(log, "rb") as file:
                if os.fstat(log).st_size < self._at:
                    self._at = 0
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                f"The log {self._file} cannot be read: {error}.", hint="See whose it is."
            ) from None
        # The first look shows a last line as far as it is written; later ones wait for its end.
        data = data[: data.rfind(b"\n") + 1] if self._at else data
        self._at += len(data)
        return data.decode("utf-8", "replace")


def _write(text: str) -> None:
    if text:
        write_data(harmless(text))
        sys.stdout.flush()
