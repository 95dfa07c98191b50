"""How long nobody was there, as a daemon that ends when idle knows it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cellblock.config.http import HttpSettings
from cellblock.frontend.http.gate import Gate
from cellblock.frontend.http.places import Places
from support.waits import until

HOST = "127.0.0.1:1"


async def ask(gate: Gate, method: str, path: str) -> list[int]:
    """The status of one request."""
    seen: list[int] = []

    async def send(message: Any) -> None:
        seen.extend([message["status"]] if "status" in message else [])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"host", HOST.encode()), (b"mcp-protocol-version", b"2026-07-28")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("127.0.0.1", 2)}
    await gate({**scope, "query_string": b""}, receive, send)
    return seen


async def test_a_client_is_there_while_it_asks_or_listens() -> None:
    entered, over = asyncio.Event(), asyncio.Event()

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await over.wait()

    settings = HttpSettings()
    gate = Gate(
        listening,
        settings,
        apart=cast(Any, None),
        places=Places(8, 8),
        share_of=lambda total: total,
        hosts=[HOST],
        origins=[],
        verifier=None,
        ready=lambda busy: True,
        pages=None,
        config="mark",
    )
    await until(lambda: gate.idle_seconds > 0.05, "it is idle")
    stream = asyncio.create_task(ask(gate, "GET", "/mcp"))
    await entered.wait()
    assert gate.idle_seconds == 0
    over.set()
    await stream
    await until(lambda: gate.idle_seconds > 0.05, "it is idle again")
    # What only looks whether the daemon lives is no client; a relay's sign of life is one.
    before = gate.idle_seconds
    assert await ask(gate, "GET", "/livez") == [200]
    assert gate.idle_seconds >= before
    seen = asyncio.get_running_loop().time()
    assert await ask(gate, "HEAD", "/mcp") == [405]
    assert gate.idle_seconds <= asyncio.get_running_loop().time() - seen
    # A relay that asks now is to wait for the next daemon.
    await gate.drain(0, asyncio.Event())
    assert await ask(gate, "HEAD", "/mcp") == [503]
