"""`cellblock connect`: MCP messages between this process's stdin and stdout and a running daemon.

Every message passes as it is; the SDK's HTTP client transport carries it. What HTTP wants beside a message, its
headers, is taken from the messages.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.frontend.http.token import read_token
from cellblock.frontend.stdio.stdin import StdinLines
from cellblock.frontend.stdio.stdout import StdoutLines
from cellblock.frontend.stdio.unreadable import AnsweringStream

logger = logging.getLogger("cellblock.frontend")

CONNECT_SECONDS: Final = 5.0
"""For the daemon to take a connection and answer the first request."""

SILENCE_SECONDS: Final = 60.0
"""Of the daemon in the middle of an answer; it sends a sign of life every 15 s."""

HANDSHAKE_SECONDS: Final = 30.0
"""For the answer to `initialize`: nothing else can be sent before the session has its id."""

FAREWELL_SECONDS: Final = 5.0
"""For the last answers, and to end the session, when the client has closed stdin."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""One message of the daemon: a result of 16 MiB is in it twice."""


STREAMS: Final = "subscriptions/listen"
"""Has no answer for as long as it lasts."""


class DaemonUnavailable(CellblockError):
    """The daemon is not there, does not take us, or has gone."""


class Daemon:
    """Where a daemon is, and what it is shown.

    Args:
        url: Of its MCP endpoint.
        token_file: Where the token is.
        token_optional: Whether that file may be missing; then no token is shown.
        tls_ca: Certificates to trust beside those of the system.

    Raises:
        ConfigError: The URL, the token file or the certificates cannot be used.
    """

    def __init__(
        self, url: str, *, token_file: Path, token_optional: bool = False, tls_ca: Path | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url {url}: this is no http or https URL.", hint="Give what the daemon printed."
            )
        self.url = url
        shown = token_file.exists() or not token_optional
        self._token = read_token(token_file) if shown else None
        self._local = _is_loopback(parts.hostname)
        if self._token and parts.scheme == "http" and not self._local:
            raise ConfigError(f"--url {url} would send the token in the clear.", hint="Use https.")
        try:
            self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--tls-ca {tls_ca} cannot be used: {error}.", hint="Give a PEM file."
            ) from None

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """An HTTP client that shows the token."""
        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS),
            verify=self._tls or True,
            # A proxy of the environment is not between us and our own machine.
            trust_env=not self._local,
        ) as client:
            yield client

    async def check(self, client: httpx2.AsyncClient) -> None:
        """Asks the daemon whether it takes us.

        Raises:
            DaemonUnavailable: It does not, or nobody answers.
        """
        try:
            # Of the methods that no MCP endpoint has, so that it is answered at once; it passes all checks before.
            response = await client.head(self.url, timeout=CONNECT_SECONDS)
        except httpx2.HTTPError as error:
            raise self.gone(error) from None
        status = response.status_code
        if status == 405:
            return
        if status == 401:
            raise DaemonUnavailable(
                f"The daemon at {self.url} refuses the token{'' if self._token else ': none is shown'}.",
                hint="Give the same --state-dir or --token-file as to the daemon.",
            )
        if status == 403:
            raise DaemonUnavailable(
                f"The daemon at {self.url} does not know itself by this name.",
                hint="Use the URL that it printed, or list the name in cellblock.http.allowed_hosts.",
            )
        raise DaemonUnavailable(
            f"{self.url} is no Cellblock daemon (HTTP status {status}).", hint="Check --url."
        )

    def gone(self, error: Exception) -> DaemonUnavailable:
        """What to say when the connection fails."""
        why = str(error) or type(error).__name__
        return DaemonUnavailable(
            f"No daemon answers at {self.url}: {why}.",
            hint="Start it with `cellblock serve --http`, or have it run with `cellblock service`.",
        )


async def relay_stdio(daemon: Daemon) -> None:
    """Relays between stdin and stdout and the daemon until the client closes stdin.

    Raises:
        DaemonUnavailable: The daemon is not there, does not take us, or has gone.
    """
    async with daemon.client() as client:
        await daemon.check(client)
        lines = await StdinLines.open()
        output = await StdoutLines.open(on_lost=lines.close if lines else lambda: None)
        try:
            async with stdio_server(
                stdin=lines.as_file() if lines else None, stdout=output.as_file() if output else None
            ) as (from_client, to_client):
                relay = Relay(daemon, AnsweringStream(from_client, to_client), to_client)
                try:
                    lost = await relay.run(client)
                finally:
                    # Otherwise the reader of stdin keeps the process for as long as the client likes.
                    if lines is not None:
                        lines.close()
                    if output is not None:
                        output.say_farewell()
                    await to_client.aclose()
        finally:
            if output is not None:
                output.close()
            if lines is not None:
                lines.close()
        # Not before: a task group would wrap it.
        if lost is not None:
            raise lost


class Relay:
    """Carries messages both ways.

    Args:
        daemon: For what to say when it goes.
        from_client: Messages of the MCP client.
        to_client: Takes messages for it.
    """

    def __init__(self, daemon: Daemon, from_client: Any, to_client: Any) -> None:
        self._daemon = daemon
        self._from_client = from_client
        self._to_client = to_client
        self._waiting: dict[types.RequestId, str] = {}
        self._quiet = anyio.Event()
        self._session_version: str | None = None
        self._lost: DaemonUnavailable | None = None

    async def run(self, client: httpx2.AsyncClient) -> DaemonUnavailable | None:
        """Relays until the client is done, or the daemon has gone.

        Returns:
            What to say when the daemon has gone; every request that waits has got it as its error.
        """
        try:
            async with (
                streamable_http_client(
                    self._daemon.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
                ) as (from_daemon, to_daemon),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._down, from_daemon, tasks.cancel_scope)
                await self._up(to_daemon)
                # stdin is closed. Answers that come quickly are still worth having.
                with anyio.move_on_after(FAREWELL_SECONDS):
                    while any(method != STREAMS for method in self._waiting.values()):
                        self._quiet = anyio.Event()
                        await self._quiet.wait()
                tasks.cancel_scope.cancel()
        except* httpx2.HTTPError as group:
            self._lost = self._daemon.gone(_first(group))
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if self._lost is not None:
            await self._answer_all(str(self._lost))
        return self._lost

    async def _up(self, to_daemon: Any) -> None:
        async for message in self._from_client:
            if isinstance(message, Exception):
                logger.info("a line of the client is no message: %s", type(message).__name__)
                continue
            body = message.message
            if isinstance(body, types.JSONRPCRequest):
                self._waiting[body.id] = body.method
            await to_daemon.send(SessionMessage(body, metadata=self._metadata(body)))
            if isinstance(body, types.JSONRPCRequest) and body.method == "initialize":
                with anyio.move_on_after(HANDSHAKE_SECONDS):
                    while body.id in self._waiting:
                        self._quiet = anyio.Event()
                        await self._quiet.wait()
            elif isinstance(body, types.JSONRPCNotification) and body.method == "notifications/cancelled":
                self._settled((body.params or {}).get("requestId"))

    async def _down(self, from_daemon: Any, scope: anyio.CancelScope) -> None:
        async for message in from_daemon:
            if isinstance(message, Exception):
                logger.warning("a message of the daemon cannot be read: %s", message)
                continue
            body = message.message
            if isinstance(body, types.JSONRPCResponse | types.JSONRPCError):
                if isinstance(body, types.JSONRPCResponse) and self._waiting.get(body.id) == "initialize":
                    self._session_version = str(body.result.get("protocolVersion"))
                if isinstance(body, types.JSONRPCError) and _session_is_lost(body):
                    # The client cannot know that it would have to initialize again; that it may restart us, it does.
                    self._lost = DaemonUnavailable(
                        f"The daemon at {self._daemon.url} has forgotten this session: it was restarted, or the "
                        "session was idle for too long.",
                        hint="Start the MCP server again in the editor.",
                    )
                    scope.cancel()
                    return
            await self._to_client.send(SessionMessage(body))
            if isinstance(body, types.JSONRPCResponse | types.JSONRPCError) and body.id is not None:
                self._settled(body.id)

    def _settled(self, request_id: object) -> None:
        self._waiting.pop(cast("types.RequestId", request_id), None)
        self._quiet.set()

    async def _answer_all(self, why: str) -> None:
        for request_id in list(self._waiting):
            error = types.ErrorData(code=types.CONNECTION_CLOSED, message=why)
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._to_client.send(
                    SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
                )

    def _metadata(self, body: Any) -> ClientMessageMetadata | None:
        """The headers of a message: a modern one says its protocol version itself, others have their session's."""
        headers: dict[str, str] = {}
        if isinstance(body, types.JSONRPCRequest | types.JSONRPCNotification):
            params = body.params or {}
            meta = params.get("_meta")
            version = (
                cast("dict[str, Any]", meta).get(types.PROTOCOL_VERSION_META_KEY)
                if isinstance(meta, dict)
                else None
            )
            if isinstance(version, str):
                headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: body.method}
                name = params.get(NAME_BEARING_METHODS.get(body.method, ""))
                if isinstance(name, str):
                    headers[MCP_NAME_HEADER] = encode_header_value(name)
        if not headers and self._session_version is not None:
            headers = {MCP_PROTOCOL_VERSION_HEADER: self._session_version}
        return ClientMessageMetadata(headers=headers) if headers else None


def _session_is_lost(error: types.JSONRPCError) -> bool:
    # What the SDK's transport makes of status 404 in a session; it does not pass the status on.
    return error.error.code == types.INVALID_REQUEST and error.error.message in (
        "Session terminated",
        "Session not found",
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _first(group: ExceptionGroup[Any]) -> Exception:
    first = group.exceptions[0]
    return _first(cast("ExceptionGroup[Any]", first)) if isinstance(first, ExceptionGroup) else first
