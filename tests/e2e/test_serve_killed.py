"""A served process that is killed takes its servers with it, those too that ignore the end of their input."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from support.entries import CELLBLOCK, entry, write_config
from support.processes import descendants, gone
from support.waits import until, within

STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    open(sys.argv[1], "w").close()
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


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_a_server_that_ignores_the_end_of_its_input_dies_with_a_killed_broker(
    tmp_path: Path, is_wrapped: bool
) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN, encoding="utf-8")
    begun = tmp_path / "begun"
    server = [sys.executable, "-I", str(program), str(begun)]
    server = ["sh", "-c", '"$@"; echo over', "sh", *server] if is_wrapped else server
    file = write_config(tmp_path, {"stubborn": entry(server)})
    command = [str(CELLBLOCK), "serve", "--config", str(file), "--state-dir", str(tmp_path / "state")]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        assert await within(process.stdout.readline(), 60)

        await until(begun.exists, "the server is asked")
        family = descendants(process.pid)
    finally:
        process.kill()
        await within(process.wait())
    await gone(family)
