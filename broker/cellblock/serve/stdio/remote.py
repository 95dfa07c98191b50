"""`cellblock connect` reaches a daemon of another machine or user by the SDK's streamable HTTP transport."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
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

from cellblock.base.json import is_object
from cellblock.base.tasks import at_most, end_tasks
from cellblock.serve.misread import Misread
from cellblock.serve.stdio.client_streams import message_of
from cellblock.serve.stdio.daemon import MAX_MESSAGE_BYTES, Daemon, Link
from cellblock.serve.stdio.lines import ClientLines

logger = logging.getLogger("cellblock.serve")

HANDSHAKE_SECONDS: Final = 30.0
"""Bounds the time for the answer to `initialize`: nothing else can be sent before the session has its id."""

FORGOTTEN: Final = ("Session terminated", "Session not found")
"""Lists what an error of a session that is not there says."""

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"


async def linked_over_http(daemon: Daemon) -> Link:
    """Returns a connection with a daemon that takes us. Raises as `Daemon.check`."""
    async with daemon.http() as http:
        await daemon.check(http)
    ours, other = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=other, limit=MAX_MESSAGE_BYTES)
    bridge = asyncio.create_task(_Bridge(reader, writer).run(daemon), name="http")
    return Link(*await asyncio.open_unix_connection(sock=ours, limit=MAX_MESSAGE_BYTES), bridge=bridge)


class _Bridge:
    """Carries messages between lines and the SDK's transport, until either ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines, self._writer = ClientLines(reader, writer.transport), writer
        self._version: str | None = None
        self._greeting: types.RequestId | None = None
        self._greeted = asyncio.Event()

    async def run(self, daemon: Daemon) -> None:
        """Carries all that comes. Ends the connection when the client or the daemon has ended it."""
        try:
            async with (
                daemon.http() as http,
                streamable_http_client(
                    daemon.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
                ) as (received, sent),
            ):
                ways = [asyncio.create_task(self._up(sent)), asyncio.create_task(self._down(received))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await end_tasks(*ways)
        except* (httpx2.HTTPError, OSError) as errors:
            logger.info("the daemon cannot be reached: %s", errors.exceptions[0])
        finally:
            self._writer.close()

    async def _up(self, sent: Any) -> None:
        while line := await self._lines.line():
            found = message_of(line)
            if isinstance(found, Misread):
                self._writer.write(json.dumps(found.answer()).encode() + b"\n")
            elif found is not None:
                await self._carry(found, sent)

    async def _carry(self, message: types.JSONRPCMessage, sent: Any) -> None:
        greets = isinstance(message, types.JSONRPCRequest) and message.method == "initialize"
        if isinstance(message, types.JSONRPCRequest) and greets:
            self._version, self._greeting = None, message.id
            self._greeted.clear()
        await sent.send(SessionMessage(message, ClientMessageMetadata(headers=self._headers(message))))
        if greets:
            async with at_most(HANDSHAKE_SECONDS):
                await self._greeted.wait()

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
                return
            if (
                isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
                and message.id == self._greeting
            ):
                if isinstance(message, types.JSONRPCResponse):
                    self._version = str(message.result.get("protocolVersion"))
                self._greeting = None
                self._greeted.set()
            self._writer.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await self._writer.drain()
