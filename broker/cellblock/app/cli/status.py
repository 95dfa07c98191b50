"""`status` and `stop`: how the servers of this configuration's daemon are, and its end."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from cellblock.app.cli.asking import STOP, Person, ask_daemon
from cellblock.app.cli.attach import LOOK_SECONDS, state_dir_of
from cellblock.app.cli.help import EXIT_NO, EXIT_OK, EXIT_UNAVAILABLE
from cellblock.app.cli.loading import reading
from cellblock.app.cli.streams import say, write_json
from cellblock.base.errors import ConfigError
from cellblock.base.state_dir import LOGS
from cellblock.base.terminal import Painter
from cellblock.base.visible import visible
from cellblock.serve.stdio.daemon import DaemonUnavailable

if TYPE_CHECKING:
    from cellblock.app.broker import Broker

STOP_SECONDS: Final = 60.0
"""Bounds the wait for the end of a daemon; runs in flight have `http.drain_ms`."""


@reading(state_dir_of)
async def status(parsed: argparse.Namespace, state_dir: Path) -> int:
    """Prints the state of the servers, and what to do about those that are not connected."""
    found = await ask_daemon(parsed, state_dir, "status", {"server": parsed.server}, Person())
    servers: list[dict[str, Any]] = found["servers"]
    if parsed.json:
        write_json(found)
    else:
        paint = Painter(sys.stdout)
        pool = found["pool"]
        lines = [
            f"daemon: process {found['pid']}, {pool['running']} of {pool['capacity']} places taken, "
            f"{pool['queued']} runs in the queue"
        ]
        for row in servers:
            ready = row["state"] == "ready"
            lines.append(f"{row['name']}: {paint(row['state'], 'green' if ready else 'red')}")
            lines[-1] += f", {row['tools']} tools" if ready else ""
            lines += [f"  {visible(row[key])}" for key in ("reason", "remedy") if row.get(key)]
            lines += [] if ready else [f"  again: cellblock restart {shlex.quote(row['name'])}"]
        sys.stdout.write("\n".join(lines) + "\n")
    return EXIT_OK if all(row["state"] == "ready" for row in servers) else EXIT_NO


async def rows(broker: Broker, wanted: Mapping[str, Any], _: Person) -> dict[str, Any]:
    """Returns the state of one server, or of all.

    Raises:
        ConfigError: There is no such server.
    """
    from cellblock.app.cli.checkups import fix_of
    from cellblock.tools.upstream.stderr_log import upstream_log

    name: str | None = wanted["server"]
    settings = broker.settings
    found = [row for row in broker.facts().upstreams() if name in (None, row["name"], row["id"])]
    if name is not None and not found:
        raise ConfigError(
            f"The daemon has no server {name} that is not disabled.", hint="`cellblock status` names them."
        )
    for row in found:
        if row["state"] not in ("ready", "connecting"):
            log = upstream_log(settings.state_dir / LOGS, row["name"])
            row["remedy"] = fix_of(settings.servers.get(row["name"]), row["reason"], log)
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
        found = await ask_daemon(parsed, state_dir, STOP, {}, Person())
    except DaemonUnavailable as error:
        sys.stdout.write(f"Nothing was ended. {error.message}\n")
        return EXIT_OK
    pid: int = found["pid"]
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # Nobody's child has no event.
            while _lives(pid):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
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
