"""What clients can make the daemon hold: bodies full of what no run needs."""

import asyncio
import json
from collections.abc import AsyncIterator

import psutil
import pytest

from support.http_daemon import TOOL, Daemon, daemon, opened, said
from support.waits import until_found

MIB = 1024 * 1024

JUNK_BYTES = 3_000_000
"""Of one body. It was tried with ten of 7.4 MB, too: they took 1,921 MiB before, and 74 MiB since."""

REQUESTS = 5

HELD_BYTES = 20 * MIB
"""What all requests may take here, of which one client may have a quarter."""

BOUND_BYTES = 150 * MIB
"""What the daemon may grow by; on the code before it was over 400 MiB."""

SLEEP = "await new Promise((end) => setTimeout(end, 50_000));"
"""A script that goes on until it is ended."""


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    server = "cellblock.serve.http.server"
    constants = {f"{server}.LEAST_HELD_BYTES": HELD_BYTES, f"{server}.HELD_BYTES_PER_SESSION": 1}
    async with daemon(tmp_path_factory.mktemp("memory"), constants=constants) as running:
        yield running


def call(code: str, junk: str = "", **arguments: object) -> bytes:
    params = {"name": TOOL, "arguments": {"code": code, **arguments}}
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
    return body.replace('"name"', f'"_meta": {{"junk": {junk}}}, "name"').encode() if junk else body.encode()


async def test_what_a_run_does_not_need_is_not_held(served: Daemon) -> None:
    """Some clients, each with megabytes beside its script: they run, and the daemon has forgotten the rest."""
    process = psutil.Process(served.process.pid)
    before = process.memory_info().rss
    body = call(SLEEP, "[" + "{}," * (JUNK_BYTES // 3) + "0]")
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(REQUESTS):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writers.append(writer)
            writer.write(served.request("POST", "/mcp", headers=await opened(served), body=body))
            await writer.drain()
        await served.until_live(REQUESTS)
        grown = process.memory_info().rss - before
        assert grown < BOUND_BYTES, f"{grown / MIB:.0f} MiB"
    finally:
        for writer in writers:
            writer.transport.abort()
    await served.until_live(0)


async def test_large_requests_are_refused_with_what_to_do(served: Daemon) -> None:
    """A script of the largest size runs; one request of many values, or no JSON, is told so, and the session lives."""
    headers = await opened(served)
    code = "globalThis.__codemode_result__ = 1; /*" + "[{\\" * 250_000 + "*/"
    answer = (await said(served, served.request("POST", "/mcp", headers=headers, body=call(code))))[1]
    assert answer["result"]["structuredContent"]["result"] == 1, answer
    many = call("1", limits=[0] * 1_000_000)
    for body, status, told in ((many, 413, "over 50000 values"), (b"[" * 1_000_000, 400, "no JSON")):
        head, answer = await said(served, served.request("POST", "/mcp", headers=headers, body=body))
        assert (head.status, answer["id"]) == (status, None)
        assert told in answer["error"]["message"]
    ping = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"}).encode()
    assert (await said(served, served.request("POST", "/mcp", headers=headers, body=ping)))[0].status == 200


async def test_one_client_takes_its_part_of_memory_and_no_more(served: Daemon) -> None:
    """What comes slowly is held for one client to its bound; others are served meanwhile, and so is what is small."""
    mine, other = await opened(served), await opened(served)
    part = HELD_BYTES // 4
    slow = served.request("POST", "/mcp", headers={**mine, "Content-Length": str(part)})
    ping = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"}).encode()
    large = served.request("POST", "/mcp", headers=mine, body=ping + b" " * 200_000)
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(slow + b" " * (part - 100_000))
        await writer.drain()

        async def refused() -> object:
            head, answer = await said(served, large)
            return answer if head.status == 429 else None

        answer = await until_found(refused, "it is refused")
        assert "Wait for their answers" in answer["error"]["message"]
        for headers in (other, mine):
            small = served.request("POST", "/mcp", headers=headers, body=ping)
            assert (await said(served, small))[0].status == 200
    finally:
        writer.transport.abort()
