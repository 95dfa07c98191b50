"""A served process that is killed takes its servers with it, those too that ignore the end of their input."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import psutil
import pytest

from support.entries import CELLBLOCK, write_config
from support.processes import command_line, descendants, gone
from support.waits import until, within

STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stubborn", "version": "1"}}
    else:
        result = {"tools": []}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
while True:
    time.sleep(1)
"""

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
async def test_a_server_that_ignores_the_end_of_its_input_dies_with_a_killed_broker(tmp_path: Path) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN, encoding="utf-8")
    file = write_config(tmp_path, {"stubborn": {"command": sys.executable, "args": ["-I", str(program)]}})
    command = [str(CELLBLOCK), "serve", "--config", str(file), "--state-dir", str(tmp_path / "state")]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        assert await within(process.stdout.readline(), 60)

        def stubborn() -> list[psutil.Process]:
            return [
                child for child in descendants(process.pid) if command_line(child)[1:] == ["-I", str(program)]
            ]

        await until(stubborn, "the server's process")
        family = descendants(process.pid)
    finally:
        process.kill()
        await within(process.wait())
    await gone(family)
