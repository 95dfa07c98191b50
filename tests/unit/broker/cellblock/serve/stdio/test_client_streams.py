"""The client's streams over stdio: what is read, what is written, and when they end; which requests wait, and what
becomes of them when a daemon ends; large texts take the places of their tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from cellblock.serve.splices import TOKEN_START, Splices
from cellblock.serve.stdio import lines
from cellblock.serve.stdio.client_streams import FromClient, ToClient, message_of
from cellblock.serve.stdio.connect import AGAIN, WHOLE_BYTES, InFlight, Refused, needs_daemon
from cellblock.serve.stdio.lines import ClientLines, LineTooLong, StdoutLines
from support.waits import within

CALL = '{"jsonrpc":"2.0","id":11,"method":"tools/call","params":'


PING = '{"jsonrpc":"2.0","id":7,"method":"ping"}'


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
    found: Any = message_of(line.encode())
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
            found.append((error.found.request_id,))
            continue
        if not line:
            return found
        found.append(line)


def fed(data: bytes) -> ClientLines:
    reader = asyncio.StreamReader(limit=LIMIT)
    reader.feed_data(data)
    reader.feed_eof()
    return ClientLines(reader, None)


async def test_the_end_waits_for_the_broker_and_for_what_is_still_to_be_answered(tmp_path: Path) -> None:
    cancelled = PING.replace("7", "9")
    cancel = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}'
    sent = "\n".join([PING, cancelled, cancel, CALL + '{"name":"x"}}', ""])
    file, opened = tmp_path / "stdout", asyncio.Event()
    with file.open("wb", buffering=0) as pipe:
        output = StdoutLines(-1, pipe, None)
        answers = ToClient(output.put, output.flush, Splices())
        stream = FromClient(fed(sent.encode()), answers, opened.wait)
        for _ in range(4):
            await stream.receive()
        end = asyncio.create_task(anext(stream, None))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not end.done()
        opened.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not end.done()
        await answers.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=7, result={})))
        assert await within(end) is None
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"jsonrpc": "2.0", "id": 7, "result": {}}
    ]


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


INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18"}}
BIG = "x" * (2 * WHOLE_BYTES)


def line_of(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def asking(key: int | str, method: str = "tools/call") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method}


def from_client(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        flight.from_client(line_of(message))


def from_daemon(flight: InFlight, *messages: Any) -> None:
    for message in messages:
        assert flight.from_daemon(line_of(message)) == line_of(message)


def messages(data: bytes) -> list[Any]:
    return [json.loads(one) for one in data.splitlines()]


@pytest.fixture
def flight() -> InFlight:
    return InFlight()


def test_what_may_be_sent_twice_is_and_all_else_gets_an_error(flight: InFlight) -> None:
    from_client(flight, INITIALIZE)
    from_daemon(flight, GREETED)
    from_client(flight, INITIALIZED)
    twice = (
        "ping",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
        "resources/read",
    )
    for key, method in enumerate((*twice, "server/discover"), 10):
        from_client(flight, asking(key, method))
    from_client(flight, asking("20"), asking(20), asking(21, "subscriptions/listen"))
    assert [
        (one["id"], one["error"]["code"], one["error"]["message"]) for one in messages(flight.lost("it went"))
    ] == [(key, -32000, "it went") for key in ("20", 20, 21)]
    again = messages(flight.again())
    assert again[:2] == [{**INITIALIZE, "id": AGAIN}, INITIALIZED]
    assert [one["id"] for one in again[2:]] == list(range(10, 17))
    assert flight.from_daemon(line_of({**GREETED, "id": AGAIN})) == b""
    from_daemon(flight, *({"jsonrpc": "2.0", "id": key, "result": {}} for key in range(10, 17)))
    assert not flight.waits


def test_a_client_that_was_not_greeted_yet_is_greeted_by_the_next(flight: InFlight) -> None:
    from_client(flight, INITIALIZE, INITIALIZED, asking(2, "tools/list"))
    assert flight.lost("") == b"" and not flight.answered
    assert messages(flight.again()) == [INITIALIZE, INITIALIZED, asking(2, "tools/list")]
    from_daemon(flight, GREETED)
    assert flight.answered


def test_a_client_without_a_session_has_no_greeting(flight: InFlight) -> None:
    from_client(flight, asking(1, "server/discover"))
    assert messages(flight.again()) == [asking(1, "server/discover")]


@pytest.mark.parametrize("said", [{"error": {"code": 1, "message": "not this version"}}, {"result": None}])
def test_a_daemon_that_does_not_greet_again_is_refused(said: dict[str, Any], flight: InFlight) -> None:
    from_client(flight, INITIALIZE)
    from_daemon(flight, GREETED)
    flight.lost("")
    with pytest.raises(Refused, match="it answers initialize with"):
        flight.from_daemon(line_of({"jsonrpc": "2.0", "id": AGAIN, **said}))


def test_what_is_cancelled_waits_no_more(flight: InFlight) -> None:
    from_client(flight, asking(2), asking(3), asking("3"), asking(0))
    for key in (3, 0, "x", None):
        from_client(
            flight, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": key}}
        )
    assert [one["id"] for one in messages(flight.lost("gone"))] == [2, "3"]
    assert flight.lost("gone") == b""


def test_a_question_of_the_daemon_with_the_id_of_a_request_is_none_of_its_answers(flight: InFlight) -> None:
    from_client(flight, asking(2))
    from_daemon(flight, asking(2, "elicitation/create"))
    from_client(flight, {"jsonrpc": "2.0", "id": 2, "result": {"action": "accept"}})
    assert [one["id"] for one in messages(flight.lost("gone"))] == [2]


def test_all_that_waits_ends_when_no_daemon_comes(flight: InFlight) -> None:
    from_client(flight, asking(1, "ping"), asking(2, "subscriptions/listen"))
    assert not flight.quiet
    assert [one["id"] for one in messages(flight.all_ended("why"))] == [1, 2]
    assert flight.quiet and not flight.waits


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":"%s"}\n',
        b'{"id": 5, "jsonrpc": "2.0", "method": "tools/call", "params": "%s"}\n',
        b'{"method":"tools/call","params":"%s","jsonrpc":"2.0","id":5}\n',
    ],
)
def test_a_long_message_is_known_by_its_ends(text: bytes, flight: InFlight) -> None:
    flight.from_client(text % BIG.encode())
    assert [one["id"] for one in messages(flight.lost("gone"))] == [5]
    from_client(flight, asking(6))
    from_daemon(flight, {"jsonrpc": "2.0", "id": 6, "result": BIG})
    assert not flight.waits


@pytest.mark.parametrize(
    "data", [b"no json\n", b"\xff\n", b"[" * 5000 + b"\n", b"[]\n", b'{"id":1e999}\n', b"\n"]
)
def test_what_is_no_message_is_copied(data: bytes, flight: InFlight) -> None:
    flight.from_client(data)
    assert flight.from_daemon(data) == data
    assert flight.lost("") == flight.again() == b""


@pytest.mark.parametrize(
    ("data", "needs"),
    [
        (line_of(asking(1)), True),
        (line_of(INITIALIZED), False),
        (line_of(GREETED), False),
        (b"no message\n", True),
        (b" \n", False),
        (line_of({**asking(1), "params": BIG}), True),
        (line_of({"jsonrpc": "2.0", "id": 6, "result": BIG}), False),
    ],
)
def test_only_what_is_answered_needs_a_daemon(data: bytes, needs: bool) -> None:
    assert needs_daemon(data) is needs


def test_a_text_takes_the_place_of_its_token_and_of_its_quotes() -> None:
    splices = Splices()
    message = json.dumps({"x": splices.add(b'{"a":[1]}'), "y": [splices.add(b"2")]}).encode()
    assert json.loads(b"".join(splices.spliced(message))) == {"x": {"a": [1]}, "y": [2]}
    assert splices.spliced(message) == [message], "it is over"


def test_a_text_within_a_text_is_put_in_escaped() -> None:
    splices = Splices()
    gone: list[str] = []
    token = splices.add(rb"[\"\\u0000\"]", quote=b'\\"', on_gone=lambda: gone.append("gone"))
    message = json.dumps({"text": json.dumps({"result": token})}).encode()
    assert json.loads(json.loads(b"".join(splices.spliced(message)))["text"]) == {"result": ["\0"]}
    assert gone == ["gone"] and splices.spliced(message) == [message], "it is good for one use"


def test_what_only_looks_like_a_token_stays() -> None:
    splices = Splices()
    token = splices.add(b"1")
    other = json.dumps([TOKEN_START, TOKEN_START + "0" * 32, token[:-1], TOKEN_START * 3]).encode()
    assert b"".join(splices.spliced(other)) == other
    assert b"".join(splices.spliced(other[:-1] + b',"' + token.encode() + b'"]')) == other[:-1] + b",1]"
