"""Generations of runs: what they use lives until the last run of this one and of all before is over."""

from __future__ import annotations

import asyncio
import gc
import weakref

from cellblock.run.generation import Generation
from support.waits import within


async def ends_now(generation: Generation) -> bool:
    waiting = asyncio.create_task(generation.ended())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    over = waiting.done()
    waiting.cancel()
    return over


async def test_an_empty_one_is_over_and_one_with_somebody_inside_is_not() -> None:
    generation = Generation()
    assert await ends_now(generation)
    with generation:
        assert not await ends_now(generation)
    assert await ends_now(generation)


async def test_it_ends_with_the_last_of_all_generations_before() -> None:
    first = Generation()
    first.__enter__()
    second = Generation(first)
    third = Generation(second)
    third.__enter__()
    assert [await ends_now(one) for one in (first, second, third)] == [False, False, False]
    waiting = asyncio.create_task(third.ended())
    third.__exit__(None, None, None)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.__exit__(None, None, None)
    await within(waiting)
    assert await ends_now(second)


async def test_generations_that_are_over_are_not_kept() -> None:
    # Counts its own alone: brokers of other tests in this process have some, too.
    made: weakref.WeakSet[Generation] = weakref.WeakSet()

    def after(before: Generation | None = None) -> Generation:
        made.add(new := Generation(before))
        return new

    newest = after()
    newest.__enter__()
    with after(newest) as second:
        newest = after(second)
    for _ in range(100):
        newest = after(newest)
    gc.collect()
    assert len(made) <= 4


async def test_older_generations_than_those_that_are_asked_for_are_not_waited_for() -> None:
    first = Generation()
    with first:
        second = Generation(first)
        third = Generation(second)
        assert [one.number for one in (first, second, third)] == [0, 1, 2]
        await within(third.ended(1))
        with second:
            fourth = Generation(second)
            await within(fourth.ended(2))
            waiting = asyncio.create_task(fourth.ended(1))
            await asyncio.sleep(0)
            assert not waiting.done()
        await within(waiting)
