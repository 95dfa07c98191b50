"""One task owns one MCP session: connect, list tools, serve calls, reconnect with backoff, close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cellblock.base.callbacks import tell
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_object
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.catalog.requests import SUBSCRIBE, Kind
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.beside import Beside
from cellblock.tools.upstream.connecting import Backoff, FirstAttempt, State
from cellblock.tools.upstream.entries import Entry
from cellblock.tools.upstream.heavy import LargeMessages, list_page
from cellblock.tools.upstream.input_rounds import ask, call_tool
from cellblock.tools.upstream.lenience import as_arguments
from cellblock.tools.upstream.listing import Listing, ServerFacts, facts_of, list_tools
from cellblock.tools.upstream.outstanding import Outstanding, Routing, refused
from cellblock.tools.upstream.programs import missing_command
from cellblock.tools.upstream.requester import NOBODY, CallOrigin
from cellblock.tools.upstream.server_log import ServerLog, wanted_level
from cellblock.tools.upstream.server_logins import NeededLogin
from cellblock.tools.upstream.stderr_log import stderr_log, upstream_log
from cellblock.tools.upstream.transports import open_transport

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
        large: Reads messages that are too large for the loop; None: on its own.
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
        large: LargeMessages | None = None,
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
        self._large = large or LargeMessages()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._tools_changed = asyncio.Event()
        self._fresh = asyncio.Event()
        self._fresh.set()
        self._ended = asyncio.Event()
        self._refusal: int | None = None
        self._is_shut_out = False
        self._cut: str | None = None
        self._said = ""
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
    def needed_login(self) -> NeededLogin | None:
        """Gives the login that a person can give; None where nobody can."""
        if self._login is None or not self._login.is_given:
            return None
        return NeededLogin(self.name, self._login, lambda: self.state is State.READY)

    @property
    def stale(self) -> bool:
        """Says whether the server has announced a change of its tools that is not read yet."""
        return not self._fresh.is_set()

    async def fresh(self) -> None:
        """Waits until no announced change is unread; bound it."""
        await self._fresh.wait()

    @property
    def revision(self) -> int:
        """Counts how often what was listed beside tools has become old."""
        return self._beside.revision

    async def entries(self, kind: Kind, *, fresh: bool) -> list[Entry]:
        """Returns what the server lists beside tools, as `Beside.entries`."""
        client = self._client
        return await self._beside.entries(kind, client, self._heavy if client else None, fresh=fresh)

    async def unfollow(self, uri: str) -> None:
        """Ends the subscription to a resource, as far as the server does."""
        self._followed.discard(uri)
        with contextlib.suppress(MCPError, ValidationError, TimeoutError):
            async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
                if self._client is not None:
                    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
                    await self._client.session.send_request(request, types.EmptyResult)

    async def call(
        self,
        tool: str,
        value: Any,
        *,
        call_bound: float,
        origin: CallOrigin = NOBODY,
        is_tool: bool = True,
    ) -> Any:
        """Calls a tool, or sends another request.

        Args:
            tool: Canonical tool name, or the method of the request.
            value: The input, JSON data; an object unless the tool's schema has another root.
            call_bound: Longest time in seconds, without that in which the server waits for an answer of the client;
                past it the server is sent a cancel notification.
            origin: Whom the server may ask meanwhile.
            is_tool: Whether it is a tool.

        Returns:
            The `CallToolResult`, or that of the request.

        Raises:
            ToolCallError: Not connected, refused, timed out, or the answer was no result. Not for `isError`
                results: those are returned.
        """
        send = call_tool if is_tool else self._ask
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
        """Calls a tool by `send`; `left` is what waiting for a turn has left of `call_bound`."""
        client = self._client
        if client is None:
            login = self._login.trouble() if self._login is not None and self._is_shut_out else None
            raise failures.not_connected(self.name, self.reason, login, self.needed_login)
        call: Outstanding | None = None
        clock = asyncio.timeout(left)
        try:
            async with clock:
                with self._routing.call(clock, origin) as call, self._heavy.placed(value) as placed:
                    result = await send(
                        client.session, self.name, tool, as_arguments(placed), call.progress(self.name, tool)
                    )
        except MCPError as error:
            refusal = call.refusal if call is not None else None
            raise self._mcp_failure(client, tool, error, refusal) from None
        except TimeoutError:
            raise failures.timed_out(self.name, tool, call_bound) from None
        except ValidationError:
            raise failures.no_result(self.name, tool) from None
        except (UnicodeEncodeError, ValueError, RecursionError) as error:
            # The SDK could not write the request: text that is no UTF-8, or too deep.
            raise ToolCallError(
                f"The input of {tool} cannot be sent: {type(error).__name__}.",
                hint="Pass plain, shallow JSON data.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        is_error = isinstance(result, types.CallToolResult) and result.is_error
        return self._redacted(result) if is_error else result

    async def _ask(
        self, session: ClientSession, server: str, method: str, value: dict[str, Any], progress: Any
    ) -> Any:
        if not is_object(value):
            raise ToolCallError(
                f"The input of {method} is too large.",
                hint="Send less at a time.",
                certainty=Certainty.NOT_STARTED,
            )
        result = await ask(session, server, method, value, progress)
        if method == SUBSCRIBE.tool_name:
            self._followed.add(value["uri"])
        return result

    # ---- the owning task -----------------------------------------------------------------------------

    async def _own(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            self.attempts += 1
            self._refusal, self._ready_at = None, None
            self._move(State.CONNECTING, self.reason)
            try:
                await self._connect_and_serve()
                why = self._cut or _CLOSED_BY_SERVER
            except Exception as error:  # noqa: BLE001 - any failure of a transport means: report and retry
                why = self._cut or self._why_unconnected(error)
            finally:
                self._client = None
            if self._closing:
                return
            now = asyncio.get_running_loop().time()
            if self._refusal is not None and (why in failures.HTTP_REFUSALS or self._config.type == "sse"):
                why = f"the server refused the connection: HTTP {self._refusal}"
                if self._login is not None and self._refusal in (401, 403):
                    problem, hint = self._login.trouble()
                    why += f"{f'; {problem}' if problem else ''}; {hint}"
            logger.warning("upstream %s: %s", self.name, why)
            self._cut = None
            self._move(State.WAITING, why)
            pause = backoff.pause(now - self._ready_at if self._ready_at is not None else 0.0)
            if self._login is None:
                await asyncio.sleep(pause)
            else:
                await self._login.changed(pause)

    async def _connect_and_serve(self) -> None:
        ended = self._ended = asyncio.Event()
        heavy = self._heavy = self._large.for_server(self.name)
        passed_on = self._settings.passed_on
        self._said = ""
        async with stderr_log(self._log_file, self._redactor, self._note_said) as log:
            client = Client(
                open_transport(
                    self._config,
                    stderr=log,
                    ended=ended,
                    max_message_bytes=self._max_message_bytes,
                    on_status=self._note_status,
                    on_cut=self._note_cut,
                    heavy=heavy,
                    auth=self._login,
                ),
                message_handler=self._on_message,
                logging_callback=self._on_log,
                log_level=wanted_level(),
                elicitation_callback=self._routing.elicit if "elicitation" in passed_on else None,
                sampling_callback=self._routing.sample if "sampling" in passed_on else None,
                list_roots_callback=self._routing.roots if "roots" in passed_on else None,
                cache=None,
            )
            async with contextlib.AsyncExitStack() as stack:
                await self._begin(client, stack)
                self._client = client
                self._ready_at = asyncio.get_running_loop().time()
                self._is_shut_out = False
                self._move(State.READY, "")
                await self._serve(client, ended)
                self._client = None
                # Closing takes a while, in which no script should be offered what cannot be called.
                self._move(State.WAITING, self._cut or _CLOSED_BY_SERVER)

    async def _begin(self, client: Client, stack: contextlib.AsyncExitStack) -> None:
        """Connects and reads the tool list, within `upstream.connect_timeout_ms`."""
        late = "it did not answer `initialize`"
        clock = asyncio.timeout(self._settings.connect_timeout_ms / 1000)
        try:
            async with clock:
                await stack.enter_async_context(client)
                late = "no tool list"
                self.facts = await self._learn(client)
        except TimeoutError:
            if not clock.expired():
                raise
            raise ToolCallError(
                f"{late} within upstream.connect_timeout_ms = {self._settings.connect_timeout_ms}",
                hint="",
                certainty=Certainty.NOT_STARTED,
            ) from None

    async def _serve(self, client: Client, ended: asyncio.Event) -> None:
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
                    self._tools_changed.clear()
                    await self._refresh(client)
                    if not self._tools_changed.is_set():
                        self._fresh.set()
        finally:
            self._fresh.set()
            ended.set()
            over.cancel()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside, timeout=CLOSE_BOUND_SECONDS)

    async def _listen(self, client: Client) -> None:
        """Asks for the stream of changes where there is one (MCP 2026-07-28); older servers announce unasked."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    # There is no replay: a change between the list and this stream would go unseen.
                    self._note_change()
                    async for _ in changes:
                        self._note_change()
            except (MCPError, SubscriptionLost) as error:
                logger.info("upstream %s: its stream of changes ended: %s", self.name, self._why(error))
            if self._ended.is_set():
                return
            await asyncio.sleep(RELISTEN_SECONDS)

    async def _follow(self, client: Client) -> None:
        """Subscribes again, on a new connection, to the resources that the one before was subscribed to."""
        self._beside.note_change()
        for uri in [*self._followed]:
            with contextlib.suppress(MCPError, ValidationError, TimeoutError):
                async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
                    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
                    await client.session.send_request(request, types.EmptyResult)
                tell(self._on_update, uri)

    async def _refresh(self, client: Client) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                facts = await self._learn(client)
        except (TimeoutError, MCPError, ValidationError) as error:
            why = self._why(error)
            logger.warning("upstream %s: its changed tool list cannot be read: %s", self.name, why)
            return
        if facts != self.facts:
            self.facts = facts
            tell(self._on_change)

    async def _learn(self, client: Client) -> ServerFacts:
        listing = Listing()
        if client.server_capabilities.tools is not None:
            listing = await list_tools(lambda cursor: list_page(client, self._heavy, cursor))
        facts = facts_of(client, listing)
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
        elif isinstance(message, types.ResourceUpdatedNotification):
            if message.params.uri in self._followed:
                tell(self._on_update, message.params.uri)
        elif isinstance(message, Exception):
            logger.warning("upstream %s sent what is no message: %s", self.name, type(message).__name__)

    # ---- inside --------------------------------------------------------------------------------------

    def _lose(self, client: Client) -> None:
        """Offers a client that is known to be dead to no further call: what was never sent must be told as that."""
        if self._client is client:
            self._client = None
            self._move(State.WAITING, _CLOSED_BY_SERVER)
            self._ended.set()

    def _note_change(self) -> None:
        self._fresh.clear()
        self._tools_changed.set()

    def _move(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        if state is not State.CONNECTING:
            self.first.end()
        tell(self._on_change)

    def _why(self, error: BaseException) -> str:
        return failures.reason_of(error, self._redactor)

    def _why_unconnected(self, error: BaseException) -> str:
        """Returns why there is no connection, with what to do about a program that is not there, or what it said."""
        error = failures.first_of(error)
        missing = missing_command(self._config) if isinstance(error, OSError) else None
        if missing is not None:
            return missing.removesuffix(".")[: failures.MAX_REASON_CHARS]
        ended = isinstance(error, MCPError) and failures.is_closed(error)
        if not ended or self._config.command is None:
            return self._why(error)
        return f"it ended by itself{f'; it said: {self._said}' if self._said else ' and did not say why'}"

    def _note_said(self, text: str) -> None:
        self._said = text

    def _redacted(self, result: types.CallToolResult) -> types.CallToolResult:
        """Returns an error result in which the server quotes none of its own secrets."""
        plain = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        safe = self._redactor.tree(plain)
        return result if safe == plain else types.CallToolResult.model_validate(safe, by_name=False)

    def _note_status(self, status: int) -> None:
        if not self._routing.note_status(status):
            self._refusal, self._is_shut_out = refused(status), status in (401, 403)

    def _note_cut(self, why: str) -> None:
        self._cut = why

    def _mcp_failure(self, client: Client, tool: str, error: MCPError, refusal: int | None) -> ToolCallError:
        if failures.session_gone(error, refusal):
            # Every later call would be refused too: a new session is needed.
            self._lose(client)
            return failures.forgotten(self.name, tool)
        if failures.is_closed(error):
            self._lose(client)
            return failures.closed(self.name, tool, self._cut)
        if error.message == failures.HTTP_REFUSED and refusal is not None:
            login = self._login.trouble() if self._login is not None else None
            return failures.refused(self.name, tool, refusal, login, self.needed_login)
        failure = failures.answered(self.name, tool, error, self._redactor)
        failure.rpc_code = error.code
        return failure
