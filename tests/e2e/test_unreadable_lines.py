"""A stdio client whose lines are no messages is told so, and served on: by `serve --stdio` and by `connect`."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.cellblock_zygote import forked_cellblock
from support.http_daemon import INITIALIZE, daemon
from support.waits import within

LINES = (
    b"no json\n",
    b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"\xff"}}\n',
    b"\n",
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":[]}\n',
    b'{"id":12,"method":"ping"}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}\n',
)
TOLD = [(None, -32700), (10, -32700), (11, -32602), (12, -32600)]

TOO_MUCH = {
    "jsonrpc": "2.0",
    "id": 21,
    "method": "tools/call",
    "params": {"name": "a", "arguments": {"b": [0] * 200_000}},
}
"""Over what the loop may decode; the relay passes it on."""


TOO_LONG = [
    b'{"jsonrpc":"2.0","id":31,"method":"tools/call","params":{"x":"%s"}}\n' % (b"x" * 20_000_000),
    b"y" * 40_000_000,
]
"""Over what a line may have: one is known by its id, the other by nothing; both are one line."""


@asynccontextmanager
async def started(*options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        forked_cellblock(), *options, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    try:
        yield process
        assert await within(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(await within(process.stdout.readline(), 60))


async def check(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
    assert "result" in await said(process)
    process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    process.stdin.write(b"".join(LINES))
    answers = [await said(process) for _ in TOLD]
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == TOLD
    process.stdin.write(json.dumps(TOO_MUCH).encode() + b"\n")
    refused = await said(process)
    assert (refused["id"], refused["error"]["code"]) == (21, -32600)
    assert "over 50000 values" in refused["error"]["message"]
    process.stdin.write(TOO_LONG[0] + TOO_LONG[1] + b"\n")
    for request_id in (31, None):
        refused = await said(process)
        assert (refused["id"], refused["error"]["code"]) == (request_id, -32600)
        assert "over 16777216 bytes" in refused["error"]["message"]
    process.stdin.write(b'{"jsonrpc":"2.0","id":13,"method":"ping"}\n')
    assert await said(process) == {"jsonrpc": "2.0", "id": 13, "result": {}}
    # The last line has no end: a whole message is taken, and half of one is told.
    process.stdin.write(b'{"jsonrpc":"2.0","id":14,"method":"pi')
    process.stdin.close()
    half = await said(process)
    assert (half["id"], half["error"]["code"]) == (None, -32700)


async def test_over_stdio(tmp_path: Path) -> None:
    async with started("serve", "--stdio", "--state-dir", str(tmp_path)) as process:
        await check(process)


async def test_over_a_relay_to_a_daemon(tmp_path: Path) -> None:
    async with (
        daemon(tmp_path) as running,
        started("connect", "--url", running.url, "--state-dir", str(tmp_path / "s")) as process,
    ):
        await check(process)


async def test_what_a_file_asks_is_answered_before_its_end_ends_the_server(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    asked.write_text(f"{json.dumps(INITIALIZE)}\n{json.dumps(listing)}\n")
    with asked.open("rb") as file:
        process = await asyncio.create_subprocess_exec(
            forked_cellblock(), "serve", "--state-dir", tmp_path, stdin=file, stdout=PIPE, stderr=DEVNULL
        )
    out, _ = await within(process.communicate(), 60)
    assert process.returncode == 0
    assert "tools" in json.loads(out.splitlines()[-1])["result"]


async def test_what_is_asked_last_is_answered_when_the_server_runs_already(tmp_path: Path) -> None:
    """The end of stdin is read right behind the requests, before any of them has begun."""
    async with started("serve", "--stdio", "--state-dir", str(tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(INITIALIZE)}\n".encode())
        assert "result" in await said(process)
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n')
        assert "tools" in (await said(process))["result"]
        asked = {3: "tools/list", 4: "ping", 5: "resources/list", 6: "nothing/known"}
        process.stdin.write(
            b"".join(
                b'{"jsonrpc":"2.0","id":%d,"method":"%s"}\n' % (key, name.encode())
                for key, name in asked.items()
            )
        )
        process.stdin.close()
        assert {(await said(process))["id"] for _ in asked} == set(asked)
