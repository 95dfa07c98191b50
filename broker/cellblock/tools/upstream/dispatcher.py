"""Keeps the requests of one connection to a server together with their answers: the SDK's session stands on it.

Our calls are told from the SDK's other requests by a number in their `_meta`, which is not sent: a call's input passes
the SDK's models by, and what the server asks on the stream of a call's answer has the call's number as its id there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import mcp_types as types
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.inbound import MCP_METHOD_HEADER, mcp_param_headers
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Raw
from opentelemetry.propagate import inject
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from cellblock.base.json import is_object
from cellblock.base.raw_json import is_light, step_for
from cellblock.base.tasks import at_most
from cellblock.tools.upstream.failures import AnswerUnreadable, ConnectionLost, HttpRefused
from cellblock.tools.upstream.outstanding import CALL_META, Outstanding
from cellblock.tools.upstream.wire import messages, repair
from cellblock.tools.upstream.wire.messages import (
    Failure,
    Message,
    Notification,
    Request,
    Result,
    Unreadable,
    fields_of,
)
from cellblock.tools.upstream.wire.results import ToolResult

logger = logging.getLogger("cellblock.tools.upstream")

AS_IT_IS: Final[TypeAdapter[Any]] = TypeAdapter(Any)
"""Takes a result as `Connection` gives it."""

LAST_SECONDS: Final = 2.0
"""Bounds the wait for answers that are on their way where a connection is over for further calls."""

ABANDON_SECONDS: Final = 5.0
"""Bounds the sending of the notice that a request is given up."""

MOST_SEARCHED: Final = 32
SEARCHED_BYTES: Final = 16 * 1024
"""Bound the results of a connection that are searched for names that they have twice, which a server has often or
never: such a search takes longer than reading."""

MOST_NOTES: Final = 5
"""Bounds the lines that are told of those that come before a server has introduced itself."""

TOO_LARGE: Final = "This request is larger than Cellblock takes from a server."


@dataclass(eq=False, slots=True)
class Pending:
    """A request that waits for its answer; `call` is the number of the call that it is of, 0 of none."""

    number: messages.Id
    method: str
    call: int
    answer: asyncio.Future[Result]
    on_progress: ProgressFnT | None
    sent: bool = False

    def fail(self, error: MCPError) -> None:
        """Ends the wait with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Wire(Protocol):
    """A transport that is open, see `stdio` and `http`; `where` names what it reads."""

    where: str

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        """Sends a request; returns when it is written, or on its way."""
        ...

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        """Sends a notification (`what` is its method) or an answer. Raises ConnectionLost."""
        ...

    def give_up(self, pending: Pending, version: str | None) -> bool:
        """Reads the answer to a request no further; says whether the server is to be told."""
        ...

    async def run(self, connection: Connection) -> None:
        """Reads until the connection ends."""
        ...


class Connection(Dispatcher[TransportContext]):
    """Implements the SDK's `Dispatcher` over a wire.

    Args:
        wire: Sends and receives.
        ended: Set when the connection is over.
        on_note: Told, as a sentence, what was odd in what the server sent.

    Attributes:
        version: The negotiated version of MCP, once it is known.
        param_headers: Of tools whose inputs are to be repeated in headers: which ones.
        task_tools: The tools that must be called as tasks.
        calls: Those under way, by number.
        cut: Why Cellblock ends the connection itself.
        noise: What the server wrote last that is no message.
        notes: What was odd in how it introduced itself, or came before, as sentences.
    """

    def __init__(self, wire: Wire, ended: asyncio.Event, on_note: Callable[[str], None]) -> None:
        self.version: str | None = None
        self.param_headers: dict[str, dict[tuple[str, ...], str]] = {}
        self.task_tools = frozenset[str]()
        self.calls: Mapping[int, Outstanding] = {}
        self.cut: str | None = None
        self.noise = ""
        self.notes: tuple[str, ...] = ()
        self.ended = ended
        self._wire = wire
        self._on_note = on_note
        self._next = 0
        self._calls_tasks = False
        self._searched = 0
        self._pending: dict[messages.Id, Pending] = {}
        self._handled: dict[messages.Id, anyio.CancelScope] = {}
        self._group: anyio.abc.TaskGroup | None = None
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._why_lost = "the connection was closed by the server"

    def end(self, why: str, *, cut: bool = True) -> None:
        """Ends the connection, for a reason of ours or because it is lost."""
        if cut:
            self.cut = self.cut or why
        self._why_lost = why
        self.ended.set()
        if self._group is not None:
            self._group.cancel_scope.cancel()

    async def last_answers(self) -> None:
        """Waits a moment for the answers to calls that are under way: one of its own says more of a call than that the
        connection was lost."""
        async with at_most(LAST_SECONDS):
            while self.cut is None and (
                waiting := [
                    one.answer for one in self._pending.values() if one.call and not one.answer.done()
                ]
            ):
                await asyncio.wait(waiting)

    # ---- the SDK's side ------------------------------------------------------------------------------

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Sends a request and returns its result, made small.

        Raises:
            MCPError: The server's error, or one of the classes above.
            ValueError: The request cannot be written.
        """
        opts = opts or {}
        if self._group is None:
            raise ConnectionLost(self._why_lost, sent=False)
        number = opts.get("request_id") or self._number()
        key = coerce_request_id(number)
        if key in self._pending:
            raise ValueError(f"request id {number!r} is already in flight")
        given = dict(params or {})
        call = dict(given.get("_meta") or {}).get(CALL_META, 0)
        body, headers = self._written(number, method, given, opts)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        pending = self._pending[key] = Pending(number, method, call, answer, opts.get("on_progress"))
        # The SDK gives up its probe after 10 s, in which some servers have not begun to read.
        bound = None if method == "server/discover" else opts.get("timeout")
        try:
            async with asyncio.timeout(bound):
                await self._wire.request(pending, body, headers)
                del body
                found = await pending.answer
        except TimeoutError:
            await self._abandon(pending, opts, "timed out")
            raise MCPError(types.REQUEST_TIMEOUT, f"Request {method!r} timed out") from None
        except asyncio.CancelledError:
            await self._abandon(pending, opts, "caller cancelled")
            raise
        finally:
            self._pending.pop(key, None)
            if pending.answer.done() and not pending.answer.cancelled():
                pending.answer.exception()
        if method == "tools/call" and self._calls_tasks and (task := task_of(found.body)) is not None:
            return await self._result_of_task(task, call, {"headers": opts.get("headers") or {}})
        return self._result(method, found)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Sends a notification; one that cannot be sent is dropped."""
        headers = (opts or {}).get("headers", {})
        with suppress(MCPError):
            await self._wire.post(
                messages.notification(method, dict(params) if params else None), headers, method
            )

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Reads what the server sends until the connection ends."""
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, on_notify_intercept
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                await self._wire.run(self)
                self._lost()
                self._group.cancel_scope.cancel()
        finally:
            self._group = None
            self._lost()
            self.ended.set()

    # ---- the wire's side -----------------------------------------------------------------------------

    def start(self, work: Callable[..., Any], *args: object) -> None:
        """Starts a task of the connection, which ends with it."""
        if self._group is not None:
            self._group.start_soon(work, *args)

    async def received(self, data: bytes, origin: Pending | None = None) -> int:
        """Takes a message, or a batch of them.

        Args:
            data: The JSON.
            origin: The request on whose stream it came; None where nothing says so.

        Returns:
            How many there are that answer no request of ours; nothing at all is one.
        """
        await step_for(data)
        found, rest = messages.parts(data), 0
        for one in found:
            rest += not self.take(messages.read(one), origin)
            await step_for(data)
        return rest if found else 1

    def take(self, message: Message, origin: Pending | None = None) -> bool:
        """Takes a message; says whether it answers a request."""
        match message:
            case Request():
                self._spawn(self._handle, message, origin.call if origin is not None else 0)
            case Notification():
                self._notified(message, origin)
            case Unreadable(id=None) if origin is None:
                self.noise = message.why
                note = f"On {self._wire.where} is what is no message: {message.why}."
                self._on_note(note)
                if self.version is None and len(self.notes) < MOST_NOTES:
                    self.notes = (*self.notes, note)
            case _:
                return self._answered(message, origin)
        return False

    def _answered(self, message: Result | Failure | Unreadable, origin: Pending | None) -> bool:
        pending = self._pending.get(coerce_request_id(message.id)) if message.id is not None else None
        if pending is None and (message.id is None or isinstance(message, Failure)):
            # A request that was refused before its id was read is answered with the id null.
            pending = origin if origin is not None else self._only_one(message)
        if pending is None or pending.answer.done():
            return False
        if isinstance(message, Result):
            pending.answer.set_result(message)
        elif isinstance(message, Failure):
            pending.fail(MCPError(message.code, message.message, message.data))
        else:
            pending.fail(AnswerUnreadable(message.why, too_large=message.too_large))
        return True

    def _only_one(self, message: Message) -> Pending | None:
        """Returns the only request that waits, for an error that does not say which one it answers."""
        waiting = [*self._pending.values()]
        return (
            waiting[0] if len(waiting) == 1 and isinstance(message, Failure) and message.id is None else None
        )

    # ---- inside --------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._next += 1
        while self._next in self._pending:
            self._next += 1
        return self._next

    def _written(
        self, number: messages.Id, method: str, given: dict[str, Any], opts: CallOptions
    ) -> tuple[bytes, dict[str, str]]:
        headers, meta = dict(opts.get("headers") or {}), dict(given.pop("_meta", None) or {})
        call = self.calls.get(meta.pop(CALL_META, 0))
        if opts.get("on_progress") is not None:
            meta["progressToken"] = number
        inject(meta)
        if meta:
            given["_meta"] = meta
        value = call.value if call is not None and method == "tools/call" else None
        if value is not None:
            mirrored = self.param_headers.get(given["name"]) if MCP_METHOD_HEADER in headers else None
            if mirrored:
                headers.update(mcp_param_headers(mirrored, value if is_object(value) else {}))
            given["arguments"] = Raw(to_json(value))
        if method == "tools/call" and self._calls_tasks and given["name"] in self.task_tools:
            given["task"] = {}
        return messages.request(number, method, given or None), headers

    def _result(self, method: str, found: Result) -> dict[str, Any]:
        result, notes = sdk_result(method, found, self.version), list[str]()
        if method == "initialize":
            self._calls_tasks = repair.calls_tasks(result.get("capabilities"))
            result = repair.greeting(result, notes)
        elif method == "server/discover":
            result = repair.discovery(result, notes)
        elif method == "tools/call" and self._searched < MOST_SEARCHED and len(found.body) <= SEARCHED_BYTES:
            self._searched += 1
            if (name := messages.repeated_name(found.body)) is not None:
                self._searched = MOST_SEARCHED
                notes.append(f"A result has the member {json.dumps(name[:60])} twice; the last is taken.")
        self.notes = (*self.notes, *notes)
        for note in notes:
            self._on_note(note)
        return result

    async def _result_of_task(self, task: dict[str, Any], call: int, opts: CallOptions) -> dict[str, Any]:
        """Waits for the task that a call was answered with, and returns its result."""
        about = {"taskId": task["taskId"], "_meta": {CALL_META: call}}
        try:
            while task.get("status") == "working":
                wanted = task.get("pollInterval")
                pause = wanted / 1000 if isinstance(wanted, int | float) else POLL_SECONDS
                await asyncio.sleep(min(max(pause, MIN_POLL_SECONDS), MAX_POLL_SECONDS))
                task = await self.send_raw_request("tasks/get", about, opts)
            # Of one that needs input, this brings the questions, and waits.
            return await self.send_raw_request("tasks/result", about, opts)
        except MCPError as error:
            # The tool runs: nothing may be taken to say that it was not called.
            if isinstance(error, ConnectionLost):
                raise ConnectionLost(error.message, sent=True) from None
            if isinstance(error, HttpRefused) or error.code in _NOT_BEGUN:
                raise MCPError(types.INTERNAL_ERROR, f"its task is lost: {error.message}") from None
            raise
        except asyncio.CancelledError:
            self.start(self._cancel_task, about, opts)
            raise

    async def _cancel_task(self, about: dict[str, Any], opts: CallOptions) -> None:
        with suppress(MCPError):
            await self.send_raw_request("tasks/cancel", about, {**opts, "timeout": ABANDON_SECONDS})

    async def _abandon(self, pending: Pending, opts: CallOptions, why: str) -> None:
        """Tells the server that nobody waits for an answer any more, where it may know of the request."""
        if not self._wire.give_up(pending, self.version) or not pending.sent:
            return
        if opts.get("cancel_on_abandon", True):
            params = {"requestId": pending.number, "reason": why}
            with anyio.move_on_after(ABANDON_SECONDS, shield=True):
                await self.notify("notifications/cancelled", params)

    def _lost(self) -> None:
        for pending in [*self._pending.values()]:
            pending.fail(ConnectionLost(self._why_lost, sent=pending.sent))

    def _notified(self, message: Notification, origin: Pending | None) -> None:
        params = message.params or {}
        if message.method == "notifications/progress":
            self._progressed(params)
        elif message.method == "notifications/cancelled":
            number = params.get("requestId")
            scope = self._handled.get(number) if isinstance(number, int | str) else None
            if scope is not None:
                scope.cancel()
        elif message.method == "notifications/message":
            of_call = {} if origin is None else {"_meta": {CALL_META: origin.call}}
            message = Notification(message.method, repair.log_message(params) | of_call)
        if not run_notify_intercept(self._intercept, message.method, message.params):
            self._spawn(self._tell, message)

    def _progressed(self, params: dict[str, Any]) -> None:
        token, progress, total = params.get("progressToken"), params.get("progress"), params.get("total")
        pending = self._pending.get(coerce_request_id(token)) if isinstance(token, int | str) else None
        if pending is None or pending.on_progress is None or not isinstance(progress, int | float):
            return
        said = params.get("message")
        self._spawn(
            pending.on_progress,
            float(progress),
            float(total) if isinstance(total, int | float) else None,
            said if isinstance(said, str) else None,
        )

    def _spawn(self, work: Callable[..., Any], *args: object) -> None:
        self.start(self._contained, work, args)

    async def _contained(self, work: Callable[..., Any], args: tuple[object, ...]) -> None:
        try:
            await work(*args)
        except Exception:
            logger.exception("the handling of a server's message failed")

    async def _tell(self, message: Notification) -> None:
        assert self._on_notify is not None
        await self._on_notify(_from_server(0), message.method, message.params)

    async def _handle(self, asked: Request, call: int) -> None:
        """Answers a request of the server, which came on the stream of a call's answer; 0: of none's."""
        with anyio.CancelScope() as scope:
            self._handled[asked.id] = scope
            try:
                if asked.too_large:
                    raise MCPError(types.INVALID_REQUEST, TOO_LARGE)
                assert self._on_request is not None
                params = None if asked.params is None else repair.asked(asked.params)
                result = await self._on_request(_from_server(call), asked.method, params)
                answer = messages.result(asked.id, result)
            except MCPError as error:
                answer = messages.error(asked.id, error.code, error.message, error.data)
            except ValidationError:
                self._on_note(f"The parameters of its request {asked.method} are none of it.")
                answer = messages.error(asked.id, types.INVALID_PARAMS, "Invalid request parameters", "")
            except Exception:
                # Without an answer the server, and the call that it serves, would wait.
                logger.exception("the handling of a server's request failed")
                answer = messages.error(
                    asked.id, types.INTERNAL_ERROR, "Cellblock failed to handle it.", None
                )
            finally:
                self._handled.pop(asked.id, None)
            with suppress(MCPError):
                await self._wire.post(answer, {}, "")


def _from_server(call: int) -> Any:
    """Makes what the SDK's session reads of a `DispatchContext`: callbacks are given its id."""
    return SimpleNamespace(request_id=call)


def sdk_result(method: str, found: Result, version: str | None) -> dict[str, Any]:
    """Makes the result of a request that neither greets nor discovers.

    Args:
        method: Of the request.
        found: As the server sent it.
        version: The negotiated revision of MCP.

    Raises:
        AnswerUnreadable: It is too large, or nested too deeply.
    """
    body = found.body
    try:
        if method in ("tools/call", "tasks/result"):
            return _tool_result(found, version)
        if method in repair.LISTS:
            fields = fields_of(body)
            return repair.stub(repair.LISTS[method], repair.page(fields, repair.LISTS[method]), fields)
        is_large = not is_light(body)
        if method in repair.PASSED_ON:
            fields = fields_of(body)
            if is_large or bytes(fields.get("resultType", b"")) != b'"input_required"':
                return repair.stub(repair.PASSED_ON[method], body, fields)
        if is_large:
            raise AnswerUnreadable(
                f"it has {len(body)} bytes, more than it may have for what was asked", too_large=True
            )
        return messages.decoded(body)
    except RecursionError:
        raise AnswerUnreadable("it is nested too deeply") from None


def _tool_result(found: Result, version: str | None) -> dict[str, Any]:
    notes = (f"{found.mended[0].upper()}{found.mended[1:]}.",) if found.mended else ()
    result = ToolResult(found.body, notes, null_is_value=version in MODERN_PROTOCOL_VERSIONS)
    if result.field("resultType") == b'"input_required"':
        if len(found.body) > messages.SMALL_BYTES:
            raise AnswerUnreadable("it asks for input, and is too large to be passed on", too_large=True)
        return messages.decoded(found.body)
    return repair.stub("content", result, result.fields)


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
