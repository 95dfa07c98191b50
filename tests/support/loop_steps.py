"""Measures what a step of the event loop takes."""

import asyncio
import gc
import time
from asyncio import events
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def longest_step() -> Generator[list[float]]:
    """Gives the CPU seconds of this thread that the longest callback in the block took."""
    longest = [0.0]
    handle: Any = events.Handle
    run = handle._run

    def measured(self: Any) -> None:
        began = time.thread_time()
        try:
            run(self)
        finally:
            longest[0] = max(longest[0], time.thread_time() - began)

    # What other tests have left is not walked by the collector, nor later: given back, it would be with all that was
    # collected (conftest.py).
    gc.collect()
    gc.freeze()
    handle._run = measured
    try:
        yield longest
    finally:
        handle._run = run
    assert asyncio.get_running_loop().is_running()
