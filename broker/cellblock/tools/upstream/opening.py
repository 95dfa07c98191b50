"""Opens a connection to a server, and agrees with it on a revision of MCP: the SDK's session over a wire of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TextIO

import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import TypeAdapter, ValidationError

from cellblock.base.redaction import guard_loggers
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.tools.upstream.dispatcher import Connection, Wire
from cellblock.tools.upstream.http import HttpWire
from cellblock.tools.upstream.http_requests import http_client
from cellblock.tools.upstream.installs import Install
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.sse import SseWire
from cellblock.tools.upstream.stdio import stdio_wire
from cellblock.tools.upstream.tls import tls_context
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused

PROBE_SECONDS: Final = 0.8
"""Sets how long a server may say nothing to `server/discover` before `initialize` is sent beside it: some servers of
before 2026-07-28 answer nothing else first."""

AS_IT_IS: Final[TypeAdapter[Any]] = TypeAdapter(Any)
"""Takes a result as the dispatcher gives it."""


class ProbeEnded(Exception):
    """Tells that the connection ended while the revision was agreed on: some servers end where `initialize` is not
    what they hear first."""


@asynccontextmanager
async def connected(
    config: ServerConfig,
    make_session: Callable[[Connection], ClientSession],
    *,
    stderr: TextIO,
    ended: asyncio.Event,
    cap: int,
    holding: Holding,
    on_note: Callable[[str], None],
    auth: httpx2.Auth | None = None,
    handshake: bool = False,
    install: Install | None = None,
) -> AsyncGenerator[tuple[ClientSession, Connection]]:
    """Connects to the server of a configuration.

    Args:
        config: `command` starts a process (stdio), `url` connects (streamable HTTP, or SSE by `type`).
        make_session: Makes the SDK's session, not yet entered.
        stderr: Where a started process's stderr goes.
        ended: Set when the connection is over.
        cap: Largest message in bytes.
        holding: Counts the bytes of large messages.
        on_note: Told, as a sentence, what was odd.
        auth: Puts credentials on each HTTP request.
        handshake: Whether `initialize` is said first, with no `server/discover` before it.
        install: What `command` installs first.

    Raises:
        OSError: The process cannot be started.
        MCPError: The server refused, or the connection was lost.
        ProbeEnded: It was lost where `handshake` may help.
    """
    guard_loggers()
    async with AsyncExitStack() as stack:
        wire = await _opened(config, stack, stderr, cap, holding, auth, install)
        try:
            session, connection = await _agreed(stack, wire, make_session, ended, on_note, handshake)
        except HttpRefused as refused:
            if refused.status != 405 or not isinstance(wire, HttpWire) or config.type is not None:
                raise
            # Before streamable HTTP, a GET opened the stream of events.
            ended.clear()
            sse = SseWire(wire.url, wire.client, cap, holding)
            await stack.enter_async_context(sse.opened())
            session, connection = await _agreed(stack, sse, make_session, ended, on_note, handshake=True)
        yield session, connection


async def _opened(
    config: ServerConfig,
    stack: AsyncExitStack,
    stderr: TextIO,
    cap: int,
    holding: Holding,
    auth: httpx2.Auth | None,
    install: Install | None,
) -> Wire:
    if config.command is not None:
        started = stdio_wire(config, stderr=stderr, cap=cap, holding=holding, install=install)
        return await stack.enter_async_context(started)
    tls, url = await asyncio.to_thread(tls_context), config.url
    assert url is not None
    client = await stack.enter_async_context(http_client(config.headers, auth, tls))
    if config.type == "sse":
        sse = SseWire(url, client, cap, holding)
        await stack.enter_async_context(sse.opened())
        return sse
    wire = HttpWire(url, client, cap, holding)
    stack.push_async_callback(wire.close)
    return wire


async def _agreed(
    stack: AsyncExitStack,
    wire: Wire,
    make_session: Callable[[Connection], ClientSession],
    ended: asyncio.Event,
    on_note: Callable[[str], None],
    handshake: bool,
) -> tuple[ClientSession, Connection]:
    connection = Connection(wire, ended, on_note)
    async with AsyncExitStack() as opening:
        session = await opening.enter_async_context(make_session(connection))
        try:
            await _agree(session, handshake=handshake)
        except MCPError as error:
            # Not from within the block: the session's tasks would make a group of it.
            failed = error
        else:
            connection.version = session.protocol_version
            stack.push_async_exit(opening.pop_all())
            return session, connection
    if isinstance(failed, ConnectionLost) and failed.sent and not handshake:
        raise ProbeEnded(failed.message) from None
    raise failed


async def _agree(session: ClientSession, *, handshake: bool) -> None:
    """Asks `server/discover`, and falls back to `initialize` where that gives nothing or takes too long."""
    if handshake:
        await session.initialize()
        return
    probe = asyncio.create_task(_discovered(session))
    greeting: asyncio.Task[types.InitializeResult] | None = None
    try:
        await asyncio.wait([probe], timeout=PROBE_SECONDS)
        if not probe.done():
            greeting = asyncio.create_task(session.initialize())
            await asyncio.wait([probe, greeting], return_when=asyncio.FIRST_COMPLETED)
        found = probe.result() if probe.done() else None
        if found is not None:
            await end_tasks(greeting)
            session.adopt(found)
            return
        try:
            await (greeting or session.initialize())
        except ConnectionLost as error:
            # What was asked before has reached the server, and may be why it ended.
            error.sent = True
            raise
        except MCPError as error:
            # A server that answers late has settled on the newer revision meanwhile.
            if error.code != types.UNSUPPORTED_PROTOCOL_VERSION or probe.done():
                raise
            late = await probe
            if late is None:
                raise
            session.adopt(late)
    finally:
        await end_tasks(probe, greeting)


async def _discovered(session: ClientSession) -> types.DiscoverResult | None:
    """Returns what a server says of a revision that both know; None where it knows only older ones.

    Raises:
        MCPError: It knows newer ones only, or the connection was lost.
    """
    version = LATEST_MODERN_VERSION
    try:
        raw = await session.send_discover(version)
    except ConnectionLost:
        raise
    except MCPError as error:
        supported = _supported(error)
        mutual = [one for one in MODERN_PROTOCOL_VERSIONS if one in supported]
        if supported and not mutual and not any(one in HANDSHAKE_PROTOCOL_VERSIONS for one in supported):
            raise
        if not mutual or mutual[-1] == version:
            return None
        raw = await session.send_discover(mutual[-1])
    try:
        result = types.DiscoverResult.model_validate(raw, by_name=False)
    except ValidationError:
        return None
    return result if any(one in result.supported_versions for one in MODERN_PROTOCOL_VERSIONS) else None


def _supported(error: MCPError) -> list[str]:
    if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
        return []
    try:
        return types.UnsupportedProtocolVersionErrorData.model_validate(error.data).supported
    except ValidationError:
        return []
