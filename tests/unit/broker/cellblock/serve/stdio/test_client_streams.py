"""Lines of a stdio client that are no messages: what is a request gets the error of JSON-RPC 2.0, nothing else does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from cellblock.base.offload.pool import Apart
from cellblock.serve.misread import Misread
from cellblock.serve.stdio.client_streams import FromClient, ToClient, message_of
from cellblock.serve.stdio.stdin import ClientLines
from cellblock.serve.stdio.stdout import Flow, StdoutLines

CALL = '{"jsonrpc":"2.0","id":11,"method":"tools/call","params":'


PING = '{"jsonrpc":"2.0","id":7,"method":"ping"}'
PONG = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=7, result={}))


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        ("no json", -32700, None),
        ("{", -32700, None),
        ("[" * 5_000 + "]" * 5_000, -32700, None),
        (CALL + '{"arguments":{"code":"\\ud83d"}}}', -32700, 11),
        (CALL + "[]}", -32602, 11),
        (CALL + '"x"}', -32602, 11),
        ('{"jsonrpc":"2.0","id":"a","method":"ping","params":5}', -32602, "a"),
        ('{"id":3,"method":"ping"}', -32600, 3),
        ('{"jsonrpc":"1.0","id":3,"method":"ping"}', -32600, 3),
        ('{"jsonrpc":"2.0","id":3,"method":1}', -32600, 3),
        ('{"jsonrpc":"2.0","id":3}', -32600, 3),
        ('{"id":true}', -32600, None),
        ('[{"jsonrpc":"2.0","id":3,"method":"ping"}]', -32600, None),
        ("7", -32600, None),
        ("{}", -32600, None),
        ('{"id":' + "9" * 5_000 + "}", -32700, None),
    ],
)
def test_what_asks_for_an_answer_gets_one(line: str, code: int, request_id: Any) -> None:
    found = message_of(line.encode())
    assert isinstance(found, Misread)
    sent = found.answer()
    assert (sent["jsonrpc"], sent["id"], sent["error"]["code"]) == ("2.0", request_id, code)
    assert len(sent["error"]["message"]) < 500


@pytest.mark.parametrize(
    "line",
    [
        "",
        " \r\n",
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        '{"jsonrpc":"2.0","id":1,"result":5}',
        '{"jsonrpc":"2.0","id":1,"error":"x"}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"\\ud83d"}}',
        '{"jsonrpc":"2.0","id":1,"method":5,"result":5,"error":5}',
    ],
)
def test_nothing_answers_an_answer_or_a_notification(line: str) -> None:
    assert message_of(line.encode()) is None


class Client:
    """What a client sends, and what it is answered."""

    def __init__(self, folder: Path, *lines: str) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data("\n".join([*lines, ""]).encode())
        reader.feed_eof()
        self._file = folder / "stdout"
        self._pipe = self._file.open("wb", buffering=0)
        self.answers = ToClient(StdoutLines(-1, Flow(lambda: None), self._pipe, None, None, lambda: None))
        self.opened = asyncio.Event()
        self.stream = FromClient(ClientLines(reader, None), self.answers, self._opened, self._no_apart)

    def told(self) -> list[dict[str, Any]]:
        self._pipe.close()
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    async def _opened(self) -> None:
        await self.opened.wait()

    def _no_apart(self) -> Apart:
        raise AssertionError("nothing here is large")


async def test_messages_pass_and_what_is_no_message_is_answered(tmp_path: Path) -> None:
    client = Client(tmp_path, "no json", PING, " ", PING.replace("7", "8"), CALL + "[]}")
    client.opened.set()
    async with client.stream as stream:
        first = await stream.receive()
        assert isinstance(first, SessionMessage) and isinstance(first.message, types.JSONRPCRequest)
        await client.answers.send(PONG)
        second = await stream.receive()
        await client.answers.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=8, result={})))
        assert [item async for item in stream] == []
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
    assert isinstance(second, SessionMessage)
    told = client.told()
    assert [one.get("error", {}).get("code") for one in told] == [-32700, None, None, -32602]
    assert told[1] == {"jsonrpc": "2.0", "id": 7, "result": {}}


async def test_the_end_waits_for_the_broker_and_for_what_is_still_to_be_answered(tmp_path: Path) -> None:
    cancelled = PING.replace("7", "9")
    cancel = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}'
    client = Client(tmp_path, PING, cancelled, cancel, CALL + '{"name":"x"}}')
    for _ in range(4):
        await client.stream.receive()
    end = asyncio.create_task(anext(client.stream, None))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not end.done()
    client.opened.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not end.done()
    await client.answers.send(PONG)
    async with asyncio.timeout(60):
        assert await end is None
    assert client.told() == [{"jsonrpc": "2.0", "id": 7, "result": {}}]
