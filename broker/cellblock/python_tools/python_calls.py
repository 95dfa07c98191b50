"""Calls Python tools in this process, each within a bound: async ones on the event loop, others in threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from cellblock.apart.light import containers_in, is_small
from cellblock.apart.raw import RawJson
from cellblock.base.errors import Certainty, ScriptError, ToolCallError
from cellblock.config.secrets.safe_text import describe_exception, safe_traceback
from cellblock.python_tools.python_tools import PythonTool
from cellblock.python_tools.tool_threads import AllBusy, StillRunning, ToolThreads

logger = logging.getLogger("cellblock.upstream")

CANCEL_BOUND_SECONDS: Final = 1.0
"""Bounds the wait from cancelling an async tool to giving up on it; a call's own cancellation is waited for twice as
long."""

LONG_STEP_SECONDS: Final = 0.5
"""An async tool that holds the event loop for longer is named in the log: everything else stood still meanwhile."""


MAX_VALUES: Final = 100_000
"""Bounds the values in an input of a Python tool that is over what is decoded on the loop; so many take some 5 ms, and
bytes in texts next to nothing."""


class PythonCalls:
    """Runs the functions of Python tools.

    Args:
        bound: Longest time of one call, in seconds, waiting for a thread included.
        threads: Most functions that are not async at the same time.
    """

    def __init__(self, *, bound: float, threads: int) -> None:
        self._bound = bound
        self._threads = ToolThreads(threads)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._named: set[str] = set()

    @property
    def busy_threads(self) -> int:
        """Counts the threads at work, those of calls that were given up included."""
        return self._threads.busy

    async def call(self, tool: PythonTool, arguments: dict[str, Any] | RawJson) -> Any:
        """Calls the function and gives its value as plain JSON data, or as a `CallToolResult`.

        A call that is cancelled or takes too long ends here at once; a function in a thread cannot be stopped, and
        goes on without anyone waiting for it.

        Raises:
            SchemaValidationError: The input does not fit the signature; the function was not called.
            ToolCallError: The function raised, took too long, or its value does not fit what it declares.
        """
        if isinstance(arguments, RawJson):
            arguments = _decoded(tool, arguments)
        try:
            if tool.is_async:
                return await self._on_loop(tool, self._loop_call(tool, arguments))
            value = await self._threads.run(lambda: _thread_call(tool, arguments), self._bound)
            if inspect.isawaitable(value):
                return await self._on_loop(tool, _awaited(tool, value))
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
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_BOUND_SECONDS)
        self._threads.close()

    # ---- inside --------------------------------------------------------------------------------------

    async def _on_loop(self, tool: PythonTool, work: Coroutine[Any, Any, Any]) -> Any:
        # A task of its own: a function that swallows its cancellation must not hold up the call.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        try:
            await asyncio.wait({task}, timeout=self._bound)
            if task.done():
                return task.result()
        except asyncio.CancelledError:
            if not task.done():
                await self._cancel(task)
            raise
        await self._cancel(task)
        raise self._too_late(tool)

    async def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_BOUND_SECONDS)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it when nobody waits any more

    async def _loop_call(self, tool: PythonTool, arguments: dict[str, Any]) -> Any:
        def note(seconds: float) -> None:
            if tool.name not in self._named:
                self._named.add(tool.name)
                logger.warning(
                    "the async tool %s held the event loop for %.1f s; make it a plain `def`, which runs in a thread",
                    tool.name,
                    seconds,
                )

        with _named_errors(tool, asyncio.CancelledError):
            value = tool.invocation(arguments)()
            if inspect.iscoroutine(value):
                value = await _stepwise(value, note)
            elif inspect.isawaitable(value):
                value = await value
            return await _plain(tool, value)

    def _too_late(self, tool: PythonTool) -> ToolCallError:
        return ToolCallError(
            f"{tool.name} did not end within {self._bound:g} s.",
            hint="Check whether the call took effect; ask for less at a time.",
            summary="no answer in time",
        )


def _decoded(tool: PythonTool, arguments: RawJson) -> dict[str, Any]:
    """Decodes a large input, where it is few values: a function in this process can only have it decoded in this
    process."""
    values = arguments.raw.count(b",") + containers_in(arguments.raw)
    if values > MAX_VALUES:
        raise ToolCallError(
            f"{tool.name} was not called: its input has up to {values} values, and a Python tool takes {MAX_VALUES}.",
            hint="Send fewer values at a time, or one long text in their place.",
            certainty=Certainty.NOT_STARTED,
            summary="the input has too many values for a Python tool",
        )
    return arguments.decoded()


def _thread_call(tool: PythonTool, arguments: dict[str, Any]) -> Any:
    """Makes all of a call that may block: a type's own validators and serialisers too."""
    with _named_errors(tool):
        value = tool.invocation(arguments)()
        return value if inspect.isawaitable(value) else tool.result.plain(value)


async def _plain(tool: PythonTool, value: Any) -> Any:
    """Makes plain what an async function gave: here, or, where it is large, beside the loop."""
    if is_small(value):
        return tool.result.plain(value, small=True)
    return await asyncio.to_thread(tool.result.plain, value, small=False)


async def _awaited(tool: PythonTool, value: Any) -> Any:
    """Does the rest of a call whose function is plain, but gave something to wait for."""
    with _named_errors(tool, asyncio.CancelledError):
        return await _plain(tool, await value)


@contextlib.contextmanager
def _named_errors(tool: PythonTool, *passed: type[BaseException]) -> Generator[None]:
    """Makes whatever a user's function raises the script's exception, but for `passed`."""
    try:
        yield
    except (ScriptError, *passed):
        raise
    except BaseException as error:  # noqa: BLE001 - asyncio lets a tool's SystemExit out of the loop
        description = describe_exception(error)
        logger.warning("the Python tool %s raised\n%s", tool.name, safe_traceback(error, description))
        raise ToolCallError(
            f"{tool.name} raised {description}",
            hint="Correct the input as the message says, or report it to the tool's authors.",
            summary="the tool raised an exception",
        ) from None


@types.coroutine
def _stepwise(
    coroutine: Coroutine[Any, Any, Any], on_long_step: Callable[[float], None]
) -> Generator[Any, Any, Any]:
    """Awaits a coroutine and times what it does between two waits."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        began = time.monotonic()
        try:
            waited_for = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            return end.value
        finally:
            took = time.monotonic() - began
            if took > LONG_STEP_SECONDS:
                on_long_step(took)
        sent, thrown = None, None
        try:
            sent = yield waited_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in here to be thrown on
            thrown = error
