"""How much of a run's calls is held: inputs over the cap wait undecoded, in order, and far too many are refused."""

from __future__ import annotations

import asyncio
import random

import pytest

from cellblock.run.call_loads import WAITING_FACTOR, CallLoads
from support.memory_host import turns
from support.waits import within


async def test_what_fits_goes_on_at_once_and_the_rest_in_its_order() -> None:
    loads = CallLoads(10)
    await loads.enter(6)
    await loads.enter(4)
    entered: list[int] = []

    async def one(size: int) -> None:
        await loads.enter(size)
        entered.append(size)

    tasks = [asyncio.create_task(one(size)) for size in (5, 1, 30, 2)]
    await turns()
    assert entered == []
    loads.leave(4)
    await turns()
    assert entered == [], "a small one must not go before a large one for ever"
    loads.leave(6)
    await turns()
    assert entered == [5, 1]
    loads.leave(5)
    loads.leave(1)
    await turns()
    assert entered == [5, 1, 30], "over the cap, and so by itself"
    loads.leave(30)
    await turns()
    assert entered == [5, 1, 30, 2]
    await asyncio.gather(*tasks)


async def test_one_that_gives_up_makes_way() -> None:
    loads = CallLoads(10)
    await loads.enter(8)
    large = asyncio.create_task(loads.enter(9))
    await turns()
    small = asyncio.create_task(loads.enter(2))
    await turns()
    large.cancel()
    await within(small)
    with pytest.raises(asyncio.CancelledError):
        await large
    loads.leave(2)
    # Cancelled at the moment at which it is let in: its place is given back.
    last = asyncio.create_task(loads.enter(10))
    await turns()
    loads.leave(8)
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    await within(loads.enter(10))


async def test_one_that_gave_up_and_was_passed_over_before_its_turn_leaves_nothing() -> None:
    loads = CallLoads(10)
    await loads.enter(8)
    large = asyncio.create_task(loads.enter(9))
    await turns()
    large.cancel()
    loads.leave(8)
    with pytest.raises(asyncio.CancelledError):
        await large
    assert loads.enters(6)
    assert not loads.enters(6)


async def test_at_random_no_more_than_the_cap_is_in_and_all_get_in() -> None:
    chance = random.Random(7)
    loads = CallLoads(100)
    inside: list[int] = []
    most = 0
    done = 0

    async def one(size: int) -> None:
        nonlocal most, done
        await loads.enter(size)
        inside.append(size)
        most = max(most, sum(inside) if len(inside) > 1 else 0)
        try:
            await asyncio.sleep(chance.random() / 1000)
            done += 1
        finally:
            inside.remove(size)
            loads.leave(size)

    tasks = [asyncio.create_task(one(chance.randrange(1, 160))) for _ in range(300)]
    for task in chance.sample(tasks, 40):
        await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert most <= 100 and inside == []
    assert done == results.count(None) >= 260
    await within(loads.enter(100))


def test_far_too_much_is_not_held() -> None:
    loads = CallLoads(10)
    assert loads.hold(10 * WAITING_FACTOR + 5), "one is always held"
    assert not loads.hold(1)
    loads.drop(10 * WAITING_FACTOR + 5)
    for _ in range(WAITING_FACTOR):
        assert loads.hold(10)
    assert not loads.hold(1)
