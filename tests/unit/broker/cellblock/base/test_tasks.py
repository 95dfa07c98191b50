"""Work beside the loop: tasks that end with their group, threads that are waited for, and steps of large work, one in a
pass of the loop, in the order in which they were asked for."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from cellblock.base.raw_json import next_step
from cellblock.base.tasks import (
    DaemonThread,
    TaskSet,
    at_most,
    call_when_done,
    end_tasks,
    in_background,
    is_done_within,
    start_daemon,
)


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
    tasks = TaskSet()

    async def fails() -> None:
        raise ValueError("expected")

    failing, waiting = tasks.start(fails()), tasks.start(asyncio.Event().wait())
    await asyncio.sleep(0)
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
    async with in_background(waits("third"), name="beside"):
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


async def test_work_is_done_in_turn_and_closing_comes_last() -> None:
    disk, done = DaemonThread("test"), list[int]()
    futures = [disk.submit(done.append, number) for number in range(100)]
    await asyncio.wrap_future(futures[-1])
    assert await disk.close(lambda: done.append(100), 5.0)
    assert done == list(range(101))
    with pytest.raises(RuntimeError):
        disk.submit(print)


async def test_what_fails_is_told_and_costs_nobody_else() -> None:
    disk = DaemonThread("test")
    failing = disk.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.wrap_future(failing)
    assert await asyncio.wrap_future(disk.submit(int, "7")) == 7
    assert await disk.close(lambda: None, 5.0)


async def test_closing_cancels_what_waits_and_does_not_wait_for_what_hangs() -> None:
    disk, began, go_on, removed = (
        DaemonThread("test"),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )
    hung = disk.submit(lambda: (began.set(), go_on.wait(20)))
    assert await asyncio.to_thread(began.wait, 5)
    waiting = disk.submit(pytest.fail, "it was cancelled")
    assert not await disk.close(removed.set, 0.05)
    assert waiting.cancelled() and not hung.done()
    go_on.set()
    # Still in its turn, when the disk goes on at last.
    assert await asyncio.to_thread(removed.wait, 5)


async def test_closing_without_any_work() -> None:
    done = threading.Event()
    assert await DaemonThread("test").close(done.set, 5.0) and done.is_set()


async def test_work_of_its_own_thread_brings_what_it_raises_and_the_thread_ends() -> None:
    def stop() -> None:
        raise StopIteration(threading.current_thread())

    future = start_daemon("once", stop)
    assert await is_done_within(future, 60.0)
    error = future.exception()
    assert isinstance(error, StopIteration) and error.value.daemon
    await asyncio.to_thread(error.value.join, 60)
    assert not error.value.is_alive()


async def test_waiting_has_its_bound_and_cancels_nothing() -> None:
    go_on, told = threading.Event(), asyncio.Event()
    future = start_daemon("once", go_on.wait, 60)
    call_when_done(future, told.set)
    assert not await is_done_within(future, 0.05) and not told.is_set()
    go_on.set()
    assert await is_done_within(future, 60.0) and future.result() and told.is_set()
    assert await is_done_within(future, 0.0), "what is done is done at once"


async def test_what_the_work_has_returned_is_not_held_while_the_thread_is_idle() -> None:
    class Large:
        pass

    thread = DaemonThread("test")
    held = weakref.ref(await asyncio.wrap_future(thread.submit(Large)))
    await asyncio.wrap_future(thread.submit(int))
    assert held() is None
    thread.end()
    with pytest.raises(RuntimeError):
        thread.submit(int)


def test_a_loop_that_is_closed_is_not_told_and_a_thread_that_hangs_does_not_keep_the_process() -> None:
    code = """
import asyncio, threading
from cellblock.base.tasks import DaemonThread, is_done_within
thread, go_on = DaemonThread("test"), threading.Event()
async def main():
    print(await is_done_within(thread.submit(go_on.wait), 0.05))
asyncio.run(main())
go_on.set()
print(thread.submit(int).result(60))
thread.submit(threading.Event().wait)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n0\n", "")


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
