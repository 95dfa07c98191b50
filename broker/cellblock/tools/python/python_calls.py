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
from cellblock.base.tasks import DaemonThread, call_when_done
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
        self._waiting: set[asyncio.Task[Any]] = set()
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
        if tool.is_async:
            work = _on_loop(tool, partial(tool.called, arguments), self._most, account)
            return await self._bounded(tool, work, account)
        try:
            most = self._most
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
        for task in self._waiting:
            task.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=CANCEL_BOUND_SECONDS)
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
                computed = time.thread_time()
                try:
                    waited_for = work.send(None) if thrown is None else work.throw(thrown)
                except StopIteration as end:
                    if clock is None or not clock.late:
                        return end.value
                    raise self._too_late(tool) from None
                except BaseException:
                    if clock is None or not clock.late:
                        raise
                    raise self._too_late(tool) from None
                finally:
                    if account is not None:
                        account.add_cpu((time.thread_time() - computed) * 1000)
                    took = time.monotonic() - began
                    if took > LONG_STEP_SECONDS and tool.name not in self._named:
                        self._named.add(tool.name)
                        advice = "make it a plain `def`, which runs in a thread"
                        logger.warning(
                            "the async tool %s held the event loop for %.1f s; %s", tool.name, took, advice
                        )
                if clock is None:
                    clock = _Clock(self._bound, self._waiting)
                thrown = yield from _wait(work, waited_for)
                if thrown is not None and clock.given_up:
                    self._leave(work, thrown)
                    raise self._too_late(tool) from None
        finally:
            if clock is not None:
                clock.stop()

    def _leave(self, work: Coroutine[Any, Any, Any], thrown: BaseException) -> None:
        task = asyncio.create_task(_left(work, thrown))
        self._waiting.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it: nobody waits any more

    def _too_late(self, tool: PythonTool) -> ToolCallError:
        return ToolCallError(
            f"{tool.name} did not end within {self._bound:g} s.",
            hint="Check whether the call took effect; ask for less at a time.",
            summary="no answer in time",
        )


class _Clock:
    """Ends an async call at its bound: cancels its task, and once more when the function has gone on after that.

    Args:
        bound: Seconds from now on.
        waiting: Has the task meanwhile.

    Attributes:
        late: The bound has passed.
        given_up: `CANCEL_BOUND_SECONDS` have passed since.
    """

    def __init__(self, bound: float, waiting: set[asyncio.Task[Any]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._waiting = task, waiting
        self.late = self.given_up = False
        waiting.add(task)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(bound, self._end)

    def stop(self) -> None:
        """Takes the bound away, and the cancellations back that it has made."""
        self._timer.cancel()
        self._waiting.discard(self._task)
        for _ in range(self.late + self.given_up):
            self._task.uncancel()

    def _end(self) -> None:
        self.late = True
        self._timer = self._loop.call_later(CANCEL_BOUND_SECONDS, self._give_up)
        self._task.cancel()

    def _give_up(self) -> None:
        self.given_up = True
        self._task.cancel()


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
