"""What commands start that run one script, or none: no more than they use."""

import contextlib
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import psutil
import pytest

from cellblock.base.state_dir import HOST_LOG, LOGS
from support.cellblock_zygote import Command, started, with_constants
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.processes import gone, workers_of
from support.waits import steady, until, within

NEVER_READY = "import sys; sys.stdin.read()"
USES_PLAIN = 'import { echo } from "@codemode/servers/plain"; console.log(await echo({ a: 1 }));'
WAITS = 'import { never } from "@codemode/servers/plain"; await never({});'


async def command(folder: Path, *words: str, program: Path | None = None) -> Process | Command:
    """A command; `program` has the real host below it."""
    servers = {"plain": plain_server("--ledger", folder / "ledger.jsonl")}
    config = write_config(folder, servers, pool={"warm": 4})
    given = (*words, "--config", str(config), "--state-dir", str(folder / "s"))
    if program is not None:
        return await create_subprocess_exec(program, *given, stdin=DEVNULL, stdout=DEVNULL)
    return await started(*given, stdin=DEVNULL, stdout=DEVNULL)


@pytest.mark.parametrize(("words", "has_host"), [(("types",), False), (("run", "one.js"), True)])
async def test_only_a_command_that_runs_scripts_starts_a_worker_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], has_host: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.js").write_text("1")
    assert await within((await command(tmp_path, *words)).wait()) == 0
    assert (tmp_path / "s" / LOGS / HOST_LOG).exists() == has_host


async def test_a_run_does_not_wait_for_a_server_that_it_does_not_use(tmp_path: Path) -> None:
    """That server is never ready, and its bounds are ten minutes: a run that waited for it would not end here."""
    script = tmp_path / "script.js"
    script.write_text(USES_PLAIN)
    slow = {"command": sys.executable, "args": ["-c", NEVER_READY]}
    record = tmp_path / "ledger.jsonl"
    servers = {"plain": plain_server("--ledger", record), "slow": slow}
    bounds = {"connect_timeout_ms": 600_000, "list_wait_ms": 600_000}
    startup = {"cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS": 600.0}
    config = write_config(tmp_path, servers, upstream=bounds)
    options = ("--config", str(config), "--state-dir", str(tmp_path / "s"))
    process = await started(
        "run", script, *options, stdin=DEVNULL, stdout=DEVNULL, env=with_constants(startup)
    )
    try:
        assert await within(process.wait()) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await within(process.wait())
    assert any(event.get("tool") == "echo" for event in ledger(record))


async def test_a_run_boots_no_workers_for_others(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text(WAITS)
    process = await command(tmp_path, "run", str(script), program=CELLBLOCK)
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
