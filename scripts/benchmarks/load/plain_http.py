"""A client that speaks just enough of MCP over HTTP for one call: what the SDK's client costs is not the server's."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

VERSION: Final = MODERN_PROTOCOL_VERSIONS[-1]
TIMEOUT_SECONDS: Final = 30.0
"""For one answer."""

META: Final = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "loadtest", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": VERSION,
    "Mcp-Method": "tools/call",
}


class PlainClient:
    """Calls tools of the server at a port of the loopback, one at a time, without a session (MCP 2026-07-28)."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def renew(self) -> None:
        """Connects anew; servers end connections that were idle for some seconds."""
        self._connection.close()
        self._connection.connect()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The structured content of the tool's result.

        Raises:
            OSError: The server has refused the call, or gone.
        """
        return await asyncio.to_thread(self._call, tool, arguments)

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        params = {"name": tool, "arguments": arguments, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        self._connection.request("POST", "/mcp", body, {**HEADERS, "Mcp-Name": tool})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"HTTP {answer.status}: {data[:200]!r}")
        return cast("Mapping[str, Any]", json.loads(data)["result"]["structuredContent"])
