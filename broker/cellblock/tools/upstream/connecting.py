"""Connects to one server: its process or URL, its log, the greeting and the first list of tools, within one bound; and
says why that failed, or why a connection ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp.client.session import ClientSession

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.installs import LOOK_SECONDS, Install, package_of
from cellblock.tools.upstream.opening import ProbeEnded, connected
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.programs import missing_command
from cellblock.tools.upstream.stderr_log import stderr_log
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login

CLOSED_BY_SERVER = "the connection was closed by the server"


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

    @property
    def package(self) -> str | None:
        """Names what the server's program installs first; None where it installs nothing."""
        return package_of([self.config.command or "", *self.config.args])

    def trouble(self) -> tuple[str | None, str] | None:
        """Says what is wrong with the login, as `Login.trouble`; None where there can be no login."""
        return self.login.trouble() if self.login is not None else None


class Link:
    """One connection, from its first byte to its end.

    Args:
        server: To which server.
        on_note: Told, as a sentence, what was odd in what the server sent.

    Attributes:
        client: The SDK's session; None before it is connected.
        connection: What that stands on; None before anything is sent.
        ended: Set when the connection is over.
        install: What the server's program installs first.
    """

    def __init__(self, server: Upstream, on_note: Callable[[str], None]) -> None:
        self.client: ClientSession | None = None
        self.connection: Connection | None = None
        self.ended = asyncio.Event()
        self.install: Install | None = None
        self._server, self._on_note = server, on_note
        self._said = ""

    @contextlib.asynccontextmanager
    async def opened(
        self,
        make_session: Callable[[Connection], ClientSession],
        learn: Callable[[ClientSession, Connection], Awaitable[None]],
        *,
        handshake: bool,
    ) -> AsyncGenerator[ClientSession]:
        """Connects and reads the tool list, within `upstream.connect_timeout_ms`, which counts from the end of an
        installation.

        Args:
            make_session: Makes the SDK's session, not yet entered.
            learn: Reads the tool list.
            handshake: Whether `initialize` is said first.
        """
        server, bound = self._server, self._server.bounds.connect_timeout_ms / 1000
        late, clock = "it did not answer `initialize`", asyncio.timeout(bound)

        def made(connection: Connection) -> ClientSession:
            self.connection = connection
            return make_session(connection)

        async with contextlib.AsyncExitStack() as stack:
            log = await stack.enter_async_context(
                stderr_log(server.log_file, server.redactor, self._note_said)
            )
            if server.package is not None:
                self.install = Install(server.package, server.log_file.parent, log.reading)
                stack.callback(self.install.end)
                holding = asyncio.create_task(_stopped(clock, self.install, bound))
                stack.push_async_callback(end_tasks, holding)
            opening = connected(
                server.config,
                made,
                stderr=log.sink,
                ended=self.ended,
                cap=server.max_message_bytes,
                holding=server.holding,
                on_note=self._on_note,
                auth=server.login,
                handshake=handshake,
                install=self.install,
            )
            try:
                async with clock:
                    client, connection = await stack.enter_async_context(opening)
                    late = "no tool list"
                    await learn(client, connection)
            except TimeoutError:
                if not clock.expired():
                    raise
                raise ToolCallError(
                    f"{late} within upstream.connect_timeout_ms = {server.bounds.connect_timeout_ms}{self.noise()}",
                    hint="",
                    certainty=Certainty.NOT_STARTED,
                ) from None
            self.client = client
            yield client

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
            return failures.refused_connection(error, self._server.trouble(), self._server.redactor)
        missing = missing_command(config) if isinstance(error, OSError) else None
        if missing is not None:
            return missing.removesuffix(".")[: failures.MAX_REASON_CHARS]
        if not isinstance(error, ConnectionLost | ProbeEnded) or config.command is None:
            return failures.reason_of(error, self._server.redactor)
        said = f"; it said: {self._said}" if self._said else " and did not say why"
        return f"it ended by itself{said}{self.noise()}"

    @property
    def _cut(self) -> str | None:
        return self.connection.cut if self.connection is not None else None

    def _note_said(self, text: str) -> None:
        self._said = text


async def _stopped(clock: asyncio.Timeout, install: Install, bound: float) -> None:
    """Stops the clock of a connection as long as something is installed."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError):
        # The clock was not begun, or is over.
        while install.running and install.left:
            clock.reschedule(loop.time() + bound + LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)
