"""The thread that keeps outputs: in turn, and nothing waits for it longer than its bound."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cellblock.frontend.outputs.disk_thread import DiskThread


async def test_work_is_done_in_turn_and_closing_comes_last() -> None:
    disk, done = DiskThread(), list[int]()
    futures = [disk.submit(done.append, number) for number in range(100)]
    await asyncio.wrap_future(futures[-1])
    assert await disk.close(lambda: done.append(100), 5.0)
    assert done == list(range(101))
    with pytest.raises(RuntimeError):
        disk.submit(print)


async def test_what_fails_is_told_and_costs_nobody_else() -> None:
    disk = DiskThread()
    failing = disk.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.wrap_future(failing)
    assert await asyncio.wrap_future(disk.submit(int, "7")) == 7
    assert await disk.close(lambda: None, 5.0)


async def test_closing_cancels_what_waits_and_does_not_wait_for_what_hangs() -> None:
    disk, began, go_on, removed = DiskThread(), threading.Event(), threading.Event(), threading.Event()
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
    assert await DiskThread().close(done.set, 5.0)
    assert done.is_set()
