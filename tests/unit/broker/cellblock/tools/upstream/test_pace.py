"""Who is paced, and who is cut off, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cellblock.tools.upstream.pace import FLOOD_SECONDS, MESSAGES_AT_ONCE, Flooding, Pace
from support.virtual_time import VirtualTimeLoop


def test_bursts_with_pauses_between_them_are_no_flood_whatever_their_size() -> None:
    async def bursts() -> None:
        pace = Pace()
        for _ in range(10):
            await pace.spend(2 * MESSAGES_AT_ONCE)
            await asyncio.sleep(2 * FLOOD_SECONDS)

    _run(bursts())


def test_who_never_pauses_is_cut_off() -> None:
    async def flood() -> None:
        pace = Pace()
        while True:
            await pace.spend(MESSAGES_AT_ONCE)

    with pytest.raises(Flooding, match="messages a second"):
        _run(asyncio.wait_for(flood(), 2 * FLOOD_SECONDS))


def _run(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
