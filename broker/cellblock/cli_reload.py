"""A serving daemon follows its configuration file: by looking at it, and at SIGHUP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.config import Settings
from cellblock.config_watch import ConfigWatch

if TYPE_CHECKING:
    from cellblock.daemon import Broker


@contextlib.asynccontextmanager
async def following(
    broker: Broker, parsed: argparse.Namespace, load: Callable[[], Settings]
) -> AsyncGenerator[None]:
    """While inside, changes of the file are taken over. Without a file there is nothing to follow.

    Args:
        broker: Running.
        parsed: With `config`.
        load: Reads the settings as they were read at the start.
    """
    if parsed.config is None:
        yield
        return
    watch = ConfigWatch(
        Path(parsed.config), broker.settings.files, load=load, apply=broker.reconfigure, say=_say
    )
    if not _has_terminal():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.look_now)
    task = asyncio.create_task(watch.run(), name="config watch")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _has_terminal() -> bool:
    """Whether SIGHUP says that the terminal is gone, and not that a service is to read its configuration."""
    return any(os.isatty(descriptor) for descriptor in (0, 2))


def _say(sentence: str) -> None:
    sys.stderr.write(f"cellblock: {sentence}\n")
    sys.stderr.flush()
