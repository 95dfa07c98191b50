"""A stdio client whose lines are no messages is told so, and served on: by `serve --stdio` and by `connect`."""

import json
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.commands import Piped, cellblock, piped
from support.http_daemon import INITIALIZE, daemon

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
async def greeted(*options: object) -> AsyncGenerator[Piped]:
    """One that is greeted, and ends well."""
    async with piped(*options, stderr=DEVNULL) as process:
        process.send(INITIALIZE)
        assert "result" in await process.answer()
        process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield process
        assert await process.end() == 0


async def check(process: Piped) -> None:
    process.send(*LINES)
    answers = [await process.answer() for _ in TOLD]
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == TOLD
    process.send(TOO_MUCH)
    refused = await process.answer()
    assert (refused["id"], refused["error"]["code"]) == (21, -32600)
    assert "over 50000 values" in refused["error"]["message"]
    process.send(TOO_LONG[0] + TOO_LONG[1] + b"\n")
    for request_id in (31, None):
        refused = await process.answer()
        assert (refused["id"], refused["error"]["code"]) == (request_id, -32600)
        assert "over 16777216 bytes" in refused["error"]["message"]
    process.send({"jsonrpc": "2.0", "id": 13, "method": "ping"})
    assert await process.answer() == {"jsonrpc": "2.0", "id": 13, "result": {}}
    # The last line has no end: a whole message is taken, and half of one is told.
    process.send(b'{"jsonrpc":"2.0","id":14,"method":"pi')
    process.close()
    half = await process.answer()
    assert (half["id"], half["error"]["code"]) == (None, -32700)


async def test_over_stdio(tmp_path: Path) -> None:
    async with greeted("serve", "--stdio", "--state-dir", tmp_path) as process:
        await check(process)


async def test_over_a_relay_to_a_daemon(tmp_path: Path) -> None:
    async with (
        daemon(tmp_path) as running,
        greeted("connect", "--url", running.url, "--state-dir", tmp_path / "s") as process,
    ):
        await check(process)


async def test_what_a_file_asks_is_answered_before_its_end_ends_the_server(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    asked.write_text(f"{json.dumps(INITIALIZE)}\n{json.dumps(listing)}\n")
    with asked.open("rb") as file:
        done = await cellblock("serve", "--state-dir", tmp_path, stdin=file)
    assert done.code == 0 and "tools" in json.loads(done.out.splitlines()[-1])["result"]


async def test_what_is_asked_last_is_answered_when_the_server_runs_already(tmp_path: Path) -> None:
    """The end of stdin is read right behind the requests, before any of them has begun."""
    async with greeted("serve", "--stdio", "--state-dir", tmp_path) as process:
        process.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert "tools" in (await process.answer())["result"]
        asked = {3: "tools/list", 4: "ping", 5: "resources/list", 6: "nothing/known"}
        process.send(*({"jsonrpc": "2.0", "id": key, "method": name} for key, name in asked.items()))
        process.close()
        assert {(await process.answer())["id"] for _ in asked} == set(asked)
