"""Large work on the event loop is done in steps, and a pass of the loop has at most one of them, whoever's it is: those
of many clients and servers never add up to one long hold."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from cellblock.base.raw_json import is_light

_WAITING: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]()


async def next_step() -> None:
    """Waits for a pass of the loop that has no other step; called right before each. First come, first served."""
    loop = asyncio.get_running_loop()
    waiting = _WAITING.setdefault(loop, deque())
    mine = loop.create_future()
    waiting.append(mine)
    if len(waiting) == 1:
        loop.call_soon(_admit, loop, waiting)
    await mine


async def step_for(body: bytes) -> None:
    """Waits as `next_step` before work on a body that is large; for a small one, nothing does."""
    if not is_light(body):
        await next_step()


def _admit(loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        first = waiting.popleft()
        # Who was cancelled has no step to do.
        if not first.done():
            first.set_result(None)
            break
    if waiting:
        loop.call_soon(_admit, loop, waiting)
