"""`connect`, which starts a daemon where none runs: one, however many editors want it at once.

A lock file of the address is held by whoever starts a daemon, and then by the daemon itself, which inherits it: so it
is free exactly when no daemon of that address starts, runs or ends, whoever was killed when.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock import __version__
from cellblock.app.cli.arguments import DEFAULT_ADDRESS, other_file
from cellblock.app.cli.streams import warn
from cellblock.base.settings.syntax import TOML_SUFFIX, SyntaxFault, parse
from cellblock.base.state_dir import DAEMON_LOG, LOGS, default_state_dir, in_the_way, prepare_state_dir
from cellblock.serve.http.address import config_mark
from cellblock.serve.stdio.connect import relay_stdio
from cellblock.serve.stdio.daemon import (
    DOES_NOT_START,
    Daemon,
    DaemonUnavailable,
    Link,
    NoSocket,
    NotThere,
    is_taken,
    local_address,
)
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.launch.spawning import passed_environment

START_SECONDS: Final = 60.0
"""Bounds the time until a daemon serves, which takes a second, or until one that ends has ended."""

POLL_SECONDS: Final = 0.05
"""Passes between two questions whether the daemon serves."""

MAX_TAKEN: Final = 20
"""Bounds the looks at which somebody listens at the address, and no daemon of ours on its socket: one that is just
killed may leave it so for a moment."""

SHOWN_BYTES: Final = 2_000
"""Caps what is shown of the log of a daemon that does not come up."""

_DETACHED: Final = ("/bin/sh", "-c", '"$@" &', "sh")
"""Starts a program as nobody's child: editors end what they have started with all below it."""


async def connect(parsed: argparse.Namespace) -> None:
    """Relays between the client and the daemon that the options name, until the client closes standard input."""
    given = None if parsed.no_start else other_file(parsed)
    find = partial(found_daemon, parsed, None if given is None else config_mark(given))
    address = None if parsed.no_start else local_address(url_of(parsed))

    async def start(address: str) -> Link:
        return await DaemonStart(address, state_dir_of(parsed), _options(parsed), find)()

    await relay_stdio(
        find, None if address is None else partial(start, address), lambda link: tell_of(link.facts)
    )


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


def tell_of(facts: dict[str, Any] | None, server: str | None = None) -> None:
    """Tells what a daemon has said of itself that a person should know; of servers that it does not start, where one is
    named, that one alone."""
    if facts is None:
        return
    told, own = facts.get("warnings", ()), f"{DOES_NOT_START}{server}:"
    warn(*(one for one in told if server is None or one.startswith(own) or DOES_NOT_START not in one))
    if (version := facts.get("version")) != __version__:
        warn(
            f"the daemon is of version {version}, and this command of {__version__}. Start it anew for the new "
            "version: `systemctl --user restart cellblock` for a service; another one ends when no editor is connected."
        )


def _options(parsed: argparse.Namespace) -> list[str]:
    """Returns the options that `serve` has, too; it runs in another folder."""
    files = (("--config", parsed.config), ("--token-file", parsed.token_file))
    return [word for name, file in files if file for word in (name, str(Path(file).expanduser().absolute()))]


def _program() -> list[str]:
    """Returns what starts Cellblock: what has taken its place where this process's version was removed meanwhile."""
    if not (Path(sys.executable).exists() and Path(__file__).exists()):
        installed = shutil.which(sys.argv[0]) or shutil.which("cellblock")
        if installed is not None:
            return [installed]
    return [sys.executable, "-P", "-m", "cellblock.cli"]


class DaemonStart:
    """Has a daemon run.

    Args:
        address: `HOST:PORT`, of the loopback.
        state_dir: Its state directory, which has its lock and its log.
        options: Further options of `serve`.
        find: Says where it is, and with which token.
    """

    def __init__(
        self, address: str, state_dir: Path, options: Sequence[str], find: Callable[[], Daemon]
    ) -> None:
        self._address, self._state_dir = address, state_dir
        self._options, self._find = options, find

    async def __call__(self) -> Link:
        """Returns a connection with a daemon that serves, and has taken us.

        Raises:
            DaemonUnavailable: It does not come up, or something else has its address.
            ConfigError: The state directory, or the daemon that runs there, cannot be used.
        """
        prepare_state_dir(self._state_dir)
        began: int | None = None
        taken = 0
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    lock = self._taken()
                    try:
                        return await self._find().linked()
                    except NoSocket:
                        # A daemon listens on its socket before it does so at its address, and after.
                        if await is_taken(self._address):
                            taken += 1
                            if taken > MAX_TAKEN:
                                raise await self._find().socketless() from None
                        elif lock is not None and began is not None:
                            raise self._failed("did not come up", began) from None
                        elif lock is not None:
                            began = self._start(lock)
                    except NotThere:
                        pass
                    finally:
                        if lock is not None:
                            os.close(lock)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise self._failed(f"does not serve after {START_SECONDS:g} s", began) from None
        except InTheWay as error:
            raise in_the_way(error) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise DaemonUnavailable(
                f"No daemon can be started: {error}.",
                hint="Use a --state-dir on a local disk, or start it yourself with `cellblock serve --http`.",
            ) from None

    # ---- inside ------------------------------------------------------------------------------------------

    def _taken(self) -> int | None:
        """Takes the lock of starting a daemon; None while a daemon has it, or is given it."""
        with Folder.named(self._state_dir) as folder:
            lock = folder.open(f"daemon-{self._address.replace(':', '-')}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return lock

    def _start(self, lock: int) -> int:
        """Starts the daemon, with the lock as its own. Returns where its words begin in the log."""
        words = [*_program(), "serve", "--http", self._address, "--until-idle"]
        words += ["--state-dir", str(self._state_dir), *self._options]
        with (
            Folder.inside(self._state_dir / LOGS) as folder,
            os.fdopen(
                folder.open(DAEMON_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, alone=True), "ab"
            ) as log,
        ):
            began = os.fstat(log.fileno()).st_size
            home = Path.home()
            subprocess.run(
                [*_DETACHED, *words],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **passed_environment()},
                # Not the editor's, which may be an archive's that goes.
                cwd=home if home.is_dir() else "/",
                pass_fds=[lock],
                start_new_session=True,
                timeout=START_SECONDS,
            )
        return began

    def _failed(self, what: str, began: int | None) -> DaemonUnavailable:
        said = "" if began is None else self._said(began)
        return DaemonUnavailable(
            f"The daemon for {self._address} {what}{': ' if said else '.'}{said}",
            hint=f"Its log is {self._state_dir / LOGS / DAEMON_LOG}.",
        )

    def _said(self, began: int) -> str:
        """Returns the end of the daemon's log."""
        try:
            with (
                Folder.inside(self._state_dir / LOGS) as folder,
                os.fdopen(folder.open(DAEMON_LOG, os.O_RDONLY), "rb") as file,
            ):
                size = os.fstat(file.fileno()).st_size
                file.seek(max(began if began <= size else 0, size - SHOWN_BYTES))
                return file.read(SHOWN_BYTES).decode("utf-8", "replace").strip().removeprefix("cellblock: ")
        except OSError:
            return ""
