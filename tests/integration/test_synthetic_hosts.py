"""Synthetic hosts of `scripts/loadtest --fleet` take the steps that scripts name, for a real broker that is
asked by its client."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from pathlib import Path

from benchmarks.fleet.client import NUMBER, Load, request_of
from benchmarks.fleet.steps import Calls, script_of
from benchmarks.harness import SCRIPTS
from cellblock_worker.wire.keys import make_key_file
from support.entries import ledger
from support.http_daemon import daemon
from support.waits import within

RUNS = 10
STEPS = [Calls(2, "plain", "give", {"ok": 1}), 5, Calls(1, "plain", "echo", {})]
START_BOUND = 60.0


async def test_ten_runs_of_a_real_broker_are_written_down_with_their_calls(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    broker, host = (make_key_file(tmp_path / f"{name}.key") for name in ("broker", "host"))
    hosts = {
        "local": False,
        "listen": endpoint,
        "key": str(tmp_path / "broker.key"),
        "allowed_keys": {"synthetic": host.public},
    }
    async with daemon(tmp_path, hosts=hosts, journal="all", typecheck="off") as served:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "benchmarks.fleet.synthetic", "--hosts", "2", "--connect", endpoint],
            *["--key", str(tmp_path / "host.key"), "--server-key", broker.public, "--capacity", "2"],
            env={"PYTHONPATH": str(SCRIPTS)},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        try:
            assert process.stderr is not None
            for _ in range(2):
                assert b"connected to the broker" in await within(process.stderr.readline(), START_BOUND)
            script = f"{script_of(STEPS)}// {NUMBER.decode()}\n"
            asked = request_of(f"127.0.0.1:{served.port}", "codemode.run", {"code": script}, served.token)
            load = Load(("127.0.0.1", served.port), 4)
            await load.open()
            found = await load.finish(RUNS, asked, b'"result":3,', START_BOUND)
            load.close()
        finally:
            process.terminate()
            _, said = await within(process.communicate())
    assert (found.answered, found.wrong) == (RUNS, Counter()), said
    calls = [event["tool"] for event in ledger(tmp_path / "ledger.jsonl") if event["event"] == "call"]
    assert Counter(calls) == {"give": 2 * RUNS, "echo": RUNS}
    assert process.returncode == 0
