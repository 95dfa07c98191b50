"""One task owns one MCP session: connect, list tools, serve calls, reconnect with backoff, close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from cellblock.callbacks import tell
from cellblock.config import ServerConfig, UpstreamSettings
from cellblock.errors import AuthenticationFailed, Certainty, ToolCallError
from cellblock.upstream.facts import ServerFacts, facts_of
from cellblock.upstream.lenience import as_arguments
from cellblock.upstream.listing import Listing, list_tools
from cellblock.upstream.message_cap import is_too_large
from cellblock.upstream.redaction import Redactor
from cellblock.upstream.stderr_log import stderr_log, upstream_log
from cellblock.upstream.transports import open_transport

logger = logging.getLogger("cellblock.upstream")

CALL_BOUND_GRACE_SECONDS: Final = 1.0
"""Our own bound over the SDK's: its clock starts only when the request is written."""

CLOSE_BOUND_SECONDS: Final = 8.0
"""From the order to close to giving up; the SDK allows a process 6 s to exit and be killed."""

MAX_REASON_CHARS: Final = 300
"""Of why a server is not connected; cut after redaction, which must see whole secrets."""

RELISTEN_SECONDS: Final = 5.0
"""Pause before a stream of changes that a server has ended is asked for again."""

_CONNECTION_CLOSED: Final = -32000
_CONNECTION_CLOSED_TEXT: Final = "Connection closed"
"""The SDK's own error; servers use the same code for whatever they like."""
_CLOSED_BY_SERVER: Final = "the connection was closed by the server"
_REQUEST_TIMEOUT: Final = -32001
_METHOD_NOT_FOUND: Final = -32601
_HTTP_REFUSED: Final = "Server returned an error response"
"""How the SDK words an HTTP status of 400 or more that came without a JSON-RPC error."""

_call_result: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class State(Enum):
    """Where a session is."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    CLOSED = "closed"


class UpstreamSession:
    """Starts with `start`; `on_change` is called whenever state, reason or facts have changed.

    Args:
        name: The server's name in the configuration.
        config: Its entry there.
        settings: Bounds.
        log_dir: Where the stderr of a started process goes, as `upstream-NAME.log`.
        on_change: Called from the event loop.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        settings: UpstreamSettings,
        *,
        log_dir: Path,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.state = State.CONNECTING
        self.reason = "still connecting"
        self.facts: ServerFacts | None = None
        self.attempts = 0
        self._config = config
        self._redactor = Redactor(config)
        self._settings = settings
        self._log_file = upstream_log(log_dir, name)
        self._on_change = on_change
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._tools_changed = asyncio.Event()
        self._fresh = asyncio.Event()
        self._fresh.set()
        self._ended = asyncio.Event()
        self._refusal: int | None = None
        self._cut: str | None = None

    def start(self) -> None:
        """Starts the task that owns the session."""
        self._task = asyncio.create_task(self._own(), name=f"upstream {self.name}")

    async def close(self) -> None:
        """Ends the session and its process within `CLOSE_BOUND_SECONDS`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_BOUND_SECONDS)
        self._move(State.CLOSED, "Cellblock is stopping")

    @property
    def stale(self) -> bool:
        """Whether the server has announced a change of its tools that is not read yet."""
        return not self._fresh.is_set()

    async def fresh(self) -> None:
        """Waits until no announced change is unread; bound it."""
        await self._fresh.wait()

    async def call(self, tool: str, value: Any, *, call_bound: float) -> types.CallToolResult:
        """Calls a tool.

        Args:
            tool: Canonical tool name.
            value: The input, JSON data; an object unless the tool's schema has another root.
            call_bound: Longest time in seconds; past it the server is sent a cancel notification.

        Raises:
            ToolCallError: Not connected, refused, timed out, or the answer was no result. Not for `isError`
                results: those are returned.
        """
        client = self._client
        if client is None:
            raise ToolCallError(
                f"Server {self.name} is not connected: {self.reason}.",
                hint="Try again later; Cellblock reconnects by itself.",
                certainty=Certainty.NOT_STARTED,
            )
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=as_arguments(value))
        )
        try:
            async with asyncio.timeout(call_bound + CALL_BOUND_GRACE_SECONDS):
                result = await client.session.send_request(
                    request, _call_result, request_read_timeout_seconds=call_bound
                )
        except MCPError as error:
            raise self._mcp_failure(client, tool, error, call_bound) from None
        except TimeoutError:
            raise self._timed_out(tool, call_bound) from None
        except ValidationError:
            raise ToolCallError(
                f"{self.name} answered {tool} with something that is no tool result.",
                hint="The tool has probably run; report this to the server's authors.",
            ) from None
        except (UnicodeEncodeError, ValueError, RecursionError) as error:
            # The SDK could not write the request: text that is no UTF-8, or too deep.
            raise ToolCallError(
                f"The input of {tool} cannot be sent: {type(error).__name__}.",
                hint="Pass plain, shallow JSON data.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        if isinstance(result, types.InputRequiredResult):
            raise ToolCallError(
                f"{tool} asks the user for input, which a script cannot give.",
                hint="Call a tool that needs no user input.",
                certainty=Certainty.MAY_HAVE_RUN,
            )
        return self._redacted(result) if result.is_error else result

    # ---- the owning task -----------------------------------------------------------------------------

    async def _own(self) -> None:
        pause = self._settings.retry_first_ms / 1000
        while True:
            self.attempts += 1
            self._move(State.CONNECTING, self.reason)
            try:
                was_ready = await self._connect_and_serve()
                why = self._cut or _CLOSED_BY_SERVER
            except Exception as error:  # noqa: BLE001 - any failure of a transport means: report and retry
                was_ready, why = False, self._cut or self._why(error)
            finally:
                self._client = None
            if self._refusal is not None and why == _HTTP_REFUSED:
                why = f"the server refused the connection: HTTP {self._refusal}"
            logger.warning("upstream %s: %s", self.name, why)
            self._cut = None
            self._move(State.WAITING, why)
            if was_ready:
                pause = self._settings.retry_first_ms / 1000
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._settings.retry_max_ms / 1000)

    async def _connect_and_serve(self) -> bool:
        ended = self._ended = asyncio.Event()
        bound = self._settings.connect_timeout_ms / 1000
        async with stderr_log(self._log_file, self._redactor) as log:
            client = Client(
                open_transport(
                    self._config,
                    stderr=log,
                    ended=ended,
                    max_message_bytes=self._settings.max_message_bytes,
                    on_refusal=self._note_refusal,
                    on_cut=self._note_cut,
                ),
                message_handler=self._on_message,
                cache=None,
            )
            try:
                async with contextlib.AsyncExitStack() as stack:
                    async with asyncio.timeout(bound):
                        await stack.enter_async_context(client)
                        self.facts = await self._learn(client)
                    self._client = client
                    # The probe for a newer protocol may have been refused; that says nothing of calls.
                    self._refusal = None
                    self._move(State.READY, "")
                    await self._serve(client, ended)
                    self._client = None
                    # Closing takes a while, in which no script should be offered what cannot be called.
                    self._move(State.WAITING, self._cut or _CLOSED_BY_SERVER)
            except TimeoutError:
                raise ToolCallError(
                    f"no tool list within {bound:g} s", hint="", certainty=Certainty.NOT_STARTED
                ) from None
        return True

    async def _serve(self, client: Client, ended: asyncio.Event) -> None:
        """Until the connection ends: lists tools anew whenever the server says that they changed."""
        over = asyncio.create_task(ended.wait())
        listening = asyncio.create_task(self._listen(client))
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
            over.cancel()
            listening.cancel()
            await asyncio.wait([listening])

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
            await asyncio.sleep(RELISTEN_SECONDS)

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
            listing = await list_tools(lambda cursor: client.list_tools(cursor=cursor), self._settings)
        facts = facts_of(client, listing, self._settings)
        if facts != self.facts:
            for note in facts.all_notes():
                logger.warning("upstream %s: %s", self.name, self._redactor.text(note))
        return facts

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._note_change()
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
        tell(self._on_change)

    def _why(self, error: BaseException) -> str:
        return self._redactor.text(_text_of(error))[:MAX_REASON_CHARS]

    def _redacted(self, result: types.CallToolResult) -> types.CallToolResult:
        """An error result in which the server quotes none of its own secrets."""
        plain = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        safe = self._redactor.tree(plain)
        return result if safe == plain else types.CallToolResult.model_validate(safe, by_name=False)

    def _note_refusal(self, status: int) -> None:
        self._refusal = status

    def _note_cut(self, why: str) -> None:
        self._cut = why

    def _timed_out(self, tool: str, bound: float) -> ToolCallError:
        return ToolCallError(
            f"{self.name} did not answer {tool} within {bound:g} s.",
            hint="Ask for less at a time, or raise upstream.call_timeout_ms.",
            summary=f"no answer within {bound:g} s",
        )

    def _mcp_failure(self, client: Client, tool: str, error: MCPError, bound: float) -> ToolCallError:
        if error.code == _REQUEST_TIMEOUT:
            return self._timed_out(tool, bound)
        if self._session_gone(error):
            # Every later call would be refused too: a new session is needed.
            self._lose(client)
            return ToolCallError(
                f"{self.name} has forgotten the session; {tool} was not called.",
                hint="Try again in a moment; Cellblock reconnects by itself.",
                certainty=Certainty.NOT_STARTED,
            )
        if error.code == _CONNECTION_CLOSED and error.message == _CONNECTION_CLOSED_TEXT:
            self._lose(client)
            return ToolCallError(
                f"The connection to {self.name} closed during {tool}{f': {self._cut}' if self._cut else ''}.",
                hint="Check whether the call took effect before you repeat it.",
                summary="the connection closed during the call",
            )
        if is_too_large(error.message):
            return ToolCallError(
                f"The answer of {self.name} to {tool} is too large: {self._redactor.text(error.message)}.",
                hint="Ask for less at a time; the tool has probably run.",
                summary="the answer is over upstream.max_message_bytes",
            )
        if error.message == _HTTP_REFUSED and self._refusal is not None:
            return self._refused(tool, self._refusal)
        return ToolCallError(
            f"{tool} of {self.name} failed: {self._redactor.text(error.message)} (JSON-RPC error {error.code}).",
            hint="Correct the call as the message says.",
            certainty=Certainty.NOT_STARTED if error.code == _METHOD_NOT_FOUND else Certainty.MAY_HAVE_RUN,
        )

    def _session_gone(self, error: MCPError) -> bool:
        """Whether an HTTP server does not know our session any more: 404 by the specification, 400 in practice."""
        if self._refusal not in (400, 404):
            return False
        return error.message == _HTTP_REFUSED or "session" in error.message.lower()

    def _refused(self, tool: str, status: int) -> ToolCallError:
        if status in (401, 403):
            return AuthenticationFailed(
                f"{self.name} refused {tool}: HTTP {status}.",
                hint=f"Correct the credentials of {self.name} in Cellblock's configuration.",
                certainty=Certainty.NOT_STARTED,
            )
        return ToolCallError(
            f"{self.name} answered {tool} with HTTP {status}.",
            hint="Check whether the call took effect before you repeat it.",
        )


def _text_of(error: BaseException) -> str:
    """One line that says what failed, without the text of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    text: object = getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
