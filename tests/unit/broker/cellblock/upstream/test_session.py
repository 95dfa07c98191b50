"""A session's end, in whatever moment of connecting it is ordered."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from cellblock.config import ServerConfig, UpstreamSettings
from cellblock.upstream.session import CLOSE_BOUND_SECONDS, State, UpstreamSession

MOMENTS = 200
"""Enough that some meet the moment in which a connection fails."""


async def test_closing_ends_a_session_in_every_moment_of_a_failing_connection(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    settings = UpstreamSettings(retry_first_ms=10, retry_max_ms=20)
    with socket.socket() as bound:
        # Bound and not listening: nobody else can take the port, and every connection is refused.
        bound.bind(("127.0.0.1", 0))
        config = ServerConfig(url=f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
        slowest, ran = 0.0, 0
        for moment in range(MOMENTS):
            session = UpstreamSession("none", config, settings, log_dir=tmp_path, on_change=lambda: None)
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
