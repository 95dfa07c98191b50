"""Control runs `restart` and `logs`: what a person does about one server of a daemon that runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from cellblock.app.cli.attach import daemon_of, state_dir_of, tell_not_started
from cellblock.app.cli.help import EXIT_OK, EXIT_UNAVAILABLE
from cellblock.app.cli.loading import reading
from cellblock.app.cli.streams import say, write_data
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.state_dir import DAEMON_LOG, LOGS
from cellblock.base.terminal import harmless
from cellblock.serve.stdio.daemon import Daemon
from cellblock.tools.upstream.stderr_log import upstream_log
from cellblock_worker.base.folders import Folder

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
    await tell_not_started(daemon)
    if row is None:
        raise ConfigError(
            f"The daemon at {daemon.url} has no server {name} that it could start again.",
            hint="`cellblock top` shows those that it has. A disabled one is started by `cellblock enable`.",
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
    name: str | None = parsed.server
    folder = state_dir_of(parsed) / LOGS
    file = folder / DAEMON_LOG if name is None else upstream_log(folder, name)
    tail = _Tail(file)
    begun = tail.news()
    if begun is None:
        what = "daemon that `connect` has started" if name is None else f"program of a server {name}"
        raise ConfigError(
            f"No {what} has written a log: there is no {file}.",
            hint="Servers with a url have none. Is it the daemon's --state-dir?",
        )
    lines = begun.splitlines(keepends=True)
    _write("".join(deque(lines, parsed.lines) if parsed.lines else lines))
    try:
        daemon = daemon_of(parsed)
        async with daemon.http() as http:
            await daemon.check(http)
        await tell_not_started(daemon)
    except CellblockError as error:
        say(f"that is all for now: {error.message}")
    while parsed.follow:
        await asyncio.sleep(LOOK_SECONDS)
        _write(tail.news() or "")
    return EXIT_OK


# ---- inside ------------------------------------------------------------------------------------------


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
