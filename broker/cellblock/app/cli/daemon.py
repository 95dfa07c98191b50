"""Commands about a daemon that runs: `dashboard`, `restart`, `logs`, `status` and `stop`."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin

import psutil

from cellblock.app.cli.arguments import reading
from cellblock.app.cli.asking import STOP, Person, ask_daemon
from cellblock.app.cli.connect import found_daemon, state_dir_of, tell_of
from cellblock.app.cli.help import EXIT_NO, EXIT_OK, EXIT_UNAVAILABLE
from cellblock.app.cli.streams import answer, say, write_data
from cellblock.base.browser import open_privately
from cellblock.base.daemon_socket import addresses
from cellblock.base.errors import CellblockError, ConfigError, counted
from cellblock.base.state_dir import DAEMON_LOG, LOGS
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import at_most
from cellblock.base.terminal import Painter, harmless
from cellblock.base.visible import visible
from cellblock.serve.http.address import MCP_PATH
from cellblock.serve.stdio.daemon import Daemon, DaemonUnavailable
from cellblock_worker.base.folders import Folder

if TYPE_CHECKING:
    from cellblock.app.broker import Broker


def daemon_of(parsed: argparse.Namespace) -> Daemon:
    """Returns the daemon that the options name, or else the only one that runs with the state directory."""
    if parsed.url is None and parsed.token_file is None:
        known = addresses(state_dir_of(parsed))
        if len(known) == 1:
            parsed.url = f"http://{known[0]}{MCP_PATH}"
    return found_daemon(parsed)


@reading(daemon_of)
async def dashboard(parsed: argparse.Namespace, daemon: Daemon) -> None:
    """Prints the URL of the dashboard, and opens it unless told otherwise."""
    made: Any = await daemon.ask("POST", "/dashboard/code")
    url = urljoin(daemon.url, made["path"])
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    tell_of(daemon.facts)
    if not parsed.no_open and sys.stdout.isatty():
        # A browser of the console would take the terminal for itself.
        # The next one takes the file's place; its code is good once, and for a minute.
        await asyncio.to_thread(open_privately, state_dir_of(parsed), "dashboard.html", url)


RESTART_SECONDS: Final = 60.0
"""Bounds the wait until a server that is started again is connected; the daemon goes on trying."""

POLL_SECONDS: Final = 0.2
"""Passes between two looks at a log, at a server, or whether a process lives."""


@reading(daemon_of)
async def restart(parsed: argparse.Namespace, daemon: Daemon) -> int:
    """Has the daemon start the server again, and waits for what comes of it."""
    name: str = parsed.server
    path = f"/servers/{quote(name, safe='')}"
    row: Any = await daemon.ask("POST", path, absent=True)
    tell_of(daemon.facts, name)
    if row is None:
        raise ConfigError(
            f"The daemon at {daemon.url} has no server {name} that it could start again.",
            hint="`cellblock status` shows those that it has. A disabled one is started by `cellblock enable`.",
        )
    async with at_most(RESTART_SECONDS):
        while row is not None and row["state"] == "connecting":
            await asyncio.sleep(POLL_SECONDS)
            row = await daemon.ask("GET", path, absent=True)
    if row is not None and row["state"] == "ready":
        sys.stdout.write(f"{name} runs again, with {counted(row['tools'], 'tool')}.\n")
        return EXIT_OK
    why = "it is gone" if row is None else row["reason"] or row["state"]
    say(
        f"{name} was ended, and is not connected again: {why}. `cellblock logs {shlex.quote(name)}` shows what it said."
    )
    return EXIT_UNAVAILABLE


async def logs(parsed: argparse.Namespace) -> None:
    from cellblock.tools.upstream.server_log import upstream_log

    name: str | None = parsed.server
    folder = state_dir_of(parsed) / LOGS
    tail = _Tail(folder / DAEMON_LOG if name is None else upstream_log(folder, name))
    begun = tail.news()
    if begun is None:
        known = [log.stem.removeprefix("upstream-") for log in folder.glob("upstream-*.log")]
        what = "no daemon that `connect` has started" if name is None else f"no server {name} of a daemon"
        raise ConfigError(
            f"There is no log: {what} has had one in {folder}.",
            hint=did_you_mean(
                nearest_names(name or "", known, 1),
                "`cellblock status` names the servers. Is it the daemon's --state-dir?",
            ),
        )
    if not begun:
        say("the log is empty: nothing was written to stderr, and no connection has failed")
    lines = begun.splitlines(keepends=True)
    _write("".join(deque(lines, parsed.lines) if parsed.lines else lines))
    try:
        daemon = daemon_of(parsed)
        async with daemon.http() as http:
            await daemon.check(http)
        tell_of(daemon.facts, name)
    except CellblockError as error:
        say(f"that is all for now: {error.message}")
    while parsed.follow:
        await asyncio.sleep(POLL_SECONDS)
        _write(tail.news() or "")


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
            with (
                Folder.inside(self._file.parent) as folder,
                os.fdopen(folder.open(self._file.name, os.O_RDONLY), "rb") as file,
            ):
                if os.fstat(file.fileno()).st_size < self._at:
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


STOP_SECONDS: Final = 60.0
"""Bounds the wait for the end of a daemon; runs in flight have `http.drain_ms`."""


@reading(state_dir_of)
async def status(parsed: argparse.Namespace, state_dir: Path) -> int:
    """Prints the state of the servers, and what to do about those that are not connected."""
    # Not at the top: other commands need no broker's parts.
    from cellblock.observe.facts import NOT_STARTED

    found = await ask_daemon(parsed, state_dir, "status", {"server": parsed.server}, Person())
    servers: list[dict[str, Any]] = found["servers"]
    paint, pool = Painter(sys.stdout), found["pool"]
    lines = [
        f"daemon: process {found['pid']}, {pool['running']} of {pool['capacity']} places taken, "
        f"{counted(pool['queued'], 'run')} in the queue"
    ]
    for row in servers:
        ready = row["state"] == "ready"
        tools = f", {counted(row['tools'], 'tool')}" if ready else ""
        tools += f", {row['withheld']} left out" if row["withheld"] else ""
        lines.append(f"{row['name']}: {paint(row['state'], 'green' if ready else 'red')}{tools}")
        # A reason may name its remedy, too.
        lines += dict.fromkeys(
            f"  {visible(said).rstrip('.')}"
            for said in (row["reason"], row.get("remedy"), *row["warnings"])
            if said
        )
        if row["state"] not in ("ready", "connecting", NOT_STARTED):
            lines.append(f"  again: cellblock restart {shlex.quote(row['name'])}")
    answer(parsed, found, "\n".join(lines) + "\n")
    return EXIT_OK if all(row["state"] == "ready" for row in servers) else EXIT_NO


async def rows(broker: Broker, wanted: Mapping[str, Any], _: Person) -> dict[str, Any]:
    """Returns the state of one server, or of all.

    Raises:
        ConfigError: There is no such server.
    """
    from cellblock.app.cli.doctor import fix_of
    from cellblock.tools.upstream.installs import package_of
    from cellblock.tools.upstream.lifecycle import FIRST_TRY
    from cellblock.tools.upstream.server_log import upstream_log

    name: str | None = wanted["server"]
    settings = broker.settings
    await broker.approved()
    every = broker.facts().upstreams()
    known = {server.config_name: server for server in broker.known_catalog.servers.values()}
    found = [row for row in every if name in (None, row["name"], row["id"])]
    if name is not None and not found:
        raise ConfigError(
            f"The daemon has no server {name} that is not disabled.",
            hint=did_you_mean(
                nearest_names(name, [row["name"] for row in every], 1), "`cellblock status` names them."
            ),
        )
    for row in found:
        server = settings.servers.get(row["name"])
        entry = known.get(row["name"])
        # Of what its own entry in the file leaves out there is no warning.
        row["warnings"] = (
            [] if entry is None else [*(entry.warnings or dict.fromkeys(one.why for one in entry.withheld))]
        )
        if row["state"] == "connecting" and row["reason"] in ("", FIRST_TRY):
            row["remedy"] = "It still starts."
            if server is not None and package_of([server.command or "", *server.args]) is not None:
                row["remedy"] = "It still starts; its package is installed first, which can take minutes."
        elif row["state"] != "ready":
            row["remedy"] = fix_of(
                server, row["reason"], upstream_log(settings.state_dir / LOGS, row["name"])
            )
    return {
        "pid": os.getpid(),
        "runs": broker.running,
        "pool": broker.facts().pool(),
        "servers": found,
    }


@reading(state_dir_of)
async def stop(parsed: argparse.Namespace, state_dir: Path) -> int:
    """Has the daemon end, and waits until it has."""
    try:
        pid: int = (await ask_daemon(parsed, state_dir, STOP, {}, Person()))["pid"]
    except DaemonUnavailable as error:
        sys.stdout.write(f"Nothing was ended. {error.message}\n")
        return EXIT_OK
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # Nobody's child has no event.
            while _lives(pid):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        say(f"the daemon (process {pid}) is still ending, after {STOP_SECONDS:g} s: runs are in flight")
        return EXIT_UNAVAILABLE
    sys.stdout.write(f"The daemon (process {pid}) has ended.\n")
    return EXIT_OK


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
