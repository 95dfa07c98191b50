"""Describes the messages of the Tasks extension as its text of 2026-07-28 has them; the SDK has those of 2025-11-25."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import mcp_types as types
from pydantic import Field

EXTENSION: Final = "io.modelcontextprotocol/tasks"
"""Names the extension in the capabilities of client and server."""

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

TaskId = Annotated[str, Field(max_length=256)]


class TaskParams(types.RequestParams):
    """Describes the parameters of `tasks/get` and `tasks/cancel`."""

    task_id: TaskId


class UpdateTaskParams(TaskParams):
    """Describes the parameters of `tasks/update`."""

    input_responses: types.InputResponses


class Task(types.Result):
    """Describes a task, flat in a result. Times are ISO 8601 in UTC, `ttl_ms` counts from `created_at`; the last three
    are there as the status has them."""

    result_type: Literal["complete", "task"] = "complete"
    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int
    input_requests: types.InputRequests | None = None
    result: types.CallToolResult | None = None
    error: types.ErrorData | None = None


class TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """Tells a stream of a task, as `tasks/get` would."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]
