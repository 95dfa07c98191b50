"""How long a broker waits before it starts its next worker host."""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
from pathlib import Path

import pytest

from cellblock.pool import local_host
from cellblock.pool.local_host import RESTART_FIRST_SECONDS, RESTART_MAX_SECONDS, LocalHost, restart_pause
from cellblock_worker.host.host_config import HostConfig
from support.waits import until


def test_the_first_restart_is_at_once_and_the_others_are_further_and_further_apart() -> None:
    pauses = [restart_pause(failures) for failures in range(100)]
    assert pauses[:4] == [0, 0, RESTART_FIRST_SECONDS, 2 * RESTART_FIRST_SECONDS]
    assert pauses == sorted(pauses) and pauses[-1] == RESTART_MAX_SECONDS


def config(identity: str) -> HostConfig:
    return HostConfig(
        connect="ipc:///nowhere",
        identity=identity,
        capacity=1,
        warm=0,
        boot_parallel=1,
        max_message_bytes=1024,
        max_old_space_mb=16,
    )


@pytest.mark.parametrize(("greets", "expected"), [(True, [1, 2, 3, 4]), (False, [2, 4, 6, 8])])
async def test_hosts_that_end_at_once_are_started_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greets: bool, expected: list[int]
) -> None:
    """Real processes that end at once; what is asked of `restart_pause` is kept, and the pauses are left out."""
    program = tmp_path / "host"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program))
    asked: list[int] = []

    def pause(failures: int) -> float:
        asked.append(failures)
        return 0.0

    monkeypatch.setattr(local_host, "restart_pause", pause)
    logging.getLogger("cellblock.pool").disabled = True
    host: LocalHost

    def on_starting(identity: bytes) -> None:
        if greets:
            # As if its hello came before its end.
            asyncio.get_running_loop().call_soon(host.greeted, identity)

    host = LocalHost(config, log_file=tmp_path / "log", on_starting=on_starting, on_exit=lambda _, __: None)
    host.start()
    try:
        await until(lambda: len(asked) >= 4, "four ends")
    finally:
        await host.stop()
        logging.getLogger("cellblock.pool").disabled = False
    assert asked[:4] == expected
