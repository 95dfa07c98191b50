"""Serve runs the command `serve`: a broker behind an MCP front-end, over stdio or, by `serve_http`, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock import __version__
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import default_file, other_file
from cellblock.app.cli.flows import always_in
from cellblock.app.cli.loading import config_used, settings_of
from cellblock.app.cli.streams import say, warn
from cellblock.app.config.load import behind
from cellblock.app.process_memory import own_process
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import check_state_dir
from cellblock.base.tasks import at_most, in_background, start_daemon
from cellblock.observe.logs import logging_as_configured
from cellblock.serve.stdio.server import stdio_front
from cellblock_worker.base.private_files import Stamp, stamp_of

if TYPE_CHECKING:
    from cellblock.serve.http.server import HttpFrontend


def serve(parsed: argparse.Namespace) -> Coroutine[Any, Any, None]:
    """Reads the settings, and the token of an HTTP front-end. Returns what serves until it is told to stop.

    Raises:
        ConfigError: Options or settings cannot be used.
    """
    hangups = Hangups()
    _check(parsed)

    def load() -> Settings:
        if parsed.config is None and default_file().is_file():
            # `cellblock add` has made it since.
            parsed.config = str(default_file())
        settings = settings_of(parsed).with_profile(parsed.profile)
        if settings.cellblock.frontend.profile == "proxy":
            settings = settings.without_workers()
        return settings if parsed.http is None else settings.for_service()

    settings = load()
    warn(check_state_dir(settings.state_dir))
    if parsed.http is None:
        if sys.stdin.isatty():
            say(_on_terminal(parsed))
        return _serve(parsed, settings, None, load, hangups)
    # The web server takes long to import, and editors that start the daemon over stdio wait for it.
    from cellblock.app.cli.serve_http import front_of

    front = front_of(parsed, settings.cellblock, settings.state_dir)
    return _serve(parsed, settings, front, load, hangups)


def _on_terminal(parsed: argparse.Namespace) -> str:
    """Returns what a person is told who starts by hand what an editor is to start."""
    other = other_file(parsed)
    option = "" if other is None else f" --config {shlex.quote(other)}"
    return "\n  ".join(
        [
            "waiting for an MCP client on standard input, which is a terminal: an editor or agent is to start this.",
            f"configuration: {config_used(parsed)}",
            f"`cellblock install CLIENT{option}` puts it into one (`cellblock help install` names them);",
            "`cellblock serve --http` is a daemon for several; `cellblock run FILE` runs one script. Ctrl-D ends this.",
        ]
    )


def _check(parsed: argparse.Namespace) -> None:
    """Refuses options of HTTP without `--http`."""
    if parsed.http is not None:
        if parsed.stdio:
            raise ConfigError("--stdio and --http exclude each other.", hint="Start one daemon for each.")
        return
    for name in ("no_auth", "token_file", "until_idle", "tls_cert", "tls_key"):
        if getattr(parsed, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is of use only with --http.", hint="Add --http HOST:PORT."
            )


async def _serve(
    parsed: argparse.Namespace,
    settings: Settings,
    front: HttpFrontend | None,
    load: Callable[[], Settings],
    hangups: Hangups,
) -> None:
    own_process()
    with logging_as_configured(settings.cellblock.log, settings.servers.values()):
        if front is not None:
            from cellblock.app.cli.serve_http import serve_http

            await serve_http(front, settings, parsed, load, hangups)
            return
        broker = Broker(settings)
        # What it takes to run scripts is imported and started while the client reads its greeting.
        async with (
            stdio_front(broker, version=__version__) as until_gone,
            broker.begun(),
            following(broker, parsed, load, hangups),
        ):
            await until_gone(broker.host_started())


CHECK_SECONDS: Final = 2.0
"""Passes between two looks at the configuration file; one takes some 20 microseconds. inotify would need a library, and
misses network file systems."""

SETTLE_SECONDS: Final = 0.2
"""Bounds the time in which a file that changes is still being written."""

TAKING_OVER_SECONDS: Final = 3.0
"""Bounds how long whoever asks waits for a change of the file to be in force; a keyring may take longer."""

SETTLE_POLLS: Final = 25
"""Bounds the looks after which a file is read that never comes to rest."""

Stamps = tuple[Stamp | None, ...]


class Hangups:
    """Hangups takes SIGHUP of a daemon for an order to reload, and keeps one that comes while the daemon starts.

    Where there is a terminal, SIGHUP says that it is gone: that is no such order, and is left alone.
    """

    def __init__(self) -> None:
        self._kept = False
        self.end: Final = any(os.isatty(descriptor) for descriptor in (0, 2))
        """Says whether SIGHUP ends the daemon."""
        if not self.end:
            signal.signal(signal.SIGHUP, self._keep)

    def obey(self, reload: Callable[[], None]) -> None:
        """Has the running loop call `reload` at each SIGHUP from now on, and at once if one has come before."""
        if not self.end:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
            if self._kept:
                reload()

    def _keep(self, *_: object) -> None:
        self._kept = True


@contextlib.asynccontextmanager
async def following(
    broker: Broker, parsed: argparse.Namespace, load: Callable[[], Settings], hangups: Hangups
) -> AsyncGenerator[Callable[[], Awaitable[str | None]]]:
    """Takes over changes of the file while the block runs, and gives what says why the file as it is now is not all in
    force, None where it is. Without one, it is the user's own once that is made."""
    file = default_file() if parsed.config is None else Path(parsed.config)
    broker.on_always = always_in(parsed.config)
    # A pipe has said what it had to say.
    if parsed.config is not None and not file.is_file():
        why = f"{file} is no regular file"
        hangups.obey(lambda: say(f"configuration: there is nothing to read again: {why}"))

        async def never() -> str:
            return why

        yield never
        return
    watch = _Watch(file, broker, load)
    hangups.obey(watch.reload)
    async with in_background(watch.run(), name="config watch"):
        yield watch.why_behind


class _Watch:
    """Looks at a configuration file and at the files that its references name."""

    def __init__(self, path: Path, broker: Broker, load: Callable[[], Settings]) -> None:
        self._path = path
        self._files = broker.settings.files
        self._broker = broker
        self._load = load
        self._wanted = False
        self._woken, self._looked = asyncio.Event(), asyncio.Event()
        self._looked.set()
        self._seen = self._stamp()
        self._why: str | None = None

    def reload(self) -> None:
        """Has the file read at once, changed or not."""
        self._wanted = True
        self._woken.set()

    async def why_behind(self) -> str | None:
        """Says why the broker has not taken over the whole of the file as it is now; None where it has. A change that
        has not been seen yet is taken over first."""
        if self._stamp() != self._seen:
            self._looked.clear()
            self._woken.set()
        async with at_most(TAKING_OVER_SECONDS):
            await self._looked.wait()
        return self._why or (None if self._stamp() == self._seen else "it has just changed")

    async def run(self) -> None:
        while True:
            async with at_most(CHECK_SECONDS):
                await self._woken.wait()
            self._woken.clear()
            wanted, self._wanted = self._wanted, False
            if wanted or self._stamp() != self._seen:
                self._looked.clear()
                await self._at_rest()
                await self._reload(wanted)
            self._looked.set()

    async def _at_rest(self) -> None:
        for _ in range(SETTLE_POLLS):
            before = self._stamp()
            await asyncio.sleep(SETTLE_SECONDS)
            if self._stamp() == before:
                return

    async def _reload(self, wanted: bool) -> None:
        # Before it is read: what is written meanwhile is noticed at the next look.
        self._seen, self._why = self._stamp(), "it is being read"
        try:
            # Opening a pipe that has taken its place would wait for a writer, and everybody else with it.
            if self._path.exists() and not self._path.is_file():
                raise ConfigError(f"{self._path} is no regular file any more.", hint="Put the file back.")
            # A keyring that a reference names may take seconds.
            settings = await asyncio.wrap_future(start_daemon("cellblock-reload", self._load))
            changes = self._broker.reconfigure(settings)
        except (CellblockError, OSError) as error:
            self._why = str(error)
            say(f"the configuration is not taken over, and the old one stays in force: {error}")
            return
        # What needs a restart has its old value.
        self._why = behind(self._broker.settings, settings) or None
        if settings.files != self._files:
            self._files = settings.files
            self._seen = self._stamp()
        for sentence in changes:
            say(f"configuration: {sentence}")
        if wanted and not changes:
            say("configuration: nothing has changed")

    def _stamp(self) -> Stamps:
        return tuple(stamp_of(file, follow=True) for file in (self._path, *self._files))
