"""Tells the streams of `subscriptions/listen` how tasks are getting on.

The SDK's streams know nothing of tasks: what they acknowledge is completed here, and tasks are told beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final, cast

import mcp_types as types
from mcp import MCPError
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY

from cellblock.serve.client import Context
from cellblock.serve.mcp.task_models import Task, TaskNotification
from cellblock.serve.mcp.tasks import Tasks, require_tasks

logger = logging.getLogger("cellblock.serve")

TASK_IDS: Final = "taskIds"

MAX_TASKS: Final = 64
"""Bounds the tasks of one stream; each is looked at in every round."""

FINAL: Final = frozenset(("completed", "failed", "cancelled"))


class _Stream(ServerSession):
    """The session of a stream acknowledges tasks as well."""

    def __init__(self, session: ServerSession, task_ids: list[str]) -> None:
        self.__dict__.update(session.__dict__)
        self.acknowledged = asyncio.Event()
        self._task_ids = task_ids

    async def send_notification(
        self, notification: types.ServerNotification, related_request_id: types.RequestId | None = None
    ) -> None:
        if isinstance(notification, types.SubscriptionsAcknowledgedNotification):
            shown = notification.params.notifications.model_copy(update={TASK_IDS: self._task_ids})
            params = notification.params.model_copy(update={"notifications": shown})
            notification = notification.model_copy(update={"params": params})
        await super().send_notification(notification, related_request_id)
        self.acknowledged.set()


@contextlib.asynccontextmanager
async def told_of_tasks(
    tasks: Tasks, context: Context, params: types.SubscriptionsListenRequestParams
) -> AsyncGenerator[Context]:
    """Tells the stream of a request, inside the block, of the tasks that it names; gives the context for the rest.

    Raises:
        MCPError: The client has no tasks, or names them in a wrong way.
    """
    wanted: Any = (params.notifications.model_extra or {}).get(TASK_IDS)
    if wanted is None:
        yield context
        return
    require_tasks(context)
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in cast("list[Any]", wanted)):
        raise MCPError(types.INVALID_PARAMS, f"{TASK_IDS} is a list of task ids.")
    names = list(dict.fromkeys(cast("list[str]", wanted)))[:MAX_TASKS]
    known = [name for name in names if await tasks.found(context, name) is not None]
    stream = _Stream(context.session, known)
    teller = asyncio.create_task(_tell(tasks, context, stream, known), name="tasks of a stream")
    try:
        yield replace(context, session=stream)
    finally:
        teller.cancel()


async def _tell(tasks: Tasks, context: Context, stream: _Stream, names: list[str]) -> None:
    """Sends each task as it is, and whenever its status or its questions have changed, until it is over."""
    await stream.acknowledged.wait()
    meta, told = {SUBSCRIPTION_ID_META_KEY: context.request_id}, dict[str, Any]()
    while names:
        seen = tasks.changes
        for name in list(names):
            try:
                task = await tasks.found(context, name)
            except MCPError as error:
                logger.info("a task cannot be looked at: %s", error)
                continue
            now = task and (task.status, tuple(task.input_requests or ()))
            if task is not None and told.get(name) != now:
                told[name] = now
                await context.session.send_notification(_notification(task, meta), context.request_id)
            if task is None or task.status in FINAL:
                names.remove(name)
        await tasks.changed(seen)


def _notification(task: Task, meta: dict[str, Any]) -> types.ServerNotification:
    shown = task.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
    return cast("types.ServerNotification", TaskNotification(params={**shown, "_meta": meta}))
