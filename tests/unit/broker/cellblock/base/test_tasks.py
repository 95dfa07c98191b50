from __future__ import annotations

import asyncio
import gc
import weakref

from cellblock.base.tasks import TaskSet


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
