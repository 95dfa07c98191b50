"""Upstream servers that answer over HTTP with streams of events that do not end: a call takes its own stream with it, a
session's stream is read at a bounded pace, and others' runs go on."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from cellblock import Broker
from cellblock.tools.upstream import pace, stdio
from cellblock.tools.upstream.wire import messages
from cellblock.tools.upstream.wire.framing import LEAST_RETRY_MS
from support.brokers import ready
from support.entries import settings
from support.responses import succeeded
from support.waits import until, within

pytestmark = pytest.mark.thorough

ANSWERED_MS = 60_000
"""The bound of calls that are answered at once, on any machine."""

CALLS = 3

SERVER = r"""
import asyncio, json, sys, time
WAY, WHERE = sys.argv[1:]
streams = 0
NOTICE = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message",' \
    b'"params":{"level":"info","data":"x"}}\n\n'
CHUNKS = {"events": NOTICE * 20, "flood": NOTICE * 300, "one line": b"x" * 4096, "ids": b"id: 1\nretry: 1\n\n" * 4000}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
def say(*words):
    print(*words, flush=True)
def count(more):
    global streams
    streams += more
    say("streams", streams)
def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)
async def endless(reader, writer):
    if WAY == "silent":
        await reader.read()
        raise ConnectionError
    writer.write(HEAD)
    if WAY == "polled":
        # It ends at once, and is to be asked for again at once.
        writer.write(chunk(b"id: 1\nretry: 0\ndata:\n\n") + chunk(b""))
        return
    if WAY == "one line":
        writer.write(chunk(b"data: "))
    while True:
        writer.write(chunk(CHUNKS[WAY]))
        await writer.drain()
        if WAY != "flood":
            # These are about what never ends, not about how fast it comes.
            await asyncio.sleep(0.02)
def answer(writer, id, **result):
    body = json.dumps({"jsonrpc": "2.0", "id": id, **result}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: one\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body))
async def serve(reader, writer):
    streaming = False
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")]
            message = json.loads(await reader.readexactly(sizes[0])) if sizes else {}
            method, id = message.get("method"), message.get("id")
            if head.startswith(b"GET") and WHERE == "session":
                say("asked", time.monotonic())
                streaming = True
                count(1)
                await endless(reader, writer)
            elif not message:
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            elif id is None:
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            elif method == "initialize":
                answer(writer, id, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "endless", "version": "1"}})
            elif method == "tools/list":
                answer(writer, id, result={"tools": [{"name": "stream", "inputSchema": {"type": "object"}}]})
            elif method == "tools/call" and WHERE == "call":
                streaming = True
                count(1)
                await endless(reader, writer)
            elif method == "tools/call":
                answer(writer, id, result={"content": [{"type": "text", "text": "done"}]})
            else:
                answer(writer, id, error={"code": -32601, "message": "no such method"})
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        if streaming:
            count(-1)
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()
asyncio.run(main())
"""

STDIO_FLOOD = r"""
import json, sys, threading
lock = threading.Lock()
def say(text):
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()
def flood():
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    while True:
        say((json.dumps(notice) + "\n") * 300)
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "endless", "version": "1"}},
        "tools/list": {"tools": [{"name": "stream", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    if "id" in message:
        found = results.get(message["method"])
        answer = {"result": found} if found else {"error": {"code": -32601, "message": "no such method"}}
        say(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    if message.get("method") == "tools/list":
        threading.Thread(target=flood, daemon=True).start()
"""

CALL = """
    import { stream } from "@codemode/servers/endless";
    try { globalThis.__codemode_result__ = await stream({}); }
    catch ({ name, certainty }) { globalThis.__codemode_result__ = [name, certainty]; }
"""


async def none_left(said: asyncio.StreamReader) -> None:
    """Waits until the server says that nobody reads its streams any more."""

    async def cut() -> None:
        while await said.readline() != b"streams 0\n":
            assert not said.at_eof()

    await within(cut())


@asynccontextmanager
async def broker_at(
    tmp_path: Path, way: str, where: str
) -> AsyncGenerator[tuple[Broker, asyncio.StreamReader]]:
    """A broker with a server in a process of its own, and what that says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", SERVER, way, where, stdout=asyncio.subprocess.PIPE
    )
    try:
        url = f"http://127.0.0.1:{int(await within(process.stdout.readline()))}/mcp"
        pool = {"warm": 1, "capacity": 4}
        bound = {"call_timeout_ms": 300 if where == "call" else ANSWERED_MS}
        async with ready(settings(tmp_path, {"endless": {"url": url}}, pool=pool, upstream=bound)) as broker:
            yield broker, process.stdout
        if where == "session" and way != "polled":
            await none_left(process.stdout)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("way", ["events", "one line", "ids", "silent"])
async def test_a_stream_without_end_ends_with_its_call(tmp_path: Path, way: str) -> None:
    async with broker_at(tmp_path, way, "call") as (broker, said):
        succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;")))
        before = psutil.Process().memory_info().rss
        calls = [asyncio.ensure_future(broker.run(CALL, client="streams")) for _ in range(CALLS)]
        succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;", client="other")))
        for call in calls:
            assert succeeded(await within(call)) == ["ToolCallError", "may_have_run"]
        await none_left(said)
        # The session goes on: what ends is the stream of each call.
        assert broker.catalog.servers
        assert psutil.Process().memory_info().rss - before < (64 * 1024 * 1024)


async def test_a_stream_without_end_ends_with_a_run_that_is_cancelled(tmp_path: Path) -> None:
    async with broker_at(tmp_path, "events", "call") as (broker, said):
        assert (await within(broker.run(CALL, limits={"timeoutMs": 200}))).result is None
        await none_left(said)


@pytest.mark.parametrize("way", ["events", "one line", "ids"])
async def test_a_sessions_stream_without_end_holds_nobody(tmp_path: Path, way: str) -> None:
    async with broker_at(tmp_path, way, "session") as (broker, said):
        assert (await within(said.readline())).startswith(b"asked")
        for _ in range(CALLS):
            assert succeeded(await within(broker.run(CALL))) == "done"


async def test_a_sessions_stream_that_is_to_be_asked_for_at_once_is_not(tmp_path: Path) -> None:
    async with broker_at(tmp_path, "polled", "session") as (broker, said):
        asked: list[float] = []
        while len(asked) < 4:
            what, number = (await within(said.readline())).split()
            if what == b"asked":
                asked.append(float(number))
        # Least times: a busy machine only makes them longer.
        assert asked[-1] - asked[0] >= (len(asked) - 1) * LEAST_RETRY_MS / 1000
        assert succeeded(await within(broker.run(CALL))) == "done"


async def test_a_flood_over_stdio_is_read_at_a_bounded_pace_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' runs go on, and after a while it is not listened to any more."""
    read: list[float] = []

    read_line = messages.read

    def counted(line: bytes) -> list[messages.Message]:
        read.append(asyncio.get_running_loop().time())
        return read_line(line)

    monkeypatch.setattr(messages, "read", counted)
    with_a_slow_pace(monkeypatch)
    server = {"command": sys.executable, "args": ["-I", "-c", STDIO_FLOOD]}
    async with ready(settings(tmp_path, {"endless": server})) as broker:
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]
        most = pace.MESSAGES_AT_ONCE + pace.MESSAGES_PER_SECOND * (read[-1] - read[0])
        assert len(read) < most + 2 * stdio.READ_BYTES / 80


async def test_a_flood_of_lines_over_the_cap_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs what its bytes do, though none is kept: eight of them a second."""
    with_a_slow_pace(monkeypatch)
    flood = STDIO_FLOOD.replace('(json.dumps(notice) + "\\n") * 300', '"x" * 1_100_000 + "\\n"')
    assert "1_100_000" in flood
    server = {"command": sys.executable, "args": ["-I", "-c", flood]}
    bounds = {"max_message_bytes": 1_000_000}
    async with ready(settings(tmp_path, {"endless": server}, upstream=bounds)) as broker:
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]


async def test_a_flood_over_http_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_slow_pace(monkeypatch)
    async with broker_at(tmp_path, "flood", "session") as (broker, _):
        await until(lambda: "endless" in broker.catalog.unavailable, "it is cut")
        assert SAID in broker.catalog.unavailable["endless"]


SAID = "it sent over 500 messages a second for 1 s"


def with_a_slow_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that a busy machine reaches, too."""
    monkeypatch.setattr(pace, "MESSAGES_PER_SECOND", 500)
    monkeypatch.setattr(pace, "MESSAGES_AT_ONCE", 100)
    monkeypatch.setattr(pace, "FLOOD_SECONDS", 1.0)
