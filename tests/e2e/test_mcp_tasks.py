"""MCP tasks of 2025-11-25 are not offered, because the SDK's server has none (docs/clients.md); those of 2026-07-28 are
in `test_tasks.py`."""

import importlib.util
import json
from typing import Any

import httpx2
import pytest
from mcp.server.lowlevel import Server

from support.http_daemon import MCP_HEADERS, TOOL, Daemon


def test_the_sdk_still_has_no_tasks() -> None:
    """When this fails, offer them."""
    assert not any(
        importlib.util.find_spec(f"mcp.server.{name}") for name in ("tasks", "experimental", "lowlevel.tasks")
    )
    assert not [name for name in dir(Server) if "task" in name.lower()]


async def asked(served: Daemon, session: str | None, number: int, method: str, params: Any) -> Any:
    """The answer to one request, and the session that it came in."""
    headers = {**MCP_HEADERS, **served.auth, **({"Mcp-Session-Id": session} if session else {})}
    body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
        answer = await http.post(served.url, headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    (data,) = [line.removeprefix("data: ") for line in answer.text.splitlines() if "jsonrpc" in line]
    return json.loads(data), answer.headers.get("mcp-session-id")


@pytest.mark.timeout(60)
async def test_a_client_that_asks_for_a_task_gets_its_answer(served: Daemon) -> None:
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tasks": {"list": {}, "cancel": {}}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    opened, session = await asked(served, None, 1, "initialize", hello)
    assert opened["result"]["protocolVersion"] == "2025-11-25"
    assert "tasks" not in opened["result"]["capabilities"]
    call = {
        "name": TOOL,
        "arguments": {"code": "globalThis.__codemode_result__ = 42;"},
        "task": {"ttl": 60_000},
    }
    answered, _ = await asked(served, session, 2, "tools/call", call)
    assert answered["result"]["structuredContent"]["result"] == 42
    refused, _ = await asked(served, session, 3, "tasks/list", {})
    assert refused["error"]["code"] == -32601
