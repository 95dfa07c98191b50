"""The client's streams over stdio: what is read, what is written, and when they end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from cellblock.serve.misread import Misread
from cellblock.serve.splices import Splices
from cellblock.serve.stdio import lines
from cellblock.serve.stdio.client_streams import FromClient, ToClient, message_of
from cellblock.serve.stdio.lines import ClientLines, LineTooLong, StdoutLines
from support.waits import within

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
        output = StdoutLines(-1, self._pipe, None)
        self.answers = ToClient(output.put, output.flush, Splices())
        self.opened = asyncio.Event()
        self.stream = FromClient(ClientLines(reader, None), self.answers, self._opened)

    def told(self) -> list[dict[str, Any]]:
        self._pipe.close()
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    async def _opened(self) -> None:
        await self.opened.wait()


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
    assert await within(end) is None
    assert client.told() == [{"jsonrpc": "2.0", "id": 7, "result": {}}]


LIMIT = 4_096


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", LIMIT)


async def read(lines: ClientLines) -> list[Any]:
    """All lines; the id in the place of one that is dropped."""
    found: list[Any] = []
    while True:
        try:
            line = await lines.line()
        except LineTooLong as error:
            found.append((error.request_id,))
            continue
        if not line:
            return found
        found.append(line)


def fed(data: bytes) -> ClientLines:
    reader = asyncio.StreamReader(limit=LIMIT)
    reader.feed_data(data)
    reader.feed_eof()
    return ClientLines(reader, None)


LONG = b'"x":"' + b"\\n" * LIMIT + b'"'


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m",' + LONG + b"}", 7),
        (b'{"id": "a b" ,' + LONG + b"}", "a b"),
        (b'{"method":"m",' + LONG + b',"jsonrpc":"2.0","id":-8}', -8),
        (b'{"method":"m","params":{"id":3,' + LONG + b"}}", None),
        (b'{"params":{' + LONG + b',"id":3}}', None),
        (b'{"id":1.5,' + LONG + b"}", None),
        (b'{"id":"\\u0041",' + LONG + b"}", None),
        (b"x" * 20_000_000, None),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
async def test_a_line_that_is_too_long_is_dropped_whole(line: bytes, request_id: Any, end: bytes) -> None:
    behind = [b"behind\n", b"half"] if end else []
    data = b"".join([b"before\n", line, end, *behind])
    assert await read(fed(data)) == [b"before\n", (request_id,), *behind]


@pytest.mark.parametrize("over", [-1, 0, 1, 2, LIMIT, LIMIT + 1])
async def test_the_bound_is_the_same_from_a_pipe_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    data = b"x" * (LIMIT + over) + b"\nlast\n"
    wanted = [(None,) if over > 0 else data[: LIMIT + over + 1], b"last\n"]
    assert await read(fed(data)) == wanted
    file = tmp_path / "lines"
    file.write_bytes(data)
    with file.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert await read(await ClientLines.of_stdin()) == wanted
