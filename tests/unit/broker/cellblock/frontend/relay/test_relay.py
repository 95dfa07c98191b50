"""A relay whose daemon has forgotten its session, against a server that answers as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from cellblock.frontend.relay.local_http import LocalHttp
from cellblock.frontend.relay.relay import DaemonUnavailable, Relay
from support.http_daemon import INITIALIZE
from support.waits import within

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
LISTING = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}


class Lines:
    """What a client writes, each when it has the answer to the one before."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._left = [json.dumps(one).encode() + b"\n" for one in messages]
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._first = True

    async def line(self) -> bytes:
        if not self._first:
            await within(self.answers.get())
        self._first = False
        return self._left.pop(0) if self._left else b""

    async def send(self, line: bytes) -> None:
        self.answers.put_nowait(json.loads(line))


def gone(why: str) -> DaemonUnavailable:
    return DaemonUnavailable(why, hint="")


async def relayed(lines: Lines, answer: Answer) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        body = await reader.readexactly(length)
        status, said = answer(json.loads(body) if body else {"method": head.split(" ")[0]})
        text = json.dumps(said).encode()
        kind = "content-type: application/json\r\nmcp-session-id: s\r\nconnection: close\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{kind}content-length: {len(text)}\r\n\r\n".encode() + text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        with closing(LocalHttp({})) as channel:

            async def revive() -> LocalHttp:
                return channel

            relay: Any = Relay(url, gone, channel, lines, lines.send, revive=revive)  # type: ignore[arg-type]
            return await within(relay.run())


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"error": {"code": -32602, "message": "not this version"}}, "not this version"),
        ({"result": None}, "it answers initialize with nothing"),
    ],
)
async def test_a_daemon_that_refuses_the_session_anew_is_told(second: dict[str, Any], why: str) -> None:
    greeted = 0

    def answer(message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal greeted
        if message["method"] != "initialize":
            return 404, {"jsonrpc": "2.0", "id": 7, "error": {"code": -32600, "message": "Session not found"}}
        greeted += 1
        said = {"result": {"protocolVersion": "2025-06-18"}} if greeted == 1 else second
        return 200, {"jsonrpc": "2.0", "id": message["id"], **said}

    lost = await relayed(Lines(INITIALIZE, LISTING), answer)
    assert greeted == 2
    assert why in str(lost)


async def test_what_a_client_said_in_vain_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Lines):
        async def line(self) -> bytes:
            return self._left.pop(0) if self._left else b""

    with closing(LocalHttp({})) as channel:

        async def revive() -> LocalHttp:
            return channel

        lines: Any = Silent(CANCEL)
        relay = Relay(
            "http://127.0.0.1:1/mcp",
            lambda why: DaemonUnavailable(why, hint=""),
            channel,
            lines,
            lines.send,
            revive=revive,
        )
        assert await within(relay.run()) is None
    assert "the daemon was not told" in caplog.text
