"""Which runs a broker is told to have a worker, before it hears of them anyway."""

from __future__ import annotations

import asyncio

from cellblock_worker.host.untold import LASTS_SECONDS, Untold
from support.virtual_time import VirtualTimeLoop


def test_runs_that_last_are_told_once_and_brief_ones_never() -> None:
    told: list[tuple[bytes, int]] = []

    async def a_while() -> None:
        untold = Untold(lambda token, wall_ms: told.append((token, wall_ms)))
        untold.add(b"brief")
        untold.add(b"lasts")
        await asyncio.sleep(LASTS_SECONDS / 2)
        untold.drop(b"brief")
        untold.drop(b"unknown")
        # It comes while the first look is on its way, and is not yet one that lasts at it.
        untold.add(b"later")
        untold.add(b"brief, later")
        assert told == []
        await asyncio.sleep(LASTS_SECONDS)
        untold.drop(b"brief, later")
        assert [token for token, _ in told] == [b"lasts"]
        await asyncio.sleep(LASTS_SECONDS)
        assert [token for token, _ in told] == [b"lasts", b"later"]
        assert all(LASTS_SECONDS <= wall_ms / 1000 <= 2 * LASTS_SECONDS for _, wall_ms in told)

        told.clear()
        await asyncio.sleep(10 * LASTS_SECONDS)
        untold.add(b"anew")
        await asyncio.sleep(2 * LASTS_SECONDS)
        assert [token for token, _ in told] == [b"anew"]

    loop = VirtualTimeLoop()
    loop.run_until_complete(a_while())
    loop.close()


def test_a_run_is_told_at_once_where_its_end_would_not_say_that_it_has_begun() -> None:
    told: list[tuple[bytes, int]] = []

    async def a_while() -> None:
        untold = Untold(lambda token, wall_ms: told.append((token, wall_ms)))
        untold.add(b"dies")
        untold.tell(b"dies")
        untold.tell(b"dies")
        untold.tell(b"unknown")
        await asyncio.sleep(2 * LASTS_SECONDS)

    loop = VirtualTimeLoop()
    loop.run_until_complete(a_while())
    loop.close()
    assert told == [(b"dies", 0)]
