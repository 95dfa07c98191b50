"""How long nobody was there, as a daemon that ends when idle knows it."""

from __future__ import annotations

import asyncio
from typing import Any

from support.gates import ask, gate_of
from support.waits import until


async def test_a_client_is_there_while_it_asks_or_listens() -> None:
    entered, over = asyncio.Event(), asyncio.Event()

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await over.wait()

    gate = gate_of(listening)
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
