"""Waits for a task as which a server runs a tool (MCP 2025-11-25): the call has the task's result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp import MCPError

from cellblock.base.json import is_object
from cellblock.tools.upstream.wire import repair
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused

POLL_SECONDS: Final = 0.5
MIN_POLL_SECONDS: Final = 0.05
MAX_POLL_SECONDS: Final = 5.0
"""Set the pause between two questions for a task whose server names none, and bound the one that it names."""

_NOT_BEGUN: Final = (types.METHOD_NOT_FOUND, -32001)
"""Lists the codes of an answer to a call that say that it was not begun; the second is of a forgotten session."""


def task_of(body: bytes) -> dict[str, Any] | None:
    """Returns the task that a tool call was answered with; None where it was answered with its result."""
    task = repair.member(body, "task")
    return task if is_object(task) and isinstance(task.get("taskId"), str) else None


async def result_of_task(
    task: dict[str, Any], ask: Callable[[str], Awaitable[dict[str, Any]]], cancel: Callable[[], object]
) -> dict[str, Any]:
    """Waits for a task, and returns its result.

    Args:
        task: As the server answered the call.
        ask: Sends a request about the task.
        cancel: Has it cancelled where nobody waits for it any more.
    """
    try:
        while task.get("status") == "working":
            await asyncio.sleep(_pause_of(task))
            task = await ask("tasks/get")
        # Of one that needs input, this brings the questions, and waits.
        return await ask("tasks/result")
    except MCPError as error:
        # The tool runs: nothing may be taken to say that it was not called.
        if isinstance(error, ConnectionLost):
            raise ConnectionLost(error.message, sent=True) from None
        if isinstance(error, HttpRefused) or error.code in _NOT_BEGUN:
            raise MCPError(types.INTERNAL_ERROR, f"its task is lost: {error.message}") from None
        raise
    except asyncio.CancelledError:
        cancel()
        raise


def _pause_of(task: dict[str, Any]) -> float:
    wanted = task.get("pollInterval")
    if not isinstance(wanted, int | float) or isinstance(wanted, bool):
        return POLL_SECONDS
    return min(max(wanted / 1000, MIN_POLL_SECONDS), MAX_POLL_SECONDS)
