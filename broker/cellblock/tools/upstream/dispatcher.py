"""Keeps the requests of one connection to a server together with their answers: the SDK's session stands on it.

What is large, or may be odd, passes the SDK's models by: `Session.ask` sends a request and gives its result as it came.
What the server asks on the stream of a call's answer has the call's number as its id there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import mcp_types as types
from mcp.client.session import ClientSession
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
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import mcp_param_headers
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.propagate import inject
from pydantic import ValidationError

from cellblock.base.json import is_object
from cellblock.base.raw_json import is_light, step_for
from cellblock.base.tasks import at_most
from cellblock.tools.upstream.failures import (
    CLOSED_BY_SERVER,
    SESSION_NOT_FOUND,
    AnswerUnreadable,
    ConnectionLost,
    HttpRefused,
)
from cellblock.tools.upstream.outstanding import CALL_META, Outstanding
from cellblock.tools.upstream.wire import messages, repair
from cellblock.tools.upstream.wire.framing import Cut
from cellblock.tools.upstream.wire.messages import (
    Failure,
    Message,
    Notification,
    Request,
    Result,
    Unreadable,
)
from cellblock.tools.upstream.wire.results import ToolResult

logger = logging.getLogger("cellblock.tools.upstream")

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
    """A request that waits for its answer; `call` is the call that it is of."""

    number: messages.Id
    method: str
    call: Outstanding | None
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
        """Sends a request; returns when it is written, or on its way. One is given up whose answer is cancelled."""

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        """Sends a notification (`what` is its method) or an answer. Raises ConnectionLost."""

    async def run(self, connection: Connection) -> None:
        """Reads until the connection ends. Raises Cut, or MCPError, where nothing more can be read."""


class Connection(Dispatcher[TransportContext]):
    """Implements the SDK's `Dispatcher` over a wire.

    Args:
        wire: Sends and receives.
        ended: Set when the connection is over.
        on_note: Told, as a sentence, what was odd in what the server sent.

    Attributes:
        version: The negotiated version of MCP, once it is known.
        task_tools: The tools that must be called as tasks.
        cut: Why Cellblock ends the connection itself.
        noise: What the server wrote last that is no message.
        notes: What was odd in how it introduced itself, or came before, as sentences.
    """

    _on_request: OnRequest
    _on_notify: OnNotify
    """Are known while it runs, and nothing is heard before."""

    def __init__(self, wire: Wire, ended: asyncio.Event, on_note: Callable[[str], None]) -> None:
        self.version: str | None = None
        self.task_tools = frozenset[str]()
        self.cut: str | None = None
        self.noise = ""
        self.notes: tuple[str, ...] = ()
        self.ended = ended
        self._wire = wire
        self._on_note = on_note
        self._numbers = count(1)
        self._calls_tasks = False
        self._searched = 0
        self._pending: dict[messages.Id, Pending] = {}
        self._handled: dict[messages.Id, anyio.CancelScope] = {}
        self._group: anyio.abc.TaskGroup | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._why_lost = CLOSED_BY_SERVER

    def end(self, why: str) -> None:
        """Ends the connection, for a reason of ours."""
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
        """Sends a request whose result is small, and returns that.

        Raises:
            MCPError: The server's error, or one of the classes above.
            ValueError: The request cannot be written.
        """
        try:
            answer = await self.request(method, dict(params or {}), opts or {})
        except MCPError as error:
            older = repair.older_revision(error.message, error.data) if method == "initialize" else None
            if older is None:
                raise
            answer = await self.request(method, {**(params or {}), "protocolVersion": older}, opts or {})
        found, notes = plain(answer.body), [*answer.notes]
        if method == "initialize":
            self._calls_tasks = repair.calls_tasks(found.get("capabilities"))
            found = repair.greeting(found, notes)
        elif method == "server/discover":
            found = repair.discovery(found, notes)
        self._note(notes)
        return found

    async def request(
        self, method: str, given: dict[str, Any], opts: CallOptions, call: Outstanding | None = None
    ) -> Result:
        """Sends a request, which may be of a call, and returns its result as it came. Raises as `send_raw_request`.

        Whoever asks bounds it: the SDK gives up its probe after 10 s, in which some servers have not begun to read.
        """
        if self._group is None:
            raise ConnectionLost(self._why_lost, sent=False)
        number = opts.get("request_id") or next(self._numbers)
        meta, headers = dict(given.pop("_meta", None) or {}), opts.get("headers") or {}
        if "on_progress" in opts:
            meta["progressToken"] = number
        inject(meta)
        if meta:
            given["_meta"] = meta
        if method == "tools/call" and self._calls_tasks and given["name"] in self.task_tools:
            given["task"] = {}
        body = messages.written(given, id=number, method=method)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        pending = self._pending[number] = Pending(number, method, call, answer, opts.get("on_progress"))
        try:
            await self._wire.request(pending, body, headers)
            del body
            found = await pending.answer
        except asyncio.CancelledError:
            await self._abandon(pending, opts)
            raise
        finally:
            del self._pending[number]
            if pending.answer.done() and not pending.answer.cancelled():
                pending.answer.exception()
        if method == "tools/call":
            if self._calls_tasks and (task := task_of(found.body)) is not None:
                return await self._result_of_task(task, {"headers": headers}, call)
            self._search(found.body)
        return found

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Sends a notification; one that cannot be sent is dropped."""
        headers = (opts or {}).get("headers", {})
        with suppress(MCPError):
            await self._wire.post(messages.written(params, method=method), headers, method)

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
                try:
                    await self._wire.run(self)
                except ConnectionLost as error:
                    self._why_lost = error.message
                except (Cut, MCPError) as error:
                    self.end(str(error))
                self._lost()
                self._group.cancel_scope.cancel()
        finally:
            self._group = None
            self._lost()
            self.ended.set()

    # ---- the wire's side -----------------------------------------------------------------------------

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
                self._spawn(self._handle, message, _number_of_call(origin))
            case Notification():
                self._notified(message, origin)
            case Unreadable(id=None) if origin is None:
                self.noise = message.why
                note = f"On {self._wire.where} is what is no message: {message.why}."
                if self.version is None and len(self.notes) < MOST_NOTES:
                    self._note([note])
                else:
                    self._on_note(note)
            case _:
                return self._answered(message, origin)
        return False

    def _answered(self, message: Result | Failure | Unreadable, origin: Pending | None) -> bool:
        pending = self._pending.get(coerce_request_id(message.id)) if message.id is not None else None
        if pending is None and (message.id is None or isinstance(message, Failure)):
            # A request that was refused before its id was read is answered with the id null.
            pending, is_refusal = origin, message.id is None and isinstance(message, Failure)
            if origin is None and is_refusal and len(self._pending) == 1:
                (pending,) = self._pending.values()
        if pending is None or pending.answer.done():
            return False
        if isinstance(message, Result):
            pending.answer.set_result(message)
        elif isinstance(message, Failure):
            pending.fail(MCPError(message.code, message.message, message.data))
        else:
            pending.fail(AnswerUnreadable(message.why, too_large=message.too_large))
        return True

    # ---- inside --------------------------------------------------------------------------------------

    def _note(self, notes: list[str]) -> None:
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))
        for note in notes:
            self._on_note(note)

    def _search(self, body: bytes) -> None:
        """Searches a result for a name that it has twice."""
        if self._searched < MOST_SEARCHED and len(body) <= SEARCHED_BYTES:
            self._searched += 1
            if (name := messages.repeated_name(body)) is not None:
                self._searched = MOST_SEARCHED
                self._note([f"A result has the member {json.dumps(name[:60])} twice; the last is taken."])

    async def _result_of_task(
        self, task: dict[str, Any], opts: CallOptions, call: Outstanding | None
    ) -> Result:
        """Waits for the task that a call was answered with, and returns its result."""
        about = {"taskId": task["taskId"]}
        try:
            while task.get("status") == "working":
                wanted = task.get("pollInterval")
                pause = wanted / 1000 if isinstance(wanted, int | float) else POLL_SECONDS
                await asyncio.sleep(min(max(pause, MIN_POLL_SECONDS), MAX_POLL_SECONDS))
                task = plain((await self.request("tasks/get", {**about}, opts, call)).body)
            # Of one that needs input, this brings the questions, and waits.
            return await self.request("tasks/result", {**about}, opts, call)
        except MCPError as error:
            # The tool runs: nothing may be taken to say that it was not called.
            if isinstance(error, ConnectionLost):
                raise ConnectionLost(error.message, sent=True) from None
            if isinstance(error, HttpRefused) or error.code in (types.METHOD_NOT_FOUND, SESSION_NOT_FOUND):
                raise MCPError(types.INTERNAL_ERROR, f"its task is lost: {error.message}") from None
            raise
        except asyncio.CancelledError:
            self._spawn(self._cancel_task, about, opts)
            raise

    async def _cancel_task(self, about: dict[str, Any], opts: CallOptions) -> None:
        with suppress(MCPError):
            async with at_most(ABANDON_SECONDS):
                await self.request("tasks/cancel", about, opts)

    async def _abandon(self, pending: Pending, opts: CallOptions) -> None:
        """Tells the server that nobody waits for an answer any more, where it may know of the request."""
        if pending.sent and opts.get("cancel_on_abandon", True):
            params = {"requestId": pending.number, "reason": "caller cancelled"}
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
            number = messages.id_of(params.get("requestId"))
            scope = self._handled.get(number) if number is not None else None
            if scope is not None:
                scope.cancel()
        elif message.method == "notifications/message":
            of_call = {} if origin is None else {"_meta": {CALL_META: _number_of_call(origin)}}
            message = Notification(message.method, repair.log_message(params) | of_call)
        if not run_notify_intercept(self._intercept, message.method, message.params):
            self._spawn(self._on_notify, _from_server(0), message.method, message.params)

    def _progressed(self, params: dict[str, Any]) -> None:
        number = messages.id_of(params.get("progressToken"))
        progress, total = params.get("progress"), params.get("total")
        pending = self._pending.get(coerce_request_id(number)) if number is not None else None
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
        """Starts a task of the connection, which ends with it."""
        if self._group is not None:
            self._group.start_soon(self._contained, work, args)

    async def _contained(self, work: Callable[..., Any], args: tuple[object, ...]) -> None:
        try:
            await work(*args)
        except Exception:
            logger.exception("the handling of a server's message failed")

    async def _handle(self, asked: Request, call: int) -> None:
        """Answers a request of the server, which came on the stream of a call's answer; 0: of none's."""
        with anyio.CancelScope() as scope:
            self._handled[asked.id] = scope
            try:
                if asked.too_large:
                    raise MCPError(types.INVALID_REQUEST, TOO_LARGE)
                params = None if asked.params is None else repair.asked(asked.params)
                result = await self._on_request(_from_server(call), asked.method, params)
                answer = messages.written(id=asked.id, result=result)
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


class Session(ClientSession):
    """The SDK's session, on a connection.

    Attributes:
        connection: What it stands on.
        param_headers: Of tools whose inputs are to be repeated in headers: which ones.
    """

    def __init__(self, connection: Connection, **callbacks: Any) -> None:
        super().__init__(dispatcher=connection, **callbacks)
        self.connection = connection
        self.param_headers: dict[str, dict[tuple[str, ...], str]] = {}

    async def ask(self, method: str, params: dict[str, Any], call: Outstanding | None = None) -> ToolResult:
        """Sends a request, which may be of a call, and returns its result as it came.

        Raises:
            MCPError: As `Connection.request`; it asks for input and is too large, or is nested too deeply.
            ValueError: The request cannot be written.
        """
        opts: CallOptions = {}
        self._stamp({"method": method, "params": params}, opts)
        if method == "tools/call" and (mirrored := self.param_headers.get(params["name"])):
            given = params.get("arguments")
            opts.setdefault("headers", {}).update(
                mcp_param_headers(mirrored, given if is_object(given) else {})
            )
        if call is not None:
            opts["on_progress"] = call.progress
        found = await self.connection.request(method, params, opts, call)
        result = ToolResult(
            found.body, found.notes, null_is_value=self.protocol_version in MODERN_PROTOCOL_VERSIONS
        )
        try:
            if result.asks_for_input and len(result.body) > messages.SMALL_BYTES:
                raise AnswerUnreadable("it asks for input, and is too large to be passed on", too_large=True)
        except RecursionError:
            raise AnswerUnreadable("it is nested too deeply") from None
        return result


def _number_of_call(origin: Pending | None) -> int:
    return 0 if origin is None or origin.call is None else origin.call.number


def _from_server(call: int) -> Any:
    """Makes what the SDK's session reads of a `DispatchContext`: callbacks are given its id."""
    return SimpleNamespace(request_id=call)


def plain(body: bytes) -> dict[str, Any]:
    """Returns a small result as data. Raises AnswerUnreadable: It is too large, or nested too deeply."""
    if not is_light(body):
        why = f"it has {len(body)} bytes, more than it may have for what was asked"
        raise AnswerUnreadable(why, too_large=True)
    try:
        return messages.decoded(body)
    except RecursionError:
        raise AnswerUnreadable("it is nested too deeply") from None


POLL_SECONDS: Final = 0.5
MIN_POLL_SECONDS: Final = 0.05
MAX_POLL_SECONDS: Final = 5.0
"""Set the pause between two questions for a task whose server names none, and bound the one that it names."""


def task_of(body: bytes) -> dict[str, Any] | None:
    """Returns the task that a tool call was answered with; None where it was answered with its result."""
    task = repair.member(body, "task")
    return task if is_object(task) and isinstance(task.get("taskId"), str) else None
