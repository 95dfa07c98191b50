from __future__ import annotations

import asyncio
import gc
import weakref

from cellblock.base.tasks import TaskSet, at_most, beside, end_tasks


async def test_a_task_is_held_until_it_is_done() -> None:
    tasks, free = TaskSet(), weakref.WeakSet[asyncio.Future[None]]()

    async def waits() -> None:
        # A future that only its task holds: the loop knows of neither.
        future = asyncio.get_running_loop().create_future()
        free.add(future)
        await future

    tasks.start(waits(), name="waits")
    await asyncio.sleep(0)
    gc.collect()
    assert len(tasks) == 1 and len(free) == 1
    for future in free:
        future.set_result(None)
    await tasks.ended()
    assert len(tasks) == 0
    await tasks.ended()


async def test_all_are_cancelled_and_one_that_fails_ends_as_well() -> None:
    tasks, begun = TaskSet(), asyncio.Event()

    async def fails() -> None:
        raise ValueError("expected")

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    failing, waiting = tasks.start(fails()), tasks.start(waits())
    await begun.wait()
    tasks.cancel()
    await tasks.ended()
    assert waiting.cancelled() and isinstance(failing.exception(), ValueError) and len(tasks) == 0


async def test_tasks_are_ended_whatever_they_do_at_their_end() -> None:
    ends: list[str] = []

    async def waits(name: str, *, fails: bool = False) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append(name)
            if fails:
                raise ValueError("expected")

    one, other = asyncio.create_task(waits("one")), asyncio.create_task(waits("other", fails=True))
    await asyncio.sleep(0)
    await end_tasks(one, None, other)
    assert sorted(ends) == ["one", "other"]
    assert one.cancelled() and isinstance(other.exception(), ValueError)
    await end_tasks(None)
    await end_tasks(one)
    async with beside(waits("third"), name="beside"):
        assert "beside" in {task.get_name() for task in asyncio.all_tasks()}
        await asyncio.sleep(0)
    assert ends[-1] == "third"


async def test_what_takes_too_long_is_cut_off_and_what_stands_behind_it_is_done() -> None:
    done: list[str] = []
    async with at_most(0.001):
        await asyncio.Event().wait()
        done.append("waited")
    async with at_most(60):
        done.append("in time")
    assert done == ["in time"]
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
