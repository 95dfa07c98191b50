"""Brokers in this process: begun with their servers, and what is below them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from cellblock import Broker, Observer, RunResponse
from cellblock.base.settings.settings import Settings
from support.processes import workers_of
from support.waits import until, within


@asynccontextmanager
async def ready(settings: Settings, **options: Any) -> AsyncGenerator[Broker]:
    """A broker whose servers have started, or have failed to."""
    async with Broker(settings, **options) as broker:
        await within(broker.settled())
        yield broker


def host_of(broker: Broker) -> psutil.Process:
    """Its worker host."""
    assert broker.host_pid is not None
    return psutil.Process(broker.host_pid)


async def no_process(broker: Broker) -> None:
    """Waits until no run has a process any more."""
    host = host_of(broker).pid
    await until(lambda: not broker.running and not workers_of(host), "no worker is left")


async def begun(broker: Broker, code: str, said: str = "", **options: Any) -> asyncio.Task[RunResponse]:
    """A run that has said something."""
    heard = asyncio.Event()
    observer = Observer(on_log=lambda entry: heard.set() if entry.message.startswith(said) else None)
    run = asyncio.create_task(broker.run(code, observer=observer, **options))
    await within(heard.wait())
    return run
