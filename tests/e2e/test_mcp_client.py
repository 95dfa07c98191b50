"""What `cellblock serve --stdio` writes; how the SDK's client gets along with it is in `tests/conformance`."""

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from support.entries import CELLBLOCK, plain_server, write_config
from support.waits import within

TOOL = "codemode.run"


async def test_nothing_but_the_protocol_is_on_stdout(tmp_path: Path) -> None:
    """Every line is a JSON-RPC message that answers a request, whatever servers and scripts print."""
    servers = {"plain": plain_server(), "absent": {"command": "no-such-program-anywhere"}}
    config = write_config(tmp_path, servers)
    client = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    talkative = {"code": "console.log('to the logs'); throw 1;"}
    endless = {"code": "for (;;) {}", "limits": {"timeoutMs": 100}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": TOOL, "arguments": talkative}},
        {"id": 4, "method": "no/such/method"},
        {"id": 5, "method": "tools/call", "params": {"name": TOOL, "arguments": endless}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
    lines.insert(3, b"this is no JSON")
    process = await asyncio.create_subprocess_exec(
        str(CELLBLOCK),
        "serve",
        "--config",
        str(config),
        "--state-dir",
        str(tmp_path / "s"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    process.stdin.write(b"\n".join(lines) + b"\n")
    answered: dict[int, dict[str, Any]] = {}
    while len(answered) < 5:
        line = await within(process.stdout.readline())
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        if "id" in message and message["id"] is not None:
            answered[message["id"]] = message
    process.stdin.close()
    rest, _ = await within(process.communicate())
    # On a busy machine, that the servers have come may be told last.
    assert all("method" in json.loads(line) for line in rest.splitlines())
    assert process.returncode == 0
    assert set(answered) == {1, 2, 3, 4, 5}
    assert answered[3]["result"]["structuredContent"]["diagnostics"][0]["code"] == "UNCAUGHT_EXCEPTION"
    assert "error" in answered[4]
    assert answered[5]["result"]["structuredContent"]["diagnostics"][0]["code"] == "SANDBOX_LIMIT"
