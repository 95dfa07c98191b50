"""The log of the commands that run a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.config.settings import Settings


@contextlib.asynccontextmanager
async def logging_as_configured(settings: Settings) -> AsyncGenerator[None]:
    """This process's log is the configured one while the block runs.

    Raises:
        ConfigError: Its file cannot be written.
    """
    from cellblock.telemetry.logs import start_logging, stop_logging

    section = settings.cellblock
    handler = start_logging(section.log, settings.servers.values(), section.traces.headers.values())
    try:
        yield
    finally:
        await asyncio.to_thread(stop_logging, handler)
