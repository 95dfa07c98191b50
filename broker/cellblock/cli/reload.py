"""A serving daemon follows its configuration file: by looking at it, and at SIGHUP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.base.errors import ConfigError
from cellblock.cli.config_watch import ConfigWatch
from cellblock.config.settings import Settings

if TYPE_CHECKING:
    from cellblock.cli.signals import Hangups
    from cellblock.daemon.broker import Broker


@contextlib.asynccontextmanager
async def following(
    broker: Broker, parsed: argparse.Namespace, load: Callable[[], Settings], hangups: Hangups
) -> AsyncGenerator[None]:
    """While inside, changes of the file are taken over. Without a file there is nothing to follow.

    Args:
        broker: Running.
        parsed: With `config`.
        load: Reads the settings as they were read at the start.
        hangups: Orders to read the file at once.
    """
    file = None if parsed.config is None else Path(parsed.config)
    # A pipe has said what it had to say.
    if file is None or not file.is_file():
        hangups.obey(lambda: _say(f"configuration: there is nothing to read again: {_why_not(file)}"))
        yield
        return

    def load_file() -> Settings:
        # Opening a pipe that has taken its place would wait for a writer, and everybody else with it.
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file} is no regular file any more.", hint="Put the file back.")
        return load()

    watch = ConfigWatch(file, broker.settings.files, load=load_file, apply=broker.reconfigure, say=_say)
    hangups.obey(watch.look_now)
    task = asyncio.create_task(watch.run(), name="config watch")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _why_not(file: Path | None) -> str:
    return "it was started without a file" if file is None else f"{file} is no regular file"


def _say(sentence: str) -> None:
    sys.stderr.write(f"cellblock: {sentence}\n")
    sys.stderr.flush()
