"""Tasks are how clients that declare the extension `io.modelcontextprotocol/tasks` see parked runs.

A task is a run that was parked, and nothing beside it: its id is the run's with a tag that only this state directory
can make, for one principal. So any broker of the directory answers for it, also after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.base.database import StoreError
from cellblock.run.hook import CANCELLED
from cellblock.run.response import RunResponse
from cellblock.serve.client import Context, OwnerOf
from cellblock.serve.mcp.approvals import answers_in, parked_requests
from cellblock.serve.mcp.request_state import digest_of, text_of
from cellblock.serve.mcp.requests_back import can_answer
from cellblock.serve.mcp.task_models import EXTENSION, Task, TaskParams, UpdateTaskParams
from cellblock.serve.service import RunService
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

Shown = Callable[[Context, RunResponse], Awaitable[types.CallToolResult]]
"""Makes the result of a run as the client of a request gets it."""


class Tasks:
    """Answers `tasks/*`, and makes a task of a run that is parked.

    Args:
        service: The broker.
        owner_of: Says whose a request is.
        shown: Makes the result of a call of `codemode.run`.
    """

    def __init__(self, service: RunService, owner_of: OwnerOf, shown: Shown) -> None:
        self._service, self._owner_of, self._shown = service, owner_of, shown
        self._keys: Sequence[bytes] = ()

    @property
    def changes(self) -> int:
        """Counts what may have changed of tasks."""
        return self._service.parked_runs.going_on.changes

    async def changed(self, since: int) -> None:
        """Waits until something may have changed of tasks, after so many `changes`, for a bounded time."""
        await self._service.parked_runs.going_on.changed(since)

    async def created(self, context: Context, run_id: str | None) -> Task | None:
        """Returns what the call of a run that was parked is answered with; None where its client has no tasks, or the
        run is not kept."""
        if not run_id or not has_tasks(context):
            return None
        principal = self._owner_of(context).principal
        with unreadable():
            status = await self._service.parked_runs.status(run_id, principal)
            if status is None:
                return None
            task = self._described(context, status, (await self._ids_of(run_id, principal))[0])
        return task.model_copy(update={"result_type": "task", "input_requests": None})

    async def get(self, context: Context, params: TaskParams) -> Task:
        """Handles `tasks/get`."""
        _, task = await self._required(context, params)
        return task

    async def update(self, context: Context, params: UpdateTaskParams) -> types.EmptyResult:
        """Handles `tasks/update`: the run goes on when all is answered; what was not asked is ignored."""
        run_id, task = await self._required(context, params)
        answers = answers_in(params.input_responses)
        if answers and task.status not in ("completed", "failed", "cancelled"):
            with unreadable():
                await self._service.parked_runs.answer(run_id, answers, self._owner_of(context).principal)
        return types.EmptyResult()

    async def cancel(self, context: Context, params: TaskParams) -> types.EmptyResult:
        """Handles `tasks/cancel`; a run that its client came back for is not ended."""
        run_id, _ = await self._required(context, params)
        with unreadable():
            await self._service.parked_runs.stop(run_id, self._owner_of(context).principal)
        return types.EmptyResult()

    async def found(self, context: Context, task_id: str) -> Task | None:
        """Returns a task as it is now; None where this client's principal has no such task.

        Raises:
            MCPError: It cannot be read.
        """
        principal, (run_id, _, _) = self._owner_of(context).principal, task_id.partition(".")
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

    # ---- inside --------------------------------------------------------------------------------------

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
