"""What is written to a server is whole lines, whoever cancels meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from pathlib import Path

import anyio
import pytest
from mcp import types
from mcp.shared.message import SessionMessage

from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.heavy import LargeMessages
from cellblock.tools.upstream.stdio import stdio_transport

READS_LATE = textwrap.dedent(
    """
    import json, os, sys, time
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        told = {"bytes": len(line)}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
    """
)
LARGE = b'"' + b"x" * 12_000_000 + b'"'


def asks(number: int, argument: object) -> SessionMessage:
    return SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=number, method="x", params={"a": argument}))


@pytest.mark.parametrize("argument", ["small", "of its own"])
async def test_a_call_that_is_cancelled_leaves_no_half_a_line(tmp_path: Path, argument: str) -> None:
    heavy = LargeMessages().for_server("late")
    ready = tmp_path / "ready"
    config = ServerConfig(command=sys.executable, args=["-c", READS_LATE, str(ready)])
    with (tmp_path / "log").open("w") as log:
        async with stdio_transport(
            config, stderr=log, max_message_bytes=1 << 24, on_cut=pytest.fail, heavy=heavy
        ) as (read, write):
            text = LARGE if argument == "of its own" else json.dumps("y" * 200_000).encode()
            with heavy.splices.holding(text) as token:
                writing = asyncio.create_task(write.send(asks(1, token)))
                waits = asyncio.create_task(write.send(asks(2, token)))
                await asyncio.sleep(0.2)  # no bound: wherever it is cancelled, lines are whole
                assert not writing.done(), "the pipe holds less than that"
                writing.cancel()
                waits.cancel()
                await asyncio.wait([writing, waits])
            last = asyncio.create_task(write.send(asks(3, "end")))
            ready.touch()
            answers: dict[object, object] = {}
            with anyio.fail_after(60):
                while 3 not in answers:
                    item = await read.receive()
                    assert isinstance(item, SessionMessage), item
                    assert isinstance(item.message, types.JSONRPCResponse)
                    answers[item.message.id] = item.message.result["bytes"]
                await last
    # The first had been begun; of the second nothing was written.
    assert list(answers) == [1, 3]
    assert answers[1] == len(text) + len(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":}}\n')
