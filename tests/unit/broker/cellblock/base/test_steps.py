"""Steps of large work: one in a pass of the loop, in the order in which they were asked for."""

import asyncio

from cellblock.base.raw_json import next_step
from cellblock.base.tasks import end_tasks


async def test_a_pass_of_the_loop_has_at_most_one_step_of_all() -> None:
    loop = asyncio.get_running_loop()
    passes, in_pass, taken = 0, 0, list[tuple[int, int]]()

    def passed() -> None:
        nonlocal passes, in_pass
        passes, in_pass = passes + 1, 0
        loop.call_soon(passed)

    async def work(number: int) -> None:
        nonlocal in_pass
        for _ in range(3):
            await next_step()
            in_pass += 1
            assert in_pass == 1
            taken.append((passes, number))

    passed()
    await asyncio.gather(*(work(number) for number in range(4)))
    assert [number for _, number in taken] == [0, 1, 2, 3] * 3
    assert len({at for at, _ in taken}) == 12


async def test_who_was_cancelled_holds_nobody_up() -> None:
    first, second = (asyncio.create_task(next_step()) for _ in range(2))
    third = asyncio.create_task(next_step())
    await asyncio.sleep(0)
    await end_tasks(first, second)
    await third
    await next_step()
