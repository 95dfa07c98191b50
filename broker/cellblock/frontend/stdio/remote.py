"""`cellblock connect` reaches a daemon of another machine or user by the SDK's streamable HTTP transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_object
from cellblock.base.tasks import at_most, end_tasks
from cellblock.frontend.misread import CONNECTION_CLOSED, INVALID_REQUEST, Misread, as_id
from cellblock.frontend.stdio.client_streams import ToClient, message_of
from cellblock.frontend.stdio.daemon import Daemon, DaemonUnavailable
from cellblock.frontend.stdio.in_flight import STREAMS
from cellblock.frontend.stdio.stdin import ClientLines, LineTooLong
from cellblock.frontend.stdio.stdout import StdoutLines

HANDSHAKE_SECONDS: Final = 30.0
"""Bounds the time for the answer to `initialize`: nothing else can be sent before the session has its id."""

FAREWELL_SECONDS: Final = 5.0
"""Bounds the time for the last answers, and to end the session, when the client has closed stdin."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Bounds one message of the daemon: a result of 16 MiB is in it twice."""

FORGOTTEN: Final = ("Session terminated", "Session not found")
"""Lists what an error of a session that is not there says."""

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


async def relay_http(
    daemon: Daemon, lines: ClientLines, output: StdoutLines, on_answer: Callable[[], None]
) -> CellblockError | None:
    """Relays until the client is done, or the daemon has gone.

    Returns:
        What to say when the daemon has gone; every request that waits has got it as its error.
    """
    relay = _Relay(lines, ToClient(output), on_answer)
    lost: CellblockError | None = None
    try:
        async with daemon.http() as http:
            await daemon.check(http)
            transport = streamable_http_client(
                daemon.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            )
            async with transport as (received, sent):
                await relay.run(received, sent)
        if relay.forgotten:
            lost = DaemonUnavailable(
                f"The daemon at {daemon.url} has forgotten this session: it was restarted, or the session was idle "
                "for too long.",
                hint="Start the MCP server again in the editor.",
            )
    except* httpx2.HTTPError as errors:
        lost = daemon.gone(str(errors.exceptions[0]) or "it has hung up")
    if lost is not None:
        async with at_most(FAREWELL_SECONDS):
            await relay.end_all(str(lost))
    return lost


class _Relay:
    """Carries messages between a client and the SDK's transport."""

    def __init__(self, lines: ClientLines, answers: ToClient, on_answer: Callable[[], None]) -> None:
        self._lines, self._answers, self._on_answer = lines, answers, on_answer
        self._waiting: dict[types.RequestId, str] = {}
        self._version: str | None = None
        self._changed = asyncio.Event()
        self.forgotten = False

    async def run(self, received: Any, sent: Any) -> None:
        """Carries messages until the client has closed stdin, or the daemon has forgotten the session."""
        up = asyncio.create_task(self._up(sent))
        down = asyncio.create_task(self._down(received))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(up, down)

    async def end_all(self, why: str) -> None:
        """Answers all requests that wait with an error."""
        for key in self._waiting:
            await self._answers.refuse(Misread(CONNECTION_CLOSED, key, why))

    async def _up(self, sent: Any) -> None:
        while True:
            try:
                line = await self._lines.line()
            except LineTooLong as error:
                await self._answers.refuse(Misread(INVALID_REQUEST, error.request_id, str(error)))
                continue
            if not line:
                break
            found = message_of(line)
            if isinstance(found, Misread):
                await self._answers.refuse(found)
            elif found is not None:
                await self._carry(found, sent)
        await self._until(lambda: all(one == STREAMS for one in self._waiting.values()), FAREWELL_SECONDS)

    async def _carry(self, message: types.JSONRPCMessage, sent: Any) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._waiting[message.id] = message.method
            if message.method == "initialize":
                self._version = None
        elif (
            isinstance(message, types.JSONRPCNotification)
            and message.method == "notifications/cancelled"
            and (key := as_id((message.params or {}).get("requestId"))) is not None
        ):
            self._waiting.pop(key, None)
        await sent.send(SessionMessage(message, ClientMessageMetadata(headers=self._headers(message))))
        if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
            await self._until(lambda: message.id not in self._waiting, HANDSHAKE_SECONDS)

    def _headers(self, message: types.JSONRPCMessage) -> dict[str, str]:
        """Returns the headers of a message, as the SDK's own session makes them."""
        headers = {} if self._version is None else {MCP_PROTOCOL_VERSION_HEADER: self._version}
        if not isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification):
            return headers
        params: dict[str, Any] = message.params or {}
        meta = params.get("_meta")
        version = meta.get(VERSION_KEY) if is_object(meta) else None
        if isinstance(version, str):
            headers = {
                MCP_PROTOCOL_VERSION_HEADER: version,
                MCP_METHOD_HEADER: encode_header_value(message.method),
            }
            name = params.get(NAME_BEARING_METHODS.get(message.method, ""))
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
        return headers

    async def _down(self, received: Any) -> None:
        async for item in received:
            if isinstance(item, Exception):
                continue
            message: types.JSONRPCMessage = item.message
            if isinstance(message, types.JSONRPCError) and message.error.message in FORGOTTEN:
                self.forgotten = True
                return
            await self._answers.send(item)
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                method = self._waiting.pop(message.id, None) if message.id is not None else None
                if method == "initialize" and isinstance(message, types.JSONRPCResponse):
                    self._version = str(message.result.get("protocolVersion"))
                self._changed.set()
                self._on_answer()

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        async with at_most(seconds):
            while not done():
                self._changed.clear()
                await self._changed.wait()
