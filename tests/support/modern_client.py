"""Requests of MCP 2026-07-28, each on a connection of its own: those of a client without sessions."""

from __future__ import annotations

import json
from typing import Any

from support.http_daemon import MCP_HEADERS, Daemon, said

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
TASKS: dict[str, Any] = {**FORMS, "extensions": {f"{PREFIX}tasks": {}}}


def message(method: str, request_id: int | None = None, **params: Any) -> bytes:
    """A request, or a notification."""
    whole: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(whole if request_id is None else {**whole, "id": request_id}).encode()


async def ask(
    served: Daemon, method: str, about: str, able: dict[str, Any] = FORMS, **params: Any
) -> dict[str, Any]:
    """The answer to one request; `about` is the tool, or the task, that it is about."""
    meta = {f"{PREFIX}protocolVersion": VERSION, f"{PREFIX}clientCapabilities": able}
    routing = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method, "Mcp-Name": about}
    headers = {**MCP_HEADERS, **served.auth, **routing}
    body = message(method, 1, **params, _meta=meta)
    return (await said(served, served.request("POST", "/mcp", headers=headers, body=body)))[1]


def allowing(asked: dict[str, Any]) -> dict[str, Any]:
    """What a client comes back with that allows everything it was asked."""
    allowed = {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]}
    return {"requestState": asked["requestState"], "inputResponses": allowed}
