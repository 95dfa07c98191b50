"""Serve_http serves a broker over HTTP: its front-end, the pages of a running daemon, and the signals that end it."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cellblock import __version__
from cellblock.app.broker import Broker
from cellblock.app.cli.asking import Answers
from cellblock.app.cli.serve import Hangups, following
from cellblock.app.cli.streams import say
from cellblock.base.redaction import redacting
from cellblock.base.settings.settings import CellblockSettings, Settings
from cellblock.base.store import LocalStore
from cellblock.base.tasks import in_background
from cellblock.observe.facts import View
from cellblock.observe.metrics import Tally
from cellblock.run.board import RECENT_RUNS, Board
from cellblock.serve.http.address import Address
from cellblock.serve.http.pages import Pages
from cellblock.serve.http.server import HttpFrontend, HttpOptions
from cellblock.serve.http.token import FILE_NAME
from cellblock.serve.http.waiting_runs import WaitingRuns
from cellblock_worker.base.logs import bound_log
from cellblock_worker.wire.protocol import PROTOCOL_VERSION

IDLE_STOP_SECONDS: Final = 30 * 60
"""Bounds how long a daemon that `connect` has started runs without a client: an editor that is closed over lunch finds
it. Each `connect` counts as a client."""

POLL_SECONDS: Final = 10.0
"""Passes between two looks at the log of a daemon that ends when idle, whether it is, and at the state directory."""


def front_of(parsed: argparse.Namespace, section: CellblockSettings, state_dir: Path) -> HttpFrontend:
    """Makes the front-end that the options of `serve` name; its token is read, and its address taken.

    Raises:
        ConfigError: As `HttpFrontend`.
    """
    return HttpFrontend(
        section.http,
        HttpOptions(
            address=Address.parse(parsed.http),
            token_file=parsed.token_file or state_dir / FILE_NAME,
            no_auth=parsed.no_auth,
            tls_cert=parsed.tls_cert,
            tls_key=parsed.tls_key,
            config=parsed.config,
        ),
    )


async def serve_http(
    front: HttpFrontend,
    settings: Settings,
    parsed: argparse.Namespace,
    load: Callable[[], Settings],
    hangups: Hangups,
) -> None:
    """Serves over HTTP until SIGTERM or SIGINT, then drains; a second one kills what is left. Closes `front`."""
    section = settings.cellblock
    try:
        broker = Broker(settings)
        broker.login_pages = front.login_pages
        if not isinstance(broker.store, LocalStore):
            broker.store.serves = True
        async with broker:
            _drain_on_signals(front, hangups)
            async with (
                following(broker, parsed, load, hangups) as why_behind,
                in_background(_end_of_itself(front, broker, parsed), name="end of itself"),
            ):
                await front.serve(
                    broker,
                    version=__version__,
                    ready=lambda busy: _ready(broker, section, busy),
                    trouble=lambda: _trouble(broker, section),
                    on_serving=lambda: say(f"serving {front.url}\ncellblock: {front.protection}"),
                    pages=_pages(broker, section, encrypted=parsed.tls_cert is not None),
                    broker=section.state.broker_name if broker.store.is_shared else "",
                    answer=Answers(broker, parsed, why_behind, front.stop),
                )
                if front.hurried.is_set():
                    # The exit code says that it was not left to end by itself.
                    raise asyncio.CancelledError
    finally:
        front.close()


def _ready(broker: Broker, section: CellblockSettings, busy: bool) -> bool:
    """Says whether a balancer may send anything here."""
    if broker.presence is not None and not broker.presence.may_serve:
        return False
    # Busy or not: without a host, what is sent here waits, and another broker may have one.
    has_workers = bool(broker.hosts) and (busy or broker.is_warm)
    return has_workers or _runs_none(section)


def _runs_none(section: CellblockSettings) -> bool:
    return section.frontend.profile == "proxy"


def _trouble(broker: Broker, section: CellblockSettings) -> str | None:
    """Says what is wrong with PostgreSQL, without what its own errors tell, or that no host is here: whoever asks has
    shown no token."""
    presence = broker.presence
    if presence is not None and presence.unusable is not None:
        return str(presence.unusable)
    if presence is not None and presence.rival is not None:
        return presence.rival
    if presence is not None and presence.trouble is not None:
        return "PostgreSQL is away"
    if broker.hosts or _runs_none(section):
        return None
    return f"no worker host is connected that speaks protocol {PROTOCOL_VERSION}, this version's"


async def _end_of_itself(front: HttpFrontend, broker: Broker, parsed: argparse.Namespace) -> None:
    """Ends a daemon that nobody has started by hand, when nobody is there, and keeps its log, its stderr, bounded; and
    any daemon whose state directory was removed."""
    left = POLL_SECONDS
    while left > 0:
        await asyncio.sleep(min(left, POLL_SECONDS))
        if front.lost_state:
            say("stopping: the state directory was removed")
            break
        if parsed.until_idle:
            left = IDLE_STOP_SECONDS - (0.0 if broker.running else front.activity.idle_seconds)
            bound_log(2)
    else:
        say(f"stopping: no client was here for {IDLE_STOP_SECONDS:g} s")
    front.stop()


def _pages(broker: Broker, section: CellblockSettings, *, encrypted: bool) -> Pages:
    """Makes the dashboard and the metrics, and what they count from."""
    shows = section.dashboard_shows
    # Members of a team do not end each other's servers.
    is_own = section.http.oauth is None
    facts, tally = broker.facts(), Tally()

    def redacted() -> Callable[[Any], Any]:
        return redacting(broker.settings.servers.values())

    broker.events.add(tally)
    view = None
    if shows != "off":
        board = Board(RECENT_RUNS, logs=shows != "runs", scripts=shows == "scripts")
        broker.events.add(board)
        view = View(facts, tally, board, __version__, lambda: broker.parked_runs.going_on.count)

    return Pages(
        facts,
        tally,
        view,
        broker.keeper,
        shows,
        redacted,
        open_metrics=section.metrics == "open",
        secure=encrypted,
        restart=broker.restart_server if is_own else None,
        # Members of a team do not answer for each other.
        parked=WaitingRuns(broker.parked_runs, broker.events, redacted, shows_inputs=shows == "scripts")
        if is_own
        else None,
        save=broker.save if is_own else None,
    )


def _drain_on_signals(front: HttpFrontend, hangups: Hangups) -> None:
    """Has the first signal drain, the second one end what is in flight, and the next one cancel this task at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    draining = False

    def on_signal() -> None:
        nonlocal draining
        if draining:
            if not front.hurry():
                task.cancel()
            return
        draining = True
        say("stopping when the runs in flight have ended; again kills them")
        front.stop()

    for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangups.end else [])):
        loop.add_signal_handler(number, on_signal)
