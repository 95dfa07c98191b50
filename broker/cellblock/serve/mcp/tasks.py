"""Tasks are how clients that declare the extension `io.modelcontextprotocol/tasks` see runs that wait or take long.

A task is a run that was written down, and nothing beside it: its id is the run's with a tag that only this state
directory can make, for one principal. So any broker of the directory answers for it, also after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import mcp_types as types
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.base.database import StoreError
from cellblock.base.json import is_array
from cellblock.base.tasks import in_background
from cellblock.run.hook import CANCELLED
from cellblock.run.response import RunResponse
from cellblock.serve.mcp.approvals import answers_in, parked_requests
from cellblock.serve.mcp.front import Front
from cellblock.serve.mcp.request_state import digest_of, text_of
from cellblock.serve.mcp.requests_back import can_answer
from cellblock.serve.mcp.task_models import EXTENSION, Task, TaskNotification, TaskParams, UpdateTaskParams
from cellblock.serve.service import Context
from cellblock.tools.schemas.replies import WrongAnswer

if TYPE_CHECKING:
    from cellblock.record.views import ParkedStatus

logger = logging.getLogger("cellblock.serve")

PURPOSE: Final = "task id"
"""Names the purpose for which the signing key is derived."""

TAG_BYTES: Final = 16

WORKING_POLL_MS: Final = 1_000
ASKING_POLL_MS: Final = 5_000
"""Set the pauses between two looks that clients are told: a run that goes on is done soon, a person takes longer."""

WAITS: Final = "The run waits for its user's answer."
WAITS_ELSEWHERE: Final = "The run waits for its user's answer, for which this client has no form."
NO_RESPONSE: Final = "The run could not go on, or its response could not be kept."

TASK_IDS: Final = "taskIds"

MAX_TASKS: Final = 64
"""Bounds the tasks of one stream; each is looked at in every round."""

FINAL: Final = frozenset(("completed", "failed", "cancelled"))

Shown = Callable[[Context, RunResponse], Awaitable[types.CallToolResult]]
"""Makes the result of a run as the client of a request gets it."""


class _Stream(ServerSession):
    """The session of a stream acknowledges tasks as well, of which the SDK's streams know nothing."""

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


class Tasks:
    """Answers `tasks/*`, and makes a task of a run that is written down.

    Args:
        front: Of the broker.
        shown: Makes the result of a call of `codemode.run`.
    """

    def __init__(self, front: Front, shown: Shown) -> None:
        self._front, self._service, self._shown = front, front.service, shown
        self._keys: Sequence[bytes] = ()

    async def created(self, context: Context, run_id: str | None) -> Task | None:
        """Returns what the call of a run that goes on is answered with; None where its client has no tasks, or the run
        is not kept. Raises StoreError."""
        if not run_id or not has_tasks(context):
            return None
        principal = self._front.principal_of(context)
        status = await self._service.parked_runs.status(run_id, principal)
        if status is None:
            return None
        task = self._described(context, status, (await self._ids_of(run_id, principal))[0])
        return task.model_copy(update={"result_type": "task", "input_requests": None})

    async def get(self, context: Context, params: TaskParams) -> Task:
        _, task = await self._required(context, params)
        return task

    async def update(self, context: Context, params: UpdateTaskParams) -> types.EmptyResult:
        """Handles `tasks/update`: the run goes on when all is answered; what was not asked is ignored."""
        run_id, task = await self._required(context, params)
        answers = answers_in(params.input_responses)
        if answers and task.status not in FINAL:
            with unreadable():
                await self._service.parked_runs.answer(run_id, answers, self._front.principal_of(context))
        return types.EmptyResult()

    async def cancel(self, context: Context, params: TaskParams) -> types.EmptyResult:
        """Handles `tasks/cancel`; a run that its client came back for is not ended."""
        run_id, _ = await self._required(context, params)
        with unreadable():
            await self._service.parked_runs.stop(run_id, self._front.principal_of(context))
        return types.EmptyResult()

    async def found(self, context: Context, task_id: str) -> Task | None:
        """Returns a task as it is now; None where this client's principal has no such task.

        Raises:
            MCPError: It cannot be read.
        """
        principal, (run_id, _, _) = self._front.principal_of(context), task_id.partition(".")
        with unreadable():
            given, right = task_id.encode("utf-8", "replace"), await self._ids_of(run_id, principal)
            if not any(hmac.compare_digest(given, one.encode("utf-8", "replace")) for one in right):
                return None
            status = await self._service.parked_runs.status(run_id, principal)
        if status is None:
            return None
        task = self._described(context, status, task_id)
        if task.status == "completed" and status.response is not None:
            task.result = await self._shown(context, status.response)
        return task

    @contextlib.asynccontextmanager
    async def told(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> AsyncGenerator[Context]:
        """Tells the stream of a request (`subscriptions/listen`), inside the block, of the tasks that it names; gives
        the context for the rest.

        Raises:
            MCPError: The client has no tasks, or names them in a wrong way.
        """
        wanted: Any = (params.notifications.model_extra or {}).get(TASK_IDS)
        if wanted is None:
            yield context
            return
        require_tasks(context)
        if not is_array(wanted) or not all(isinstance(one, str) for one in wanted):
            raise MCPError(types.INVALID_PARAMS, f"{TASK_IDS} is a list of task ids.")
        names = [str(one) for one in dict.fromkeys(wanted)][:MAX_TASKS]
        known = [name for name in names if await self.found(context, name) is not None]
        stream = _Stream(context.session, known)
        async with in_background(self._tell(context, stream, known), name="tasks of a stream"):
            yield replace(context, session=stream)

    # ---- inside --------------------------------------------------------------------------------------

    async def _tell(self, context: Context, stream: _Stream, names: list[str]) -> None:
        """Sends each task as it is, and whenever its status or its questions have changed, until it is over."""
        await stream.acknowledged.wait()
        meta, told = {SUBSCRIPTION_ID_META_KEY: context.request_id}, dict[str, Any]()
        going_on = self._service.parked_runs.going_on
        while names:
            seen = going_on.changes
            for name in list(names):
                try:
                    task = await self.found(context, name)
                except MCPError as error:
                    logger.info("a task cannot be looked at: %s", error)
                    continue
                now = task and (task.status, tuple(task.input_requests or ()))
                if task is not None and told.get(name) != now:
                    told[name] = now
                    await context.session.send_notification(_notification(task, meta), context.request_id)
                if task is None or task.status in FINAL:
                    names.remove(name)
            await going_on.changed(seen)

    async def _required(self, context: Context, params: TaskParams) -> tuple[str, Task]:
        """Returns the run and the task that a request names.

        Raises:
            MCPError: The client has no tasks, or not this one.
        """
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", data=context.method)
        require_tasks(context)
        headers: Any = getattr(context.request, "headers", None)
        if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id:
            raise MCPError(
                types.HEADER_MISMATCH,
                f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
            )
        task = await self.found(context, params.task_id)
        if task is None:
            raise MCPError(types.INVALID_PARAMS, "There is no task of this id, or it has expired.")
        return task.task_id.partition(".")[0], task

    async def _ids_of(self, run_id: str, principal: str) -> list[str]:
        """Returns the id of a run's task, for one principal, and those with other keys that are accepted. Raises
        StoreError."""
        self._keys = self._keys or await self._service.parked_runs.signing_keys(PURPOSE)
        named = f"{run_id}.{digest_of(principal)}".encode("utf-8", "surrogatepass")
        tags = (hmac.digest(key, named, hashlib.sha256)[:TAG_BYTES] for key in self._keys)
        return [f"{run_id}.{text_of(tag)}" for tag in tags]

    def _described(self, context: Context, run: ParkedStatus, task_id: str) -> Task:
        task = Task(
            task_id=task_id,
            status="working",
            created_at=_iso(run.began),
            last_updated_at=_iso(run.changed),
            ttl_ms=int((run.until - run.began) * 1000),
            poll_interval_ms=WORKING_POLL_MS,
        )
        if run.state == "parked" and run.questions:
            task.poll_interval_ms = ASKING_POLL_MS
            task.status_message = WAITS_ELSEWHERE
            if requests := parked_requests(run.questions, partial(can_answer, context)):
                task.status, task.status_message = "input_required", WAITS
                task.input_requests = requests
        elif run.outcome == CANCELLED:
            task.status = "cancelled"
        elif run.state == "ended" and run.response is None:
            task.status, task.status_message = "failed", NO_RESPONSE
            task.error = types.ErrorData(code=types.INTERNAL_ERROR, message=NO_RESPONSE)
        elif run.state == "ended":
            task.status = "completed"
        return task


def has_tasks(context: Context) -> bool:
    """Says whether the client of a request declares that it has tasks."""
    able = context.session.client_capabilities
    declared = None if able is None else able.extensions
    return (
        context.protocol_version in MODERN_PROTOCOL_VERSIONS
        and declared is not None
        and EXTENSION in declared
    )


def require_tasks(context: Context) -> None:
    """Raises MCPError where the client of a request does not declare that it has tasks."""
    if not has_tasks(context):
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"The client does not declare the extension {EXTENSION}.",
            data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


def _iso(seconds: float) -> str:
    """Returns Unix time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def unreadable() -> Generator[None]:
    """Words what the journals' file raises for a client, who may come back later, also with another answer."""
    try:
        yield
    except WrongAnswer as error:
        raise MCPError(types.INVALID_PARAMS, f"{error.message} {error.hint}") from None
    except StoreError as error:
        logger.warning("a parked run cannot be reached: %s", error)
        raise MCPError(
            types.INTERNAL_ERROR,
            "The run is parked and cannot be reached at the moment; nothing of it is lost. Try again.",
        ) from None


def _notification(task: Task, meta: dict[str, Any]) -> types.ServerNotification:
    shown = task.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
    return cast("types.ServerNotification", TaskNotification(params={**shown, "_meta": meta}))
