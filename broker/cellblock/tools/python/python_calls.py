"""The Python functions that a user gives stand as one server among the others. They are called in this process, each
within a bound: async ones on the event loop, others in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final

from cellblock.base.budget import Account, Metered
from cellblock.base.errors import Certainty, ConfigError, ScriptError, ToolCallError
from cellblock.base.raw_json import RawJson, is_small
from cellblock.base.redaction import describe_exception, safe_traceback
from cellblock.base.tasks import DaemonThread, TaskSet, at_most, call_when_done, end_tasks
from cellblock.tools.catalog.naming import check_tool_name
from cellblock.tools.python.python_tools import PythonTool, read_tool
from cellblock.tools.upstream.wire.results import ToolResult

logger = logging.getLogger("cellblock.tools.upstream")

CANCEL_BOUND_SECONDS: Final = 1.0
"""Bounds the wait from cancelling an async tool to giving up on it; a call's own cancellation is waited for twice as
long."""

LONG_STEP_SECONDS: Final = 0.5
"""Bounds how long an async tool may hold the event loop unnamed: of a longer one the log tells, as everything else
stood still meanwhile."""

SHORT_STEP_SECONDS: Final = 0.001
"""Bounds a step of an async tool that counts as computing from end to end; of a longer one the kernel is asked."""


class AllBusy(Exception):
    """Tells that all threads were busy for too long; the work was not started."""


class StillRunning(Exception):
    """Tells that work did not end in time; its thread goes on with it."""


class ToolThreads:
    """Runs blocking work beside the event loop.

    Args:
        maximum: Threads; a piece of work that nobody waits for any more holds its own until it ends.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._free = asyncio.Semaphore(maximum)
        self._idle: list[DaemonThread] = []
        self._closed = False

    async def run(self, work: Callable[[], Any], bound: float) -> Any:
        """Returns the result of `work()`, called in a thread with a copy of this context.

        Raises:
            AllBusy: `bound` seconds went by without a free thread, or none could be started.
            StillRunning: They went by before the work ended.
            BaseException: Whatever the work raised.
        """
        deadline = asyncio.get_running_loop().time() + bound
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise AllBusy(f"All {self._maximum} threads for tools are busy.") from None
        thread = self._idle.pop() if self._idle else DaemonThread("cellblock-tool")
        try:
            future = thread.submit(contextvars.copy_context().run, work)
        except RuntimeError:
            self._free.release()
            raise AllBusy("No thread can be started for a tool.") from None
        is_done = asyncio.Event()

        def ended() -> None:
            is_done.set()
            self._free.release()
            if self._closed:
                thread.end()
            else:
                self._idle.append(thread)

        # A tool that nobody waits for may end when the loop is closed.
        call_when_done(future, ended)
        try:
            async with asyncio.timeout_at(deadline):
                await is_done.wait()
        except TimeoutError:
            raise StillRunning from None
        return future.result()

    def close(self) -> None:
        """Ends the idle threads; one at work ends after it."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()


class _Clock:
    """Belongs to an async call: its task is cancelled at its bound, and once more if the function goes on after that.

    Attributes:
        cancelled: How often it was.
    """

    def __init__(self, task: asyncio.Task[Any], due: float) -> None:
        self.task, self.due, self.cancelled = task, due, 0


class PythonCalls:
    """Holds the Python tools, by name, and runs their functions.

    Args:
        functions: The tools.
        bound: Longest time of one call, in seconds, waiting for a thread included.
        threads: Most functions that are not async at the same time.
        most: Cap of the JSON that comes of one call, in bytes.

    Raises:
        ConfigError: Two share a name.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any]] = (), *, bound: float, threads: int, most: int
    ) -> None:
        self.tools: dict[str, PythonTool] = {}
        for function in functions:
            tool = read_tool(function)
            check_tool_name(tool.name)
            if tool.name in self.tools:
                raise ConfigError(f"Two Python tools are called {tool.name}.", hint="Rename one.")
            self.tools[tool.name] = tool
        self._bound, self._most = bound, most
        self._threads = ToolThreads(threads)
        self._clocks: set[_Clock] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = TaskSet()
        self._computed_at = self._computed = 0.0
        self._named: set[str] = set()

    async def call(
        self, tool: PythonTool, arguments: dict[str, Any], account: Account | None = None
    ) -> RawJson | ToolResult:
        """Calls the function and gives its value as JSON, or as a `ToolResult`.

        A call that takes too long ends here, and so does one in a thread that is cancelled: what cannot be stopped, or
        does not heed it, goes on without anyone waiting for it. An async function is called in the caller's task, and
        so is its cancellation its own to heed.

        Raises:
            SchemaValidationError: The input does not fit the signature; the function was not called.
            ToolCallError: The function raised, took too long, or its value does not fit what it declares.
        """
        most = self._most
        if tool.is_async:
            work = _on_loop(tool, partial(tool.called, arguments), most, account)
            return await self._bounded(tool, work, account)
        try:
            value = await self._threads.run(lambda: _thread_call(tool, arguments, most, account), self._bound)
            if inspect.isawaitable(value):
                work = _on_loop(tool, lambda: value, most, account)
                return await self._bounded(tool, work, account)
            return value
        except AllBusy as error:
            raise ToolCallError(
                f"{tool.name} was not called: {error}",
                hint="Try again later, with fewer calls at a time.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        except StillRunning:
            raise self._too_late(tool) from None

    async def close(self) -> None:
        """Cancels async tools that did not end when they were told to, and ends the idle threads."""
        async with at_most(CANCEL_BOUND_SECONDS):
            await end_tasks(*self._waiting, *(clock.task for clock in self._clocks))
        self._threads.close()

    # ---- inside --------------------------------------------------------------------------------------

    @types.coroutine
    def _bounded(
        self, tool: PythonTool, work: Coroutine[Any, Any, Any], account: Account | None
    ) -> Generator[Any, Any, Any]:
        """Runs the function in the task of the call, which has no need of another: most of it ends without a wait.

        Work that goes on for a second after it was cancelled at its bound is left to a task of its own.
        """
        clock: _Clock | None = None
        thrown: BaseException | None = None
        try:
            while True:
                began = time.monotonic()
                if began - self._computed_at > SHORT_STEP_SECONDS:
                    self._computed_at, self._computed = began, time.thread_time()
                try:
                    waited_for = work.send(None) if thrown is None else work.throw(thrown)
                except BaseException as end:
                    if clock is not None and clock.cancelled:
                        raise self._too_late(tool) from None
                    if isinstance(end, StopIteration):
                        return end.value
                    raise
                finally:
                    took = time.monotonic() - began
                    if account is not None:
                        computed = took if took < SHORT_STEP_SECONDS else time.thread_time() - self._computed
                        account.add_cpu(min(took, computed) * 1000)
                    if took > LONG_STEP_SECONDS and tool.name not in self._named:
                        self._named.add(tool.name)
                        advice = "make it a plain `def`, which runs in a thread"
                        logger.warning(
                            "the async tool %s held the event loop for %.1f s; %s", tool.name, took, advice
                        )
                if clock is None:
                    clock = self._begin_clock()
                thrown = yield from _wait(work, waited_for)
                if thrown is not None and clock.cancelled > 1:
                    self._leave(work, thrown)
                    raise self._too_late(tool) from None
        finally:
            if clock is not None:
                self._clocks.discard(clock)
                for _ in range(clock.cancelled):
                    clock.task.uncancel()

    def _begin_clock(self) -> _Clock:
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        clock = _Clock(task, loop.time() + self._bound)
        self._clocks.add(clock)
        if self._timer is None or self._timer.when() > clock.due:
            self._set_timer(loop)
        return clock

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the one timer of all clocks for the first that is due."""
        if self._timer is not None:
            self._timer.cancel()
        due = min((clock.due for clock in self._clocks if clock.cancelled < 2), default=None)
        self._timer = None if due is None else loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        for clock in self._clocks:
            if clock.cancelled < 2 and clock.due <= loop.time():
                clock.cancelled += 1
                clock.due = loop.time() + CANCEL_BOUND_SECONDS
                clock.task.cancel()
        self._set_timer(loop)

    def _leave(self, work: Coroutine[Any, Any, Any], thrown: BaseException) -> None:
        # Its exception is seen, so that asyncio does not report it: nobody waits any more.
        task = self._waiting.start(_left(work, thrown))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _too_late(self, tool: PythonTool) -> ToolCallError:
        return ToolCallError(
            f"{tool.name} did not end within {self._bound:g} s.",
            hint="Check whether the call took effect; ask for less at a time.",
            summary="no answer in time",
        )


async def _left(work: Coroutine[Any, Any, Any], thrown: BaseException) -> None:
    """Goes on with work that does not heed its cancellation."""
    await _from(work, thrown)


@types.coroutine
def _from(work: Coroutine[Any, Any, Any], first: BaseException) -> Generator[Any, Any, None]:
    thrown: BaseException | None = first
    while True:
        try:
            waited_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration:
            return
        thrown = yield from _wait(work, waited_for)


def _wait(work: Coroutine[Any, Any, Any], waited_for: Any) -> Generator[Any, Any, BaseException | None]:
    """Waits for what the work waits for, and returns what is to be thrown into it then."""
    try:
        yield waited_for
    except GeneratorExit:
        work.close()
        raise
    except BaseException as error:  # noqa: BLE001 - thrown in here to be thrown on
        return error
    return None


async def _on_loop(tool: PythonTool, begin: Callable[[], Any], most: int, account: Account | None) -> Any:
    """Waits for what a function gives, and makes its JSON: here, or, where it is large, beside the loop."""
    try:
        value = begin()
        if inspect.isawaitable(value):
            value = await value
        if is_small(value):
            return tool.result.encoded(value, most, small=True)
        return await asyncio.to_thread(_large, tool, value, most, account)
    except (ScriptError, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - asyncio lets a tool's SystemExit out of the loop
        raise _raised(tool, error) from None


def _large(tool: PythonTool, value: Any, most: int, account: Account | None) -> Any:
    """Makes the JSON of a large value in this thread."""
    with Metered(account):
        return tool.result.encoded(value, most, small=False)


def _thread_call(tool: PythonTool, arguments: dict[str, Any], most: int, account: Account | None) -> Any:
    """Makes the whole of a call that may block, metered for the run that asked: a type's own validators and
    serialisers too. What the function has other threads or processes do is on nobody's."""
    try:
        with Metered(account):
            value = tool.called(arguments)
            return value if inspect.isawaitable(value) else tool.result.encoded(value, most, small=False)
    except ScriptError:
        raise
    except BaseException as error:  # noqa: BLE001 - asyncio lets a tool's SystemExit out of the loop
        raise _raised(tool, error) from None


def _raised(tool: PythonTool, error: BaseException) -> ToolCallError:
    """Makes whatever a user's function has raised the script's exception."""
    description = describe_exception(error)
    logger.warning("the Python tool %s raised\n%s", tool.name, safe_traceback(error, description))
    return ToolCallError(
        f"{tool.name} raised {description}",
        hint="Correct the input as the message says, or report it to the tool's authors.",
        summary="the tool raised an exception",
    )


TOOL_THREADS: Final = 32
"""Caps the Python tools that are not async and run at the same time, each in a thread; one that never returns keeps its
thread."""
