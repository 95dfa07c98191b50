"""A client that speaks just enough of MCP over HTTP to call a tool: what the SDK's client costs is not the server's.

Requests are of MCP 2026-07-28, without a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

VERSION: Final = MODERN_PROTOCOL_VERSIONS[-1]
TIMEOUT_SECONDS: Final = 120.0
"""For one answer."""

TOOL: Final = "codemode.run"
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
    """Calls tools of the server at a port of the loopback, one at a time, on one connection.

    Args:
        port: Of the server.
        token: What the client shows.
        address: Where the client comes from.
        bound: Seconds for an answer.
    """

    def __init__(
        self, port: int, token: str = "", *, address: str = "127.0.0.1", bound: float = TIMEOUT_SECONDS
    ) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=bound, source_address=(address, 0)
        )
        self._auth = {"Authorization": f"Bearer {token}"} if token else {}

    def renew(self) -> None:
        """Connects anew; servers end connections that were idle for some seconds."""
        self.close()
        self._connection.connect()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def send(self, body: bytes, tool: str = TOOL) -> tuple[int, bytes]:
        """Status and body of the answer to a request. Raises OSError, http.client.HTTPException."""
        headers = {**HEADERS, "Mcp-Name": tool, **self._auth}
        self._connection.request("POST", "/mcp", body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The structured content of the tool's result. Raises OSError: The server has refused the call, or gone."""
        status, data = await asyncio.to_thread(self.send, request_of(tool, arguments), tool)
        if status != http.client.OK:
            raise OSError(f"HTTP {status}: {data[:200]!r}")
        return response_in(data)


def request_of(tool: str, arguments: Mapping[str, Any], extra_meta: str = "", **params: Any) -> bytes:
    """The JSON-RPC request of a call; `extra_meta` is JSON that is put into `_meta` as it is."""
    meta = json.dumps(params.pop("meta", META))
    if extra_meta:
        meta = f'{meta[:-1]}, "attachment": {extra_meta}}}'
    given = json.dumps({"name": tool, "arguments": arguments, **params})
    return (
        f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {given[:-1]}, "_meta": {meta}}}}}'
    ).encode()


def run_of(code: str, limits: Mapping[str, int] | None = None, extra_meta: str = "", **more: Any) -> bytes:
    """The request of a run."""
    return request_of(TOOL, {"code": code, "limits": dict(limits or {}), **more}, extra_meta)


def send(port: int, token: str, body: bytes, *, address: str, bound: float) -> tuple[int, bytes]:
    """Status and body of the answer to a request on a connection of its own. Raises as `PlainClient.send`."""
    with contextlib.closing(PlainClient(port, token, address=address, bound=bound)) as client:
        return client.send(body)


def message_in(data: bytes) -> Any:
    """The JSON-RPC message in an answer's body: JSON, or events of which the last is it. Raises ValueError."""
    return json.loads(data if data.startswith(b"{") else data.rpartition(b"\ndata: ")[2])


def response_in(data: bytes) -> Mapping[str, Any]:
    """The response of a run in an answer's body. Raises ValueError."""
    try:
        return cast("Mapping[str, Any]", message_in(data)["result"]["structuredContent"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no response of a run: {data[:200]!r}") from error
