"""An event loop whose clock stands still while anything is ready, and jumps to the next timer when nothing is.

Deadlines of seconds pass in no time, and in the order in which they would.
"""

import asyncio
import contextlib
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _Jump(selectors.DefaultSelector):
    """Waits for nothing: the time that the loop would have waited is added to its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the loop would wait for ever: nothing is ready and there is no timer")
        found = super().select(0)
        if not found and timeout > 0:
            self.now += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Close it when done."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jump.now


def in_virtual_time(work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` gives on such a loop of its own."""
    with contextlib.closing(VirtualTimeLoop()) as loop:
        return loop.run_until_complete(work)


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on such a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        in_virtual_time(test(*args, **named))

    return run
