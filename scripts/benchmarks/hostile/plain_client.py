"""One `codemode.run` over HTTP on a connection of its own, from a chosen address of the loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from benchmarks.load.plain_http import HEADERS, META

TOOL: Final = "codemode.run"


def request_body(
    code: str, limits: Mapping[str, int] | None = None, extra_meta: str = "", *, durable: bool = False
) -> bytes:
    """The JSON-RPC request; `extra_meta` is JSON that is put into `_meta` as it is."""
    meta = json.dumps(META)
    if extra_meta:
        meta = f'{meta[:-1]}, "attachment": {extra_meta}}}'
    arguments = json.dumps({"code": code, "limits": dict(limits or {}), "durable": durable})
    params = f'{{"name": "{TOOL}", "arguments": {arguments}, "_meta": {meta}}}'
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'.encode()


def send(port: int, token: str, body: bytes, *, address: str, bound: float) -> tuple[int, bytes]:
    """Status and body of the answer. Raises OSError, http.client.HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=bound, source_address=(address, 0))
    with contextlib.closing(connection):
        headers = {**HEADERS, "Mcp-Name": TOOL, "Authorization": f"Bearer {token}", "Connection": "close"}
        connection.request("POST", "/mcp", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def approve(port: int, token: str, run_id: str, *, address: str, bound: float) -> int:
    """Allows the calls that a parked run waits for; gives the status. Raises OSError, http.client.HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=bound, source_address=(address, 0))
    with contextlib.closing(connection):
        path, headers = f"/dashboard/parked/{run_id}/approve", {"Authorization": f"Bearer {token}"}
        connection.request("POST", path, b"{}", headers)
        return connection.getresponse().status


def call(
    port: int,
    token: str,
    code: str,
    limits: Mapping[str, int] | None = None,
    *,
    address: str = "127.0.0.1",
    bound: float = 120.0,
) -> Mapping[str, Any]:
    """The response of a run. Raises OSError, http.client.HTTPException, ValueError."""
    status, data = send(port, token, request_body(code, limits), address=address, bound=bound)
    if status != http.client.OK:
        raise OSError(f"HTTP {status}")
    return response_in(data)


def message_in(data: bytes) -> Any:
    """The JSON-RPC message in an answer's body: JSON, or events of which the last is it. Raises ValueError."""
    return json.loads(data if data.startswith(b"{") else data.rpartition(b"\ndata: ")[2])


def response_in(data: bytes) -> Mapping[str, Any]:
    """The response of a run in an answer's body. Raises ValueError."""
    try:
        return cast("Mapping[str, Any]", message_in(data)["result"]["structuredContent"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no response of a run: {data[:200]!r}") from error
