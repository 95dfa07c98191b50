"""Threads for blocking tools: bounded, reused, given up in time, and none that an exit waits for."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from cellblock.tools.python.python_calls import AllBusy, StillRunning, ToolThreads
from support.waits import until, within

BOUND = 120.0


@pytest.fixture
async def threads() -> AsyncIterator[ToolThreads]:
    made = ToolThreads(2)
    yield made
    made.close()


async def test_results_exceptions_and_context_come_through(threads: ToolThreads) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert await threads.run(variable.get, BOUND) == "here"
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await threads.run(fail, BOUND)
    assert await threads.run(lambda: 1, BOUND) == 1, "the thread has outlived them"


async def test_one_thread_is_used_again(threads: ToolThreads) -> None:
    idents = {await threads.run(threading.get_ident, BOUND) for _ in range(5)}
    assert len(idents) == 1 and threading.get_ident() not in idents


async def test_no_more_than_the_maximum_at_once(threads: ToolThreads) -> None:
    release = threading.Event()
    running: list[int] = []

    def work(number: int) -> int:
        running.append(number)
        release.wait(BOUND)
        return number

    tasks = [asyncio.create_task(threads.run(lambda n=n: work(n), BOUND)) for n in range(5)]
    await until(lambda: len(running) == 2, "two at work")
    assert threads.busy == 2
    with pytest.raises(AllBusy):
        await threads.run(lambda: running.append(99), 0.05)
    release.set()
    assert await within(asyncio.gather(*tasks)) == [0, 1, 2, 3, 4]
    assert 99 not in running, "what was refused never starts"
    assert threads.busy == 0


async def test_a_thread_that_cannot_be_started_costs_no_place(
    threads: ToolThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(4):
            with pytest.raises(AllBusy, match="No thread can be started"):
                await threads.run(lambda: 1, BOUND)
    assert (await threads.run(lambda: 1, BOUND), threads.busy) == (1, 0)


async def test_work_that_is_given_up_holds_its_thread_until_it_ends(threads: ToolThreads) -> None:
    release = threading.Event()
    with pytest.raises(StillRunning):
        await threads.run(lambda: release.wait(BOUND), 0.05)
    task = asyncio.create_task(threads.run(lambda: release.wait(BOUND), BOUND))
    await until(lambda: threads.busy == 2, "both at work")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threads.busy == 2
    release.set()
    await until(lambda: threads.busy == 0, "both have ended")
    assert await threads.run(lambda: 1, BOUND) == 1


async def test_closing_ends_idle_threads_and_later_those_at_work() -> None:
    threads = ToolThreads(2)
    release, ended = threading.Event(), threading.Event()
    names = [await threads.run(lambda: threading.current_thread(), BOUND)]

    def work() -> None:
        names.append(threading.current_thread())
        release.wait(BOUND)
        ended.set()

    task = asyncio.create_task(threads.run(work, BOUND))
    await until(lambda: threads.busy == 1, "one at work")
    other = await threads.run(threading.current_thread, BOUND)
    threads.close()
    await until(lambda: not other.is_alive(), "the idle one has ended")
    release.set()
    await within(task)
    await until(lambda: not any(thread.is_alive() for thread in names), "the other has ended too")


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    code = """
import asyncio, threading
from cellblock.tools.python.python_calls import StillRunning, ToolThreads
async def main():
    threads = ToolThreads(1)
    try:
        await threads.run(threading.Event().wait, 0.05)
    except StillRunning:
        print("given up")
    threads.close()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
