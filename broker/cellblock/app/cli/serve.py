"""Serve runs the command `serve`: a broker behind an MCP front-end, over stdio or, by `serve_http`, over HTTP."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock import __version__
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.loading import config_used, settings_of, warn
from cellblock.app.cli.reload import Hangups, following
from cellblock.app.cli.streams import say
from cellblock.app.process_memory import FirstCollection
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import check_state_dir
from cellblock.observe.logs import logging_as_configured
from cellblock.serve.stdio.server import StdioFront

if TYPE_CHECKING:
    from cellblock.serve.http.server import HttpFrontend

SWITCH_SECONDS: Final = 0.001
"""Bounds how long a thread that computes keeps Python from the event loop, which asks for it anew after each read and
write: with Python's own 5 ms, a run beside a large result of a Python tool takes 0.1 s."""


def serve(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
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
    named = Path(parsed.config or default_file()) != default_file()
    option = f" --config {shlex.quote(parsed.config)}" if named else ""
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
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is of use only with --http.", hint="Add --http HOST:PORT.")


def own_process() -> None:
    """Sets Python up for a process that is the broker's alone."""
    FirstCollection.freezes = True
    sys.setswitchinterval(SWITCH_SECONDS)


async def _serve(
    parsed: argparse.Namespace,
    settings: Settings,
    front: HttpFrontend | None,
    load: Callable[[], Settings],
    hangups: Hangups,
) -> int:
    section = settings.cellblock
    own_process()
    with logging_as_configured(section.log, settings.servers.values(), section.traces.headers.values()):
        if front is not None:
            from cellblock.app.cli.serve_http import serve_http

            await serve_http(front, settings, parsed, load, hangups)
            return EXIT_OK
        broker = Broker(settings)
        async with StdioFront(broker, version=__version__) as stdio:
            # What it takes to run scripts is imported and started while the client reads its greeting.
            await stdio.greeted()
            async with broker.begun(), following(broker, parsed, load, hangups), stdio.opened():
                await stdio.ended(unless=broker.host_started())
    return EXIT_OK
