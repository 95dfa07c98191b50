"""One task owns one MCP session: connect, list tools, serve calls, reconnect with backoff, close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cellblock.base.budget import Budget
from cellblock.base.callbacks import tell
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_object
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import at_most, end_tasks
from cellblock.tools.catalog.requests import SUBSCRIBE, Kind, RequestEntry
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.beside import Beside
from cellblock.tools.upstream.client import ProbeEnded, connected
from cellblock.tools.upstream.connecting import Backoff, FirstAttempt, State
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.entries import Entry
from cellblock.tools.upstream.input_rounds import ask, call_tool, read_resource
from cellblock.tools.upstream.installs import LOOK_SECONDS, Install, package_of
from cellblock.tools.upstream.listing import Listing, ServerFacts, facts_of, list_tools
from cellblock.tools.upstream.outstanding import Outstanding, Routing
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.programs import missing_command
from cellblock.tools.upstream.requester import NOBODY, CallOrigin
from cellblock.tools.upstream.server_log import ServerLog, wanted_level
from cellblock.tools.upstream.server_logins import NeededLogin
from cellblock.tools.upstream.stderr_log import StderrPipe, log_line, stderr_log, upstream_log
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused, SessionForgotten
from cellblock.tools.upstream.wire.results import ToolResult

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login

logger = logging.getLogger("cellblock.tools.upstream")

FIRST_PAUSE_SECONDS: Final = 0.5
"""Sets the pause before the first attempt to connect again; it is doubled for each further one."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""Bounds the doubled pause: a server that is back is seen within it."""

CLOSE_BOUND_SECONDS: Final = 8.0
"""Bounds the time from the order to close to giving up; the SDK allows a process 6 s to exit and be killed."""

RELISTEN_SECONDS: Final = 5.0
"""Sets the pause before a stream of changes that a server has ended is asked for again."""

LEFT_SHARE: Final = 0.05
"""Sets the share of a call's time that must be left when its turn comes: sent at the last moment, it can only time out,
and may have run."""

AT_ONCE_SECONDS: Final = 0.5
"""Passes from an attempt that failed until a call starts the next one before its pause is over."""

RELIST_SECONDS: Final = 1.0
"""Sets the least time from one list of changed tools to the next, however often the server announces changes."""

MOST_IDLE_LISTS: Final = 3
QUIET_SECONDS: Final = 30.0
"""Sets how many lists in a row may have changed nothing until no run waits for the next one, and the pause after which
they are forgotten."""

MAX_NOTES: Final = 50
"""Bounds the different oddities of one server that are logged."""

_CLOSED_BY_SERVER: Final = "the connection was closed by the server"


class UpstreamSession:
    """Starts with `start`; `on_change` is called whenever state, reason or facts have changed.

    Args:
        name: The server's name in the configuration.
        config: Its entry there.
        settings: Bounds.
        max_message_bytes: Caps one message of the server.
        log_dir: Where the stderr of a started process goes, as `upstream-NAME.log`.
        on_change: Called from the event loop.
        budget: Of bytes that large messages of servers have in memory; None: of its own.
        login: What is known of its OAuth login; None for a server that cannot have one.
        prepare: Waited for before facts are taken over.
        followed: The URIs whose updates are wanted; a later session of the server is given the same set.
        on_update: Called with the URI when one of these has changed.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        settings: ServerBounds,
        *,
        max_message_bytes: int,
        log_dir: Path,
        on_change: Callable[[], None],
        budget: Budget | None = None,
        login: Login | None = None,
        prepare: Callable[[ServerFacts], Awaitable[None]] | None = None,
        followed: set[str] | None = None,
        on_update: Callable[[str], object] | None = None,
    ) -> None:
        self.name = name
        self.state = State.CONNECTING
        self.reason = "still connecting"
        self.facts: ServerFacts | None = None
        self.attempts = 0
        self.first = FirstAttempt()
        self._config = config
        self._redactor = login.redactor if login is not None else Redactor(config)
        self._login = login
        self._prepare = prepare
        self._followed = set[str]() if followed is None else followed
        self._on_update = on_update
        self._beside = Beside(name, self._redactor, on_change)
        self._routing = Routing(name, self._redactor)
        self._server_log = ServerLog(name, self._redactor)
        self._places = None if settings.max_calls is None else asyncio.Semaphore(settings.max_calls)
        self._settings = settings
        self._max_message_bytes = max_message_bytes
        self._log_file = upstream_log(log_dir, name)
        self._on_change = on_change
        self._holding = Holding(budget or Budget.of_servers(), name)
        self._client: ClientSession | None = None
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._tools_changed = asyncio.Event()
        self._announced = self._read = 0
        self._relisted = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_shut_out = False
        self._handshake = False
        self._wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self._failed_at = 0.0
        self._notes: set[str] = set()
        self._listed_at = 0.0
        self._idle_lists = 0
        self._said = ""
        self._package = package_of([config.command or "", *config.args])
        self._install: Install | None = None
        self._has_answered = False
        self._ready_at: float | None = None
        self._closing = False

    def start(self, since: float | None = None) -> None:
        """Starts the task that owns the session; `since` is as for `FirstAttempt.begin`."""
        self.first.begin(since)
        self._task = asyncio.create_task(self._own(), name=f"upstream {self.name}")

    async def close(self) -> None:
        """Ends the session and its process within `CLOSE_BOUND_SECONDS`."""
        # The order is kept beside the cancellation, which a connection that fails in that moment turns into its error.
        self._closing = True
        self._beside.close()
        self._ended.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_BOUND_SECONDS)
        if self._login is not None:
            await self._login.close(CLOSE_BOUND_SECONDS)
        self._move(State.CLOSED, "Cellblock is stopping")

    @property
    def installing(self) -> bool:
        """Says whether the server's program installs the server, as far as can be seen."""
        return self._package is not None and (self._install is None or self._install.running)

    @property
    def needed_login(self) -> NeededLogin | None:
        """Gives the login that a person can give; None where nobody can."""
        if self._login is None or not self._login.is_given:
            return None
        return NeededLogin(self.name, self._login, lambda: self.state is State.READY)

    @property
    def stale(self) -> bool:
        """Says whether the server has announced a change of its tools that is not read yet."""
        return self._read < self._announced

    async def fresh(self) -> None:
        """Waits until the changes that are announced by now are read; bound it."""
        announced = self._announced
        while self._read < announced:
            await self._relisted.wait()

    @property
    def revision(self) -> int:
        """Counts how often what was listed beside tools has become old."""
        return self._beside.revision

    async def entries(self, kind: Kind, *, fresh: bool) -> list[Entry]:
        """Returns what the server lists beside tools, as `Beside.entries`."""
        return await self._beside.entries(kind, self._client, fresh=fresh)

    async def unfollow(self, uri: str) -> None:
        """Ends the subscription to a resource, as far as the server does."""
        self._followed.discard(uri)
        with contextlib.suppress(MCPError, ValidationError, TimeoutError):
            async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
                if self._client is not None:
                    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
                    await self._client.send_request(request, types.EmptyResult)

    async def call(
        self,
        tool: str,
        value: Any,
        *,
        call_bound: float,
        origin: CallOrigin = NOBODY,
        request: RequestEntry | None = None,
    ) -> Any:
        """Calls a tool, or sends another request.

        Args:
            tool: Canonical tool name, or the method of the request.
            value: The input, JSON data; an object unless the tool's schema has another root.
            call_bound: Longest time in seconds, without that in which the server waits for an answer of the client;
                past it the server is sent a cancel notification.
            origin: Whom the server may ask meanwhile.
            request: The request that it is; None for a tool.

        Returns:
            The `ToolResult`, or the result of the request.

        Raises:
            ToolCallError: Not connected, refused, timed out, or the answer was no result. Not for `isError`
                results: those are returned.
        """
        send = call_tool if request is None else partial(self._ask, request)
        if self._places is None:
            return await self._call(send, tool, value, call_bound, call_bound, origin)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call_bound
        try:
            async with asyncio.timeout_at(deadline - call_bound * LEFT_SHARE):
                await self._places.acquire()
        except TimeoutError:
            raise ToolCallError(
                f"{self.name} has had its most calls at once for {call_bound:g} s; {tool} was not called.",
                hint=f"Call it less often at once, or raise upstream.max_calls for {self.name}.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        try:
            left = max(0.0, deadline - loop.time())
            return await self._call(send, tool, value, left, call_bound, origin)
        finally:
            self._places.release()

    async def _call(
        self,
        send: Callable[..., Awaitable[Any]],
        tool: str,
        value: Any,
        left: float,
        call_bound: float,
        origin: CallOrigin,
    ) -> Any:
        """Calls a tool by `send`; `left` is what waiting for a turn has left of `call_bound`.

        A request that certainly was not begun, as the server had gone or forgotten the session, is sent once more.
        """
        clock = asyncio.timeout(left)
        client: ClientSession | None = None
        try:
            async with clock:
                client = await self._ready(left)
                try:
                    result = await self._sent(send, client, tool, value, clock, origin)
                except MCPError as error:
                    if not failures.not_begun(error):
                        raise
                    self._lose(client)
                    client = await self._ready(left)
                    result = await self._sent(send, client, tool, value, clock, origin)
        except MCPError as error:
            raise self._mcp_failure(client, tool, error) from None
        except TimeoutError:
            raise failures.timed_out(self.name, tool, call_bound, self._noise()) from None
        except ValidationError:
            raise failures.no_result(self.name, tool) from None
        except (UnicodeEncodeError, ValueError, RecursionError) as error:
            # The request could not be written: text that is no UTF-8, or too deep.
            raise ToolCallError(
                f"The input of {tool} cannot be sent: {type(error).__name__}.",
                hint="Pass plain, shallow JSON data.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        self._has_answered = True
        return self._redacted(result) if isinstance(result, ToolResult) and result.is_error else result

    async def _sent(
        self,
        send: Callable[[ClientSession, Outstanding], Awaitable[Any]],
        client: ClientSession,
        tool: str,
        value: Any,
        clock: asyncio.Timeout,
        origin: CallOrigin,
    ) -> Any:
        with self._routing.call(tool, value, clock, origin) as call:
            return await send(client, call)

    async def _ready(self, bound: float) -> ClientSession:
        """Returns the connection; where it is lost, waits for an attempt to connect, which this starts at once.

        Raises:
            ToolCallError: There is none.
        """
        if self._client is None:
            async with at_most(bound * (1 - LEFT_SHARE)):
                await self.tried()
        if self._client is None:
            login = self._login.trouble() if self._login is not None and self._is_shut_out else None
            raise failures.not_connected(self.name, self.reason, login, self.needed_login)
        return self._client

    async def tried(self) -> None:
        """Waits for the end of the attempt to connect that is under way, or of the next, which begins now; bound it.
        One that failed a moment ago is not repeated."""
        now, before = asyncio.get_running_loop().time(), self.attempts
        if self.state is State.CONNECTING:
            before -= 1
        elif now - self._failed_at < AT_ONCE_SECONDS:
            return
        self._wanted.set()
        while self._client is None and not self._closing:
            if self.attempts > before and self.state is not State.CONNECTING:
                return
            await self._moved.wait()

    async def _ask(self, request: RequestEntry, client: ClientSession, call: Outstanding) -> Any:
        if not is_object(call.value):
            raise ToolCallError(
                f"The input of {call.name} is too large.",
                hint="Send less at a time.",
                certainty=Certainty.NOT_STARTED,
            )
        result = await (read_resource if request.by_script else ask)(client, call)
        if call.name == SUBSCRIBE.tool_name:
            self._followed.add(call.value["uri"])
        return result

    # ---- the owning task -----------------------------------------------------------------------------

    async def _own(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            self.attempts += 1
            self._ready_at, self._has_answered = None, False
            self._wanted.clear()
            self._move(State.CONNECTING, self.reason)
            probe_ended = False
            try:
                await self._connect_and_serve()
                why = self._why_ended()
            except Exception as error:  # noqa: BLE001 - any failure of a transport means: report and retry
                probe_ended = isinstance(failures.first_of(error), ProbeEnded)
                why = self._why_unconnected(error)
            finally:
                self._client = self._connection = None
            if self._closing:
                return
            if self._ready_at is None:
                # What ended at our question may answer `initialize`; what did not answer that either may be newer.
                self._handshake = probe_ended
            if probe_ended and self.attempts == 1:
                self.reason = f"still connecting, for the second time: {why}"
                continue
            now = asyncio.get_running_loop().time()
            logger.warning("upstream %s: %s", self.name, why)
            if why != self.reason:
                log_line(self._log_file, f"cellblock: not connected: {why}")
            self._failed_at = now if self._ready_at is None else 0.0
            self._move(State.WAITING, why)
            held = now - self._ready_at if self._ready_at is not None else 0.0
            await self._pause(backoff.pause(held, served=self._has_answered))

    async def _pause(self, seconds: float) -> None:
        """Waits before the next attempt, until it is wanted, or somebody has logged in."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._wanted.wait())]
        if self._login is not None:
            waits.append(asyncio.create_task(self._login.changed(seconds)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*waits)

    async def _connect_and_serve(self) -> None:
        ended = self._ended = asyncio.Event()
        self._said = ""
        async with contextlib.AsyncExitStack() as stack:
            log = await stack.enter_async_context(stderr_log(self._log_file, self._redactor, self._note_said))
            client = await self._begin(stack, log, ended)
            self._client = client
            self._ready_at = asyncio.get_running_loop().time()
            self._is_shut_out = False
            self._move(State.READY, "")
            await self._serve(client, ended)
            self._client = None
            # Closing takes a while, in which no script should be offered what cannot be called.
            self._move(State.WAITING, self._why_ended())

    def _session(self, connection: Connection) -> ClientSession:
        passed_on = self._settings.passed_on
        self._connection, connection.calls = connection, self._routing.calls
        return ClientSession(
            dispatcher=connection,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            log_level=wanted_level(),
            elicitation_callback=self._routing.elicit if "elicitation" in passed_on else None,
            sampling_callback=self._routing.sample if "sampling" in passed_on else None,
            list_roots_callback=self._routing.roots if "roots" in passed_on else None,
        )

    async def _begin(
        self, stack: contextlib.AsyncExitStack, log: StderrPipe, ended: asyncio.Event
    ) -> ClientSession:
        """Connects and reads the tool list, within `upstream.connect_timeout_ms`, which counts from the end of an
        installation."""
        late = "it did not answer `initialize`"
        bound = self._settings.connect_timeout_ms / 1000
        clock = asyncio.timeout(bound)
        self._install = self._new_install(log)
        if self._install is not None:
            stack.callback(self._install.end)
            stack.push_async_callback(end_tasks, asyncio.create_task(_held(clock, self._install, bound)))
        opening = connected(
            self._config,
            self._session,
            stderr=log.sink,
            ended=ended,
            cap=self._max_message_bytes,
            holding=self._holding,
            on_note=self._note,
            auth=self._login,
            handshake=self._handshake,
            install=self._install,
        )
        try:
            async with clock:
                client, connection = await stack.enter_async_context(opening)
                late = "no tool list"
                self.facts = await self._learn(client, connection)
                return client
        except TimeoutError:
            if not clock.expired():
                raise
            raise ToolCallError(
                f"{late} within upstream.connect_timeout_ms = {self._settings.connect_timeout_ms}{self._noise()}",
                hint="",
                certainty=Certainty.NOT_STARTED,
            ) from None

    def _new_install(self, log: StderrPipe) -> Install | None:
        if self._package is None:
            return None
        return Install(self._package, self._log_file.parent, log.reading)

    async def _serve(self, client: ClientSession, ended: asyncio.Event) -> None:
        """Serves until the connection ends: lists tools anew whenever the server says that they changed."""
        over = asyncio.create_task(ended.wait())
        beside = [asyncio.create_task(work) for work in (self._listen(client), self._follow(client))]
        try:
            while not ended.is_set():
                changed = asyncio.create_task(self._tools_changed.wait())
                try:
                    await asyncio.wait([over, changed], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if self._tools_changed.is_set():
                    since = asyncio.get_running_loop().time() - self._listed_at
                    async with at_most(max(0.0, RELIST_SECONDS - since)):
                        await ended.wait()
                    self._tools_changed.clear()
                    await self._refresh(client)
        finally:
            ended.set()
            over.cancel()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside, timeout=CLOSE_BOUND_SECONDS)

    async def _listen(self, client: ClientSession) -> None:
        """Asks for the stream of changes where there is one (MCP 2026-07-28); older servers announce unasked."""
        tools = client.server_capabilities.tools if client.server_capabilities is not None else None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with listen(client, tools_list_changed=True) as changes:
                    # There is no replay: a change between the list and this stream would go unseen.
                    self._note_change()
                    async for _ in changes:
                        self._note_change()
            except (MCPError, SubscriptionLost) as error:
                logger.info("upstream %s: its stream of changes ended: %s", self.name, self._why(error))
            if self._ended.is_set():
                return
            await asyncio.sleep(RELISTEN_SECONDS)

    async def _follow(self, client: ClientSession) -> None:
        """Subscribes again, on a new connection, to the resources that the one before was subscribed to."""
        self._beside.note_change()
        for uri in [*self._followed]:
            with contextlib.suppress(MCPError, ValidationError, TimeoutError):
                async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
                    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
                    await client.send_request(request, types.EmptyResult)
                tell(self._on_update, uri)

    async def _refresh(self, client: ClientSession) -> None:
        self._listed_at, announced = asyncio.get_running_loop().time(), self._announced
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                assert self._connection is not None
                facts = await self._learn(client, self._connection)
        except (TimeoutError, MCPError, ValidationError) as error:
            why = self._why(error)
            logger.warning("upstream %s: its changed tool list cannot be read: %s", self.name, why)
            if isinstance(error, TimeoutError):
                # Nobody knows its tools now: it is asked again.
                self._tools_changed.set()
            else:
                self._note_read(announced)
            return
        if facts != self.facts:
            self.facts, self._idle_lists = facts, 0
            tell(self._on_change)
        else:
            self._idle_lists += 1
        self._note_read(announced)

    def _note_read(self, announced: int) -> None:
        self._read = announced
        relisted, self._relisted = self._relisted, asyncio.Event()
        relisted.set()

    async def _learn(self, client: ClientSession, connection: Connection) -> ServerFacts:
        listing = Listing()
        if client.server_capabilities is not None and client.server_capabilities.tools is not None:
            listing = await list_tools(client, connection)
        facts = facts_of(client, listing, connection.notes)
        if facts != self.facts:
            for note in facts.all_notes():
                logger.warning("upstream %s: %s", self.name, self._redactor.text(note))
        if self._prepare is not None:
            await self._prepare(facts)
        return facts

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._routing.logged(params)
        await self._server_log(params)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._note_change()
        elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
            self._beside.note_change()
        elif isinstance(message, types.ResourceUpdatedNotification) and message.params.uri in self._followed:
            tell(self._on_update, message.params.uri)

    # ---- inside --------------------------------------------------------------------------------------

    def _lose(self, client: ClientSession) -> None:
        """Offers a client that is known to be dead to no further call: what was never sent must be told as that."""
        if self._client is client:
            self._client = None
            self._move(State.WAITING, _CLOSED_BY_SERVER)
            self._ended.set()

    def _note_change(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._listed_at > QUIET_SECONDS:
            self._idle_lists = 0
        if self._idle_lists < MOST_IDLE_LISTS:
            self._announced += 1
        self._tools_changed.set()

    def _move(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        if state is not State.CONNECTING:
            self.first.end()
        if state in (State.WAITING, State.CLOSED):
            # The next connection reads the list anew.
            self._note_read(self._announced)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        tell(self._on_change)

    def _note(self, text: str) -> None:
        """Tells once what was odd in what the server sent."""
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.add(text)
            logger.warning("upstream %s: %s", self.name, self._redactor.text(text))
            if self.state is State.CONNECTING and (noise := self._noise()):
                # Whoever waits for it is told at once.
                self._move(State.CONNECTING, f"still connecting{noise}")

    def _noise(self) -> str:
        """Says, to be added to a reason, what a started server wrote that is no message."""
        noise = self._connection.noise if self._connection is not None else ""
        if not noise or self._config.command is None:
            return ""
        return f"; on its stdout is what is no message: {self._redactor.text(noise)}"

    def _why(self, error: BaseException) -> str:
        return failures.reason_of(error, self._redactor)

    def _why_ended(self) -> str:
        """Says why a connection ended that had been good."""
        cut = self._connection.cut if self._connection is not None else None
        if cut is not None:
            return cut
        return f"{_CLOSED_BY_SERVER}{f'; it said: {self._said}' if self._said else ''}"

    def _why_unconnected(self, error: BaseException) -> str:
        """Returns why there is no connection, with what to do about a program that is not there, or what it said."""
        error = failures.first_of(error)
        if self._connection is not None and self._connection.cut is not None:
            return self._connection.cut
        if isinstance(error, HttpRefused):
            self._is_shut_out = error.status in (401, 403)
            login = self._login.trouble() if self._login is not None else None
            return failures.refused_connection(error, login, self._redactor)
        missing = missing_command(self._config) if isinstance(error, OSError) else None
        if missing is not None:
            return missing.removesuffix(".")[: failures.MAX_REASON_CHARS]
        ended = isinstance(error, ConnectionLost | ProbeEnded)
        if not ended or self._config.command is None:
            return self._why(error)
        said = f"; it said: {self._said}" if self._said else " and did not say why"
        return f"it ended by itself{said}{self._noise()}"

    def _note_said(self, text: str) -> None:
        self._said = text

    def _redacted(self, result: ToolResult) -> ToolResult:
        """Returns an error result in which the server quotes none of its own secrets."""
        plain = result.plain()
        safe = self._redactor.tree(plain)
        return result if safe == plain else ToolResult.of(safe)

    def _mcp_failure(self, client: ClientSession | None, tool: str, error: MCPError) -> ToolCallError:
        if isinstance(error, SessionForgotten | ConnectionLost) and client is not None:
            # Every later call would be refused too: a new session is needed.
            if isinstance(error, SessionForgotten) or self._ended.is_set() or not error.sent:
                self._lose(client)
            if failures.not_begun(error):
                return failures.forgotten(self.name, tool)
            return failures.closed(self.name, tool, self._why_lost(error))
        if isinstance(error, HttpRefused):
            login = self._login.trouble() if self._login is not None else None
            return failures.refused(self.name, tool, error, login, self._redactor, self.needed_login)
        failure = failures.answered(self.name, tool, error, self._redactor)
        failure.rpc_code = error.code
        return failure

    def _why_lost(self, error: MCPError) -> str | None:
        cut = self._connection.cut if self._connection is not None else None
        if cut is not None:
            return cut
        if self._config.command is not None:
            return f"it said: {self._said}" if self._said else None
        return self._redactor.text(error.message)[: failures.MAX_REASON_CHARS]


async def _held(clock: asyncio.Timeout, install: Install, bound: float) -> None:
    """Stops the clock of a connection as long as something is installed."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError):
        # The clock was not begun, or is over.
        while install.running and install.left:
            clock.reschedule(loop.time() + bound + LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)
