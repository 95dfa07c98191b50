"""Connects to one server: its process or URL, its log, the greeting and the first list of tools, within one bound; and
says why that failed, or why a connection ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_array, is_object
from cellblock.base.redaction import Redactor, guard_loggers
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.base.visible import visible
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.dispatcher import Connection, Session, Wire
from cellblock.tools.upstream.failures import CLOSED_BY_SERVER, ConnectionLost, HttpRefused
from cellblock.tools.upstream.http import HttpWire, SseWire
from cellblock.tools.upstream.http_requests import http_client, tls_context
from cellblock.tools.upstream.installs import INSTALL_SECONDS, Install, package_of
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.programs import missing_command
from cellblock.tools.upstream.server_log import log_line, stderr_log
from cellblock.tools.upstream.stdio import StdioWire, stdio_wire

logger = logging.getLogger("cellblock.tools.upstream")

MAX_NOTES: Final = 200
"""Bounds the different oddities of one server that are told."""

PROBE_SECONDS: Final = 0.8
"""Sets how long a server may say nothing to `server/discover` before `initialize` is sent beside it: some servers of
before 2026-07-28 answer nothing else first."""

LATE_SECONDS: Final = 10.0
"""Sets how long the answer to one of `server/discover` and `initialize` is waited for when the other is answered."""


async def _agree(session: Session, *, handshake: bool) -> None:
    """Asks `server/discover`, and falls back to `initialize` where that gives nothing or takes too long."""
    if handshake:
        await session.initialize()
        return
    probe = asyncio.create_task(_discovers(session))
    greeting: asyncio.Task[types.InitializeResult] | None = None
    try:
        await asyncio.wait([probe], timeout=PROBE_SECONDS)
        if not probe.done():
            greeting = asyncio.create_task(session.initialize())
            await asyncio.wait([probe, greeting], return_when=asyncio.FIRST_COMPLETED)
        if probe.done() and probe.result():
            # A server that begins late has heard both, and keeps to `initialize` where it takes that.
            if greeting is None:
                return
            answered, _ = await asyncio.wait([greeting], timeout=LATE_SECONDS)
            if not answered or greeting.exception() is not None:
                return
        try:
            await (greeting or session.initialize())
        except ConnectionLost as error:
            # What was asked before has reached the server, and may be why it ended.
            error.sent = True
            raise
        except MCPError as error:
            # A server that answers late has settled on the newer revision meanwhile.
            patience = None if error.code == types.UNSUPPORTED_PROTOCOL_VERSION else LATE_SECONDS
            if probe.done() or not (await asyncio.wait([probe], timeout=patience))[0] or not probe.result():
                raise
    finally:
        await end_tasks(probe, greeting)


async def _discovers(session: Session) -> bool:
    """Says whether there is a revision that has no greeting and that both know; it is agreed on then.

    Raises:
        MCPError: The server knows none that is known here, or the connection was lost.
    """
    try:
        await session.discover()
    except ConnectionLost:
        raise
    except MCPError as error:
        said: object = error.data.get("supported") if is_object(error.data) else None
        supported = said if is_array(said) and error.code == types.UNSUPPORTED_PROTOCOL_VERSION else []
        if supported and not any(one in KNOWN_PROTOCOL_VERSIONS for one in supported):
            raise
        return False
    except (ValidationError, RuntimeError):
        return False
    return True


if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login


@dataclass(frozen=True, slots=True)
class Upstream:
    """Holds what the connections and the calls of one server have in common.

    Args:
        name: The server's name in the configuration.
        config: Its entry there.
        bounds: Of its times and calls.
        max_message_bytes: Caps one message of it.
        log_file: Where the stderr of its process goes.
        redactor: Keeps its secrets out of what is told.
        login: What is known of its OAuth login; None for a server that cannot have one.
        holding: Counts the bytes of its large messages.
    """

    name: str
    config: ServerConfig
    bounds: ServerBounds
    max_message_bytes: int
    log_file: Path
    redactor: Redactor
    login: Login | None
    holding: Holding
    _notes: set[str] = field(default_factory=set[str])

    @property
    def package(self) -> str | None:
        """Names what the server's program installs first; None where it installs nothing."""
        return package_of([self.config.command or "", *self.config.args])

    def trouble(self) -> tuple[str | None, str] | None:
        """Says what is wrong with the login, as `Login.trouble`; None where there can be no login."""
        return self.login.trouble() if self.login is not None else None

    def note(self, text: str) -> None:
        """Tells once, in Cellblock's log and in that of the server, what was odd in what it sent."""
        said = visible(self.redactor.text(text), instead=" ")
        if said not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.add(said)
            logger.warning("upstream %s: %s", self.name, said)
            log_line(self.log_file, f"cellblock: {said}")


class Link:
    """One connection, from its first byte to its end.

    Args:
        server: To which server.
        on_note: Told, as a sentence, what was odd in what the server sent.
        callbacks: Of the SDK's session.

    Attributes:
        session: The SDK's; None before the two sides have agreed on a revision.
        connection: What that stands on; None before anything is sent.
        ended: Set when the connection is over.
        install: What the server's program installs first.
    """

    def __init__(self, server: Upstream, on_note: Callable[[str], None], **callbacks: Any) -> None:
        self.session: Session | None = None
        self.connection: Connection | None = None
        self.ended = asyncio.Event()
        self.install: Install | None = None
        self._server, self._on_note, self._callbacks = server, on_note, callbacks
        self._process: StdioWire | None = None
        self._clock = asyncio.timeout(None)
        self._said = ""

    @contextlib.asynccontextmanager
    async def opened(
        self, learn: Callable[[Session], Awaitable[None]], *, handshake: bool
    ) -> AsyncGenerator[Session]:
        """Connects and reads the tool list, within `upstream.connect_timeout_ms`, which counts from the end of an
        installation.

        Args:
            learn: Reads the tool list.
            handshake: Whether `initialize` is said first.
        """
        server, bound = self._server, self._server.bounds.connect_timeout_ms / 1000
        late = "it did not answer `initialize`"
        self._clock = asyncio.timeout(bound if server.package is None else INSTALL_SECONDS + bound)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with self._clock:
                    session = await self.connected(stack, handshake=handshake)
                    late = "no tool list"
                    await learn(session)
            except TimeoutError:
                if not self._clock.expired():
                    raise
                raise ToolCallError(
                    f"{late} within upstream.connect_timeout_ms = {server.bounds.connect_timeout_ms}{self.noise()}",
                    hint="",
                    certainty=Certainty.NOT_STARTED,
                ) from None
            yield session

    async def connected(self, stack: contextlib.AsyncExitStack, *, handshake: bool) -> Session:
        """Connects: `command` starts a process (stdio), `url` connects (streamable HTTP, or SSE by `type`).

        Raises:
            OSError: The process cannot be started.
            MCPError: The server refused, or the connection was lost.
        """
        guard_loggers()
        wire = await self._wire(stack)
        try:
            return await self._agreed(stack, wire, handshake)
        except HttpRefused as refused:
            if (
                refused.status not in (404, 405)
                or not isinstance(wire, HttpWire)
                or self._server.config.type is not None
            ):
                raise
            # Before streamable HTTP, a GET opened the stream of events; not all servers of then say 405 to a POST.
            self.ended.clear()
            try:
                sse = await self._sse(stack, wire.url, wire.client)
            except MCPError as error:
                said = (
                    f"{refused.said} {error.message}" if isinstance(error, ConnectionLost) else refused.said
                )
                raise HttpRefused(refused.status, said.strip()) from None
            return await self._agreed(stack, sse, handshake=True)

    async def _wire(self, stack: contextlib.AsyncExitStack) -> Wire:
        server, config = self._server, self._server.config
        cap, holding = server.max_message_bytes, server.holding
        if config.command is not None:
            kept = stderr_log(server.log_file, server.redactor, self._note_said)
            stderr, reading = await stack.enter_async_context(kept)
            if server.package is not None:
                folder = server.log_file.parent
                self.install = Install(server.package, folder, reading, self._note_installed)
                stack.callback(self.install.end)
            started = stdio_wire(config, stderr=stderr, cap=cap, holding=holding, install=self.install)
            self._process = await stack.enter_async_context(started)
            return self._process
        tls, url = await asyncio.to_thread(tls_context), config.url
        assert url is not None
        client = await stack.enter_async_context(http_client(config.headers, server.login, tls))
        if config.type == "sse":
            return await self._sse(stack, url, client)
        wire = HttpWire(url, client, cap, holding)
        stack.push_async_callback(wire.close)
        return wire

    async def _sse(self, stack: contextlib.AsyncExitStack, url: str, client: httpx2.AsyncClient) -> SseWire:
        sse = SseWire(url, client, self._server.max_message_bytes, self._server.holding)
        await stack.enter_async_context(sse.opened())
        return sse

    async def _agreed(self, stack: contextlib.AsyncExitStack, wire: Wire, handshake: bool) -> Session:
        connection = self.connection = Connection(wire, self.ended, self._on_note)
        async with contextlib.AsyncExitStack() as opening:
            session = await opening.enter_async_context(Session(connection, **self._callbacks))
            try:
                await _agree(session, handshake=handshake)
            except MCPError as error:
                # Not from within the block: the session's tasks would make a group of it.
                failed = error
            else:
                self.session, connection.version = session, session.protocol_version
                stack.push_async_exit(opening.pop_all())
                return session
        if isinstance(failed, ConnectionLost):
            failed.at_question = failed.sent and not handshake
        raise failed

    def noise(self) -> str:
        """Says, to be added to a reason, what a started server wrote that is no message."""
        noise = self.connection.noise if self.connection is not None else ""
        if not noise or self._server.config.command is None:
            return ""
        return f"; on its stdout is what is no message: {self._server.redactor.text(noise)}"

    def why_ended(self) -> str:
        """Says why a connection ended that had been good."""
        if self._cut is not None:
            return self._cut
        return f"{CLOSED_BY_SERVER}{f'; it said: {self._said}' if self._said else ''}"

    def why_lost(self, error: ConnectionLost | HttpRefused) -> str | None:
        """Says why a connection was lost during a call."""
        if self._cut is not None:
            return self._cut
        if self._server.config.command is not None:
            return f"it said: {self._said}" if self._said else None
        return self._server.redactor.text(error.message)[: failures.MAX_REASON_CHARS]

    def why_unconnected(self, error: BaseException) -> str:
        """Says why there is no connection, with what to do about a program that is not there, or what it said."""
        config = self._server.config
        if self._cut is not None:
            return self._cut
        if isinstance(error, HttpRefused):
            login, redactor = self._server.trouble(), self._server.redactor
            return failures.refused_connection(self._server.name, error, login, redactor)
        missing = missing_command(config) if isinstance(error, OSError) else None
        if missing is not None:
            return missing.removesuffix(".")[: failures.MAX_REASON_CHARS]
        if not isinstance(error, ConnectionLost) or config.command is None:
            return failures.reason_of(error, self._server.redactor)
        if self._said:
            return f"it ended by itself; it said: {self._said}{self.noise()}"
        code = self._process.exit_code if self._process is not None else None
        failed = f" with exit code {code}" if code and code > 0 else ""
        return f"it ended by itself{failed} and did not say why{self.noise()}"

    @property
    def _cut(self) -> str | None:
        return self.connection.cut if self.connection is not None else None

    def _note_said(self, text: str) -> None:
        self._said = text

    def _note_installed(self) -> None:
        """Has the time to connect begin."""
        # It may be over.
        with contextlib.suppress(RuntimeError):
            bound = self._server.bounds.connect_timeout_ms / 1000
            self._clock.reschedule(asyncio.get_running_loop().time() + bound)
