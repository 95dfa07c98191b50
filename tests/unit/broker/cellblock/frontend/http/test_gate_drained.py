"""What a gate answers when draining is over, and what is behind it is about to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.gates import ask, gate_of

OLDER = "2025-06-18"


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_what_comes_when_all_has_ended_does_not_begin(method: str) -> None:
    """A session ends with the daemon: 404 has its client begin a new one elsewhere. Others are to come again."""
    begun: list[Any] = []

    async def ended(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)
        raise RuntimeError("Task group is not initialized. Make sure to use run().")

    gate = gate_of(ended)
    assert await gate.drain(1, asyncio.Event())
    assert await ask(gate, method, "/mcp", mcp_session_id="s", mcp_protocol_version=OLDER) == [404]
    assert await ask(gate, method, "/mcp") == [503]
    assert begun == []
