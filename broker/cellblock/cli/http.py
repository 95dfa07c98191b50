"""The commands of the HTTP front-end: `serve --http`, `connect` and `service`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cellblock import __version__
from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import harmless
from cellblock.cli.options import Commands, add_common

if TYPE_CHECKING:
    from cellblock.cli.signals import Hangups
    from cellblock.config.settings import Settings
    from cellblock.daemon.broker import Broker
    from cellblock.frontend.http.pages import Pages
    from cellblock.frontend.http.server import HttpFrontend
    from cellblock.frontend.stdio.connect import Daemon

DEFAULT_ADDRESS: Final = "127.0.0.1:7433"
"""Where `serve --http` listens and `connect` looks when nothing else is said."""


def add_serve_options(serve: argparse.ArgumentParser) -> None:
    """The options of `serve` that are about HTTP."""
    serve.add_argument(
        "--http",
        nargs="?",
        const=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"over streamable HTTP, at the path /mcp (default {DEFAULT_ADDRESS}; port 0: any free one)",
    )
    serve.add_argument("--no-auth", action="store_true", help="ask for no token; on the loopback only")
    _token_file(serve)
    _certificate(serve, "PEM certificate chain")


def add_parsers(commands: Commands) -> None:
    """The commands beside `serve`."""
    connect = commands.add_parser(
        "connect",
        help="be the stdio end of a daemon that runs already",
        description="Relays MCP between standard input and output and a running `cellblock serve --http`, so that "
        "several editors share its workers and its upstream servers.",
    )
    add_daemon_options(connect)
    add_common(connect)

    service = commands.add_parser(
        "service",
        help="print a systemd unit or a launchd plist that runs the daemon",
        description="Prints what makes `cellblock serve --http` a service of the user, and where to put it.",
    )
    kind = service.add_mutually_exclusive_group()
    kind.add_argument("--systemd", action="store_true", help="a systemd user unit (the default on Linux)")
    kind.add_argument("--launchd", action="store_true", help="a launchd agent (the default on macOS)")
    _address(service, "where it listens")
    add_common(service)


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """What `serve --http` would be given, to be looked at."""
    _address(parser, "where a daemon serves or is to serve")
    _certificate(parser, "PEM certificate chain that it is to use")


def add_daemon_options(parser: argparse.ArgumentParser) -> None:
    """Where a running daemon is, and what it is shown."""
    parser.add_argument("--url", metavar="URL", help=f"of the daemon (default http://{DEFAULT_ADDRESS}/mcp)")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM certificates to trust for https")
    _token_file(parser)


def _address(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "--http",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"{meaning} (default {DEFAULT_ADDRESS})",
    )


def _certificate(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help=meaning)
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")


def _token_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="where the token is (default: `token` in the state dir)",
    )


def check_serve(parsed: argparse.Namespace) -> None:
    """Refuses options of HTTP without `--http`.

    Raises:
        ConfigError: One is given.
    """
    if parsed.http is not None:
        if parsed.stdio:
            raise ConfigError("--stdio and --http exclude each other.", hint="Start one daemon for each.")
        return
    for name in ("no_auth", "token_file", "tls_cert", "tls_key"):
        if getattr(parsed, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is of use only with --http.", hint="Add --http HOST:PORT.")


def front_of(parsed: argparse.Namespace, settings: Settings) -> HttpFrontend:
    """The front-end that the options of `serve` name; its token is read, and its address taken.

    Raises:
        ConfigError: As `HttpFrontend`.
    """
    from cellblock.base.state_dir import check_state_dir
    from cellblock.frontend.http.address import Address
    from cellblock.frontend.http.server import HttpFrontend, HttpOptions

    # Before a token is read there, or made; the broker prepares it.
    check_state_dir(settings.state_dir)
    options = HttpOptions(
        address=Address.parse(parsed.http),
        token_file=parsed.token_file or token_file(settings),
        no_auth=parsed.no_auth,
        tls_cert=parsed.tls_cert,
        tls_key=parsed.tls_key,
    )
    return HttpFrontend(settings.cellblock.http, options)


async def serve(
    parsed: argparse.Namespace,
    settings: Settings,
    front: HttpFrontend,
    load: Callable[[], Settings],
    hangups: Hangups,
) -> None:
    """Serves over HTTP until SIGTERM or SIGINT, then drains; a second one kills what is left.

    Args:
        parsed: The options of `serve`.
        settings: As `load` has given them.
        front: Ours from now on.
        load: Reads the settings again, whenever their file has changed.
        hangups: Orders to do so.
    """
    from cellblock.cli.reload import following
    from cellblock.daemon.broker import Broker

    try:
        async with Broker(settings) as broker:
            warm = settings.cellblock.pool.warm

            def ready() -> bool:
                return bool(broker.hosts) and (broker.warm_workers > 0 or warm == 0)

            _drain_on_signals(front, hangups)
            async with following(broker, parsed, load, hangups):
                await front.serve(
                    broker,
                    version=__version__,
                    ready=ready,
                    on_serving=lambda: _say_where(front),
                    pages=_pages(broker, encrypted=parsed.tls_cert is not None),
                )
                if front.hurried:
                    # The exit code says that it was not left to end by itself.
                    raise asyncio.CancelledError
    finally:
        front.close()


def _pages(broker: Broker, *, encrypted: bool) -> Pages | None:
    """The dashboard and the metrics, and what they count from; None where both are off."""
    from cellblock.frontend.http.pages import Pages
    from cellblock.telemetry.board import Board
    from cellblock.telemetry.metrics import Metrics
    from cellblock.telemetry.tally import Tally
    from cellblock.telemetry.view import View

    section = broker.settings.cellblock
    dashboard = section.dashboard
    shown = section.http.oauth is None if dashboard.enabled is None else dashboard.enabled
    if not shown and not section.metrics.enabled:
        return None
    tally = Tally(section.metrics.max_tools)
    broker.events.add(tally)
    view = None
    if shown:
        board = Board(dashboard.recent_runs, logs=dashboard.logs)
        broker.events.add(board)
        view = View(broker.facts(), tally, board, __version__)
    metrics = Metrics(tally, broker.facts()) if section.metrics.enabled else None
    return Pages(view, metrics, open_metrics=not section.metrics.token, secure=encrypted)


def _say_where(front: HttpFrontend) -> None:
    sys.stderr.write(f"cellblock: serving {front.url}\ncellblock: {front.protection}\n")
    sys.stderr.flush()


def _drain_on_signals(front: HttpFrontend, hangups: Hangups) -> None:
    """The first signal drains; the second one ends what is in flight; the next one cancels this task at once, and with
    it everything."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    told = False

    def on_signal() -> None:
        nonlocal told
        if told:
            if not front.hurry():
                task.cancel()
            return
        told = True
        sys.stderr.write("cellblock: stopping when the runs in flight have ended; again kills them\n")
        sys.stderr.flush()
        front.stop()

    for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangups.end else [])):
        loop.add_signal_handler(number, on_signal)


async def connect(found: Found) -> None:
    """Relays until the client closes standard input. What is wrong with the configuration is looked for when the client
    has its first answer, or when all is over."""
    from cellblock.frontend.stdio.connect import relay_stdio

    warning: asyncio.Future[None] | None = None

    def warn() -> None:
        nonlocal warning
        warning = warning or asyncio.get_running_loop().run_in_executor(None, found.warn)

    try:
        await relay_stdio(found.daemon, on_answer=warn)
    finally:
        warn()
        await cast("asyncio.Future[None]", warning)


class Found(NamedTuple):
    """A daemon, and what tells the user what is wrong with the configuration beside."""

    daemon: Daemon
    warn: Callable[[], None]


def found_daemon(parsed: argparse.Namespace) -> Found:
    """The daemon that the options of `add_daemon_options` name; its token is read.

    Raises:
        ConfigError: The token, or the URL, or the `state_dir` of the configuration cannot be used.
    """
    from cellblock.config.file.plain_state_dir import default_state_dir, plain_state_dir
    from cellblock.frontend.stdio.connect import Daemon

    def needed() -> tuple[Settings, list[str]]:
        from cellblock.cli.config_needed import load_needed

        return load_needed(
            parsed.config, state_dir=parsed.state_dir, has_token_file=parsed.token_file is not None
        )

    def warn() -> None:
        if parsed.config is not None:
            _warn(needed()[1])

    file: Path | None = parsed.token_file
    if file is None:
        folder: Path | None = parsed.state_dir
        if folder is None:
            folder = default_state_dir() if parsed.config is None else plain_state_dir(parsed.config)
        file = _token_in(needed()[0].state_dir if folder is None else folder.absolute())
    url = parsed.url or f"http://{DEFAULT_ADDRESS}/mcp"
    # A daemon with --no-auth has none; one that wants a token will say so.
    return Found(
        Daemon(url, token_file=file, token_optional=parsed.token_file is None, tls_ca=parsed.tls_ca), warn
    )


def daemon_of(parsed: argparse.Namespace) -> Daemon:
    """The same; what is wrong with the configuration is told at once."""
    found = found_daemon(parsed)
    found.warn()
    return found.daemon


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        sys.stderr.write(harmless(f"cellblock: warning: {sentence}\n"))


def service(parsed: argparse.Namespace) -> str:
    """The text that `cellblock service` prints."""
    from cellblock.cli.config_needed import SERVICE, load_needed
    from cellblock.cli.service_files import ServiceCommand, launchd_plist, systemd_unit
    from cellblock.frontend.http.address import Address

    Address.parse(parsed.http)
    settings, warnings = load_needed(parsed.config, further=SERVICE, state_dir=parsed.state_dir)
    _warn(warnings)
    command = ServiceCommand(
        http=parsed.http,
        config=Path(parsed.config).expanduser().absolute() if parsed.config else None,
        state_dir=settings.state_dir.absolute(),
        drain_seconds=settings.cellblock.http.drain_ms // 1000,
        path=os.environ.get("PATH", os.defpath),
        realtime=settings.cellblock.pool.realtime,
    )
    launchd = parsed.launchd or (sys.platform == "darwin" and not parsed.systemd)
    return launchd_plist(command) if launchd else systemd_unit(command)


def token_file(settings: Settings) -> Path:
    """Where the token is when nothing else is said."""
    return _token_in(settings.state_dir)


def _token_in(state_dir: Path) -> Path:
    from cellblock.frontend.http.token import FILE_NAME

    return state_dir / FILE_NAME
