"""What commands start that run one script, or none: no more than they use."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL
from pathlib import Path

import psutil
import pytest

from cellblock.base.state_dir import HOST_LOG, LOGS
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.processes import gone, workers_of
from support.waits import steady, until, within

WAITS = 'import { never } from "@codemode/servers/plain"; await never({});'


async def started(folder: Path, *words: str) -> asyncio.subprocess.Process:
    servers = {"plain": plain_server("--ledger", folder / "ledger.jsonl")}
    config = write_config(folder, servers, pool={"warm": 4})
    options = ("--config", str(config), "--state-dir", str(folder / "s"))
    return await asyncio.create_subprocess_exec(
        str(CELLBLOCK), *words, *options, stdin=DEVNULL, stdout=DEVNULL
    )


@pytest.mark.parametrize(("words", "has_host"), [(("types",), False), (("run", "one.js"), True)])
async def test_only_a_command_that_runs_scripts_starts_a_worker_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], has_host: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.js").write_text("1")
    assert await within((await started(tmp_path, *words)).wait()) == 0
    assert (tmp_path / "s" / LOGS / HOST_LOG).exists() == has_host


async def test_a_run_boots_no_workers_for_others(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text(WAITS)
    process = await started(tmp_path, "run", str(script))
    try:
        record = tmp_path / "ledger.jsonl"
        await until(lambda: any(event.get("tool") == "never" for event in ledger(record)), "the call")
        workers = await steady(lambda: {worker.pid for worker in workers_of(process.pid)}, "all are booted")
        # Its own, and the one that takes the place of that.
        assert 1 <= len(workers) <= 2
        left = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.terminate()
        await within(process.wait())
    await gone(left)
