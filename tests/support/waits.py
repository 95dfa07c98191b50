"""Waits for events with a bound that a busy machine keeps."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cellblock import Broker

WAIT_BOUND_SECONDS = 120.0
"""Longest wait for something that takes well under a second on a quiet machine."""

PAUSE_SECONDS = 0.025
"""Between two looks: one at the processes of a machine takes milliseconds of a core that others wait for."""

STEADY_SECONDS = 0.3
"""How long processes must be the same to count as the ones that stay: a worker outlives its run by a few
milliseconds, and a boot takes 30."""


async def until(
    holds: Callable[[], object], what: str, bound: float = WAIT_BOUND_SECONDS, pause: float = PAUSE_SECONDS
) -> None:
    """Waits until `holds()` is true; fails with `what` after `bound` seconds."""

    async def look() -> object:
        return holds()

    await until_found(look, what, bound, pause)


async def until_found(
    look: Callable[[], Awaitable[Any]], what: str, bound: float = WAIT_BOUND_SECONDS, pause: float = 0.05
) -> Any:
    """The same for a look that has to wait itself; what it has found."""
    deadline = time.monotonic() + bound
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
        await asyncio.sleep(pause)
    return found


async def steady(look: Callable[[], Any], what: str) -> Any:
    """What `look` gives once it has given the same for `STEADY_SECONDS`: no worker is booted or ended meanwhile."""
    seen, since = look(), time.monotonic()

    def stays() -> bool:
        nonlocal seen, since
        if (found := look()) != seen:
            seen, since = found, time.monotonic()
        return time.monotonic() > since + STEADY_SECONDS

    await until(stays, what)
    return seen


async def within(work: Awaitable[Any], bound: float = WAIT_BOUND_SECONDS) -> Any:
    """The result of `work`, or TimeoutError after `bound` seconds."""
    async with asyncio.timeout(bound):
        return await work


async def warmed(broker: Broker, workers: int | None = None) -> None:
    """Waits until so many workers (all that the pool keeps) are warm, as the host has said."""
    wanted = broker.settings.cellblock.pool.warm if workers is None else workers
    await until(lambda: broker.warm_workers >= wanted, f"{wanted} warm workers")
