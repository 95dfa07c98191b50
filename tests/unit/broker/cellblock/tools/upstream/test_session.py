"""A session's end, in whatever moment of connecting it is ordered."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from cellblock.base.settings.settings import ServerConfig, UpstreamSettings
from cellblock.tools.upstream.connecting import State
from cellblock.tools.upstream.session import CLOSE_BOUND_SECONDS, UpstreamSession
from support.waits import until

MOMENTS = 200
"""Enough that some meet the moment in which a connection fails."""


SILENT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == sys.argv[1] or "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "unknown"}}
    if asked["method"] == "initialize":
        answer = {"result": {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                             "serverInfo": {"name": "silent", "version": "1"}}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("silent_at", "bounds", "why"),
    [
        (
            "initialize",
            (1_500, 20_000),
            "it did not answer `initialize` within upstream.connect_timeout_ms = 1500",
        ),
        ("tools/list", (1_500, 20_000), "no tool list within upstream.connect_timeout_ms = 1500"),
        ("tools/list", (20_000, 300), "no tool list within 0.3 s"),
    ],
)
async def test_a_silent_server_is_told_with_what_it_did_not_answer(
    tmp_path: Path, silent_at: str, bounds: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(command=sys.executable, args=["-I", "-c", SILENT, silent_at])
    settings = UpstreamSettings(connect_timeout_ms=bounds[0])
    monkeypatch.setattr("cellblock.tools.upstream.listing.LIST_SECONDS", bounds[1] / 1000)
    monkeypatch.setattr("cellblock.tools.upstream.session.FIRST_PAUSE_SECONDS", 60.0)
    session = UpstreamSession(
        "silent", config, settings, max_message_bytes=1 << 20, log_dir=tmp_path, on_change=lambda: None
    )
    session.start()
    try:
        await until(lambda: session.state is State.WAITING, "it has given up")
        assert session.reason == why
    finally:
        await session.close()


@pytest.mark.slow
async def test_closing_ends_a_session_in_every_moment_of_a_failing_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.session.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("cellblock.tools.upstream.session.LONGEST_PAUSE_SECONDS", 0.02)
    loop = asyncio.get_running_loop()
    settings = UpstreamSettings()
    with socket.socket() as bound:
        # Bound and not listening: nobody else can take the port, and every connection is refused.
        bound.bind(("127.0.0.1", 0))
        config = ServerConfig(url=f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
        slowest, ran = 0.0, 0
        for moment in range(MOMENTS):
            session = UpstreamSession(
                "none", config, settings, max_message_bytes=1 << 20, log_dir=tmp_path, on_change=lambda: None
            )
            session.start()
            await asyncio.sleep(moment * 0.00015)
            began = loop.time()
            await session.close()
            slowest = max(slowest, loop.time() - began)
            ran += session.attempts
            assert slowest < CLOSE_BOUND_SECONDS / 2, f"{slowest:.1f} s to close at moment {moment}"
            assert session.state is State.CLOSED
        left = [task for task in asyncio.all_tasks() if task.get_name() == "upstream none"]
        assert (left, ran >= MOMENTS) == ([], True)
